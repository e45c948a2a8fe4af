from pathlib import Path

import pytest

from pretune.datasets import Accelerator, Platform, TrialStore
from pretune.datasets.importers import importer
from pretune.datasets.importers.account import import_files
from pretune.datasets.importers.base import Run, SetAside
from pretune.datasets.importers.complete import Given, complete
from pretune.datasets.importers.megatron import MegatronLog

GOLDEN = Path(__file__).parent / "golden"
LOG = GOLDEN / "megatron" / "core_0.12.log"
POD = Platform(name="pod", accelerator=Accelerator(name="H100"), devices_per_node=8, nodes=4)


def test_the_same_file_twice_adds_nothing_and_a_grown_one_is_the_same_run(tmp_path):
    log, store = tmp_path / "run.log", TrialStore(tmp_path / "trials")
    whole = LOG.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(whole[:-1]))
    first = import_files(MegatronLog(), [log], Given(POD), store)
    log.write_bytes(b"".join(whole))
    second = import_files(MegatronLog(), [log], Given(POD), store)
    assert first.taken == second.already_there == len(store) > 0
    assert second.taken == 0


def test_the_log_says_how_many_devices_there_were():
    run = next(iter(MegatronLog().read(LOG)))
    trial = complete(run, LOG, "megatron", Given(POD))
    assert trial.platform.devices == run.values["platform.devices"]
    assert trial.platform.accelerator == POD.accelerator
    alone = complete(run, LOG, "megatron", Given())
    assert isinstance(alone, SetAside)
    assert "--platform" in alone.reason


def test_an_accelerator_that_the_log_names_is_not_overruled():
    run = next(iter(MegatronLog().read(LOG)))
    for stated, taken in (("H100", True), ("GB200", False)):
        run.values["accelerator.name"] = stated
        trial = complete(run, LOG, "megatron", Given(POD))
        assert isinstance(trial, SetAside) != taken


def test_samples_per_second_of_unknown_length_are_no_failure():
    run = Run(1, "a", {"samples_per_s": 8.0, "model.name": "gpt2-small"})
    aside = complete(run, LOG, "wandb", Given(POD))
    assert "no workload.sequence_length" in aside.reason
    given = Given(POD, {"workload.sequence_length": 128, "workload.global_batch_tokens": 32 * 128})
    trial = complete(run, LOG, "wandb", given)
    assert (trial.status, trial.tokens_per_s) == ("ok", pytest.approx(8 * 128))


OF_FILES = sorted(path.name for path in GOLDEN.iterdir() if path.name != "kernel-tuner")  # of trials


@pytest.mark.parametrize("name", OF_FILES)
def test_every_run_of_every_format_is_accounted_for(name, tmp_path):
    kind = importer(name)
    runs = [found for path in _goldens(name) for found in kind().read(path)]
    account = import_files(kind(), _goldens(name), Given(POD), TrialStore(tmp_path))
    assert runs
    assert account.taken + account.already_there + len(account.set_aside) == len(runs)
    assert len(TrialStore(tmp_path)) == account.taken
    assert all(each.reason for each in account.set_aside)


def _goldens(name):
    return sorted(path for path in (GOLDEN / name).rglob(importer(name).pattern) if path.is_file())
