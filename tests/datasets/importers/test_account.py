from pathlib import Path

import pytest

from pretune.datasets import Accelerator, Platform, TrialStore
from pretune.datasets.importers import importer
from pretune.datasets.importers.account import Watcher, import_files
from pretune.datasets.importers.base import Run, SetAside
from pretune.datasets.importers.complete import Given, complete
from pretune.datasets.importers.mapping import Mapping
from pretune.datasets.importers.megatron import MegatronLog
from pretune.datasets.importers.table import Table

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


MIXED = "gpu,tok/s,foo\nH100-SXM,100,1\nH100-SXM,110,auto\nH100-SXM,120,2.5\n"
MIXED_MAP = Mapping(
    columns={"accelerator.name": "gpu", "tokens_per_s": "tok/s", "knob.foo": "foo"},
    constants={"model.name": "m", "platform.devices": 8},
)


def test_a_knob_of_two_kinds_costs_the_runs_that_differ_and_no_other(tmp_path):
    (tmp_path / "runs.csv").write_text(MIXED)
    store, given = TrialStore(tmp_path / "trials"), Given(None, dict(MIXED_MAP.constants))
    first = import_files(Table(MIXED_MAP), [tmp_path / "runs.csv"], given, store)
    (aside,) = first.set_aside
    assert (first.taken, aside.line) == (2, 3)
    assert "knob.foo is a word here ('auto') and a number in other runs" in aside.reason
    assert sorted(store.frame()["knob.foo"].to_list()) == [1.0, 2.5]
    (tmp_path / "more.csv").write_text(MIXED.replace("110", "111"))
    more = import_files(Table(MIXED_MAP), [tmp_path / "more.csv"], given, store)
    assert (more.already_there, len(more.set_aside)) == (2, 1)  # also beside what the store held before


def test_a_watcher_hears_of_every_byte(tmp_path):
    class Heard(Watcher):
        total, planned_for = 0, ()

        def planned(self, sources):
            self.planned_for = tuple(sources)

        def read(self, count):
            self.total += count

    heard = Heard()
    files = _goldens("megatron")
    account = import_files(MegatronLog(), files, Given(POD), TrialStore(tmp_path), heard)
    assert heard.planned_for == tuple(files)
    assert heard.total == sum(file.stat().st_size for file in files)
    assert sum(tally["taken"] for tally in account.files.values()) == account.taken
    assert set(account.files) == set(map(str, files))
