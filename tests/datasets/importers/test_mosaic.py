from pathlib import Path

import pytest

from pretune.datasets import Status, Trial
from pretune.datasets.importers.base import Run, SetAside
from pretune.datasets.importers.complete import Given, complete
from pretune.datasets.importers.mosaic import MosaicTable
from pretune.errors import InputError

GOLDEN = Path(__file__).parent / "golden" / "mosaic" / "benchmark_tables.md"


def trials() -> list[Trial]:
    found = [run for run in MosaicTable().read(GOLDEN) if isinstance(run, Run)]
    made = [complete(run, GOLDEN, "mosaic", Given()) for run in found]
    assert not any(isinstance(each, SetAside) for each in made)
    return made  # type: ignore[return-value]


def test_rows_are_trials_on_the_accelerator_that_they_name():
    first, long, uneven, old = trials()
    assert [t.platform.accelerator.name for t in (first, old)] == ["h100-sxm-80gb", "a100-sxm-40gb"]
    assert (long.platform.nodes, long.platform.devices_per_node) == (2, 8)
    assert (first.workload.model.layers, first.workload.model.heads) == (32, 32)
    assert (long.workload.sequence_length, long.workload.model.max_positions) == (65536, 65536)
    assert first.tokens_per_s_per_device == pytest.approx(9800.6, rel=1e-3)
    assert [t.knobs.activation_checkpointing for t in (first, long)] == ["none", "full"]
    assert [t.knobs.zero_stage for t in (first, uneven)] == [3, 2]
    assert [t.workload.precision for t in (first, uneven)] == ["bf16", "fp8"]
    assert [t.knobs.communication_data_type for t in (first, old)] == ["fp32", "bf16"]
    assert {t.status for t in trials()} == {Status.OK}


def test_flops_are_of_one_unit_whatever_a_table_has():
    name = "model_flops_per_s_per_device"
    first, *_, old = trials()
    assert first.counters[name] == pytest.approx(4.231348e14)
    assert old.counters[name] == 90e12


def test_an_uneven_last_micro_batch_is_said_and_no_contradiction():
    runs = [run for run in MosaicTable().read(GOLDEN) if isinstance(run, Run)]
    assert [bool(run.notes) for run in runs] == [False, False, True, False]
    assert (trials()[2].knobs.micro_batch, trials()[2].knobs.accumulation) == (11, None)


def test_a_row_of_other_parameters_or_cells_is_set_aside_by_line():
    asides = [found for found in MosaicTable().read(GOLDEN) if isinstance(found, SetAside)]
    assert [(each.line, each.reason.split(":")[0].split(" under")[0]) for each in asides] == [
        (17, "NumParams"),
        (18, "has 19 cells"),
    ]


def test_a_document_cut_anywhere_gives_no_run_that_the_whole_one_has_not(tmp_path):
    whole = {run.key: run.values for run in MosaicTable().read(GOLDEN) if isinstance(run, Run)}
    data, cut = GOLDEN.read_bytes(), tmp_path / "cut.md"
    for end in range(data.index(b"| ---"), len(data), 7):
        cut.write_bytes(data[:end])
        for found in MosaicTable().read(cut):
            assert isinstance(found, SetAside) or whole[found.key] == found.values


def test_another_document_is_refused(written):
    with pytest.raises(InputError, match="has no table with the columns"):
        written(MosaicTable(), "# Results\n\n| A | B |\n|---|---|\n| 1 | 2 |\n")
