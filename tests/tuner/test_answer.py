from __future__ import annotations

import pytest

from pretune.datasets import Knobs
from pretune.tuner.answer import launch_script, sentence
from pretune.tuner.verify import Ratio


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (Ratio(1.5, 1.2, 1.8, 5), "1.50x of the default (1.20 to 1.80, 95 % of 5 pairs)"),
        (Ratio(1.1, 0.9, 1.3, 5), "no difference is shown"),
        (Ratio(0.8, 0.7, 0.9, 5), "0.80x of the default (0.70 to 0.90, 95 % of 5 pairs): slower"),
        (Ratio(1.0, 1.0, 1.0, 5, same=True), "the winner is the default: 1.00x"),
        (Ratio(1.4, None, None, 1), "one pair, no interval"),
        (Ratio(None, None, None, 0), "there is no ratio"),
    ],
)
def test_a_sentence_claims_no_more_than_its_interval(found, says):
    assert says in sentence("the default", found)


def test_the_launch_script_sets_what_the_winner_needs(target):
    knobs = Knobs(threads_per_rank=3, attention="eager", **{"env.NCCL_ALGO": "Tree; rm -rf x"})
    script = launch_script(target, knobs, ["ds_config.json"])
    assert "export OMP_NUM_THREADS=3" in script
    assert "export NCCL_ALGO='Tree; rm -rf x'" in script
    assert "#   attention: eager" in script
    assert script.rstrip().endswith('--master_port "${MASTER_PORT:-29500}" "$@"')
