"""The trial program by the road of a cold trial, its ranks started by hand with what torchrun gives them."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from pretune.collector import trial_program
from pretune.collector.evidence import write_json
from pretune.collector.process import PARENT, TOKENS
from pretune.datasets import Accelerator, Knobs, Measure, ModelSpec, Platform, Trial, TrialSpec, Workload

MODEL = ModelSpec(name="tiny", layers=2, hidden_size=64, heads=4, vocabulary=256, max_positions=32)
MEASURE = Measure(min_windows=3, max_windows=8, max_seconds=1.0)


def spec(model=MODEL, framework="torch_ddp", seed=0, **knobs):
    return TrialSpec(
        trial_id="t1",
        workload=Workload(model=model, sequence_length=32, global_batch_tokens=256, precision="fp32"),
        platform=Platform(
            name="here", accelerator=Accelerator(name="cpu"), devices_per_node=2, backend="gloo"
        ),
        framework=framework,
        knobs=Knobs(**{"micro_batch": 4} | knobs),
        seed=seed,
        measure=MEASURE,
    )


def environment(rank, port):
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    given = {**ranks, **meeting, PARENT: os.getpid(), "OMP_NUM_THREADS": 1}
    return {**os.environ, **{name: str(value) for name, value in given.items()}}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rank(folder):
    return [sys.executable, "-m", "pretune.collector.rank", "pretune.collector.trial_program", str(folder)]


def run(*folders, **more):
    """Start rank 0 in the first folder and rank 1 in the last; returns their exit codes.

    ``more``: a variable -> its values on the two ranks.
    """
    port = free_port()
    ranks = [
        subprocess.Popen(
            rank(folder),
            env=environment(number, port) | {name: str(values[number]) for name, values in more.items()},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number, folder in enumerate((folders[0], folders[-1]))
    ]
    try:
        return [process.wait(timeout=120) for process in ranks]
    finally:
        for process in ranks:
            process.kill()


def sheet(folder, of):
    folder.mkdir(exist_ok=True)
    (folder / "spec.json").write_text(of.model_dump_json())
    return folder


def read(path):
    return json.loads(path.read_text())


@pytest.mark.slow
def test_checkpoints_are_written_between_steps(tmp_path):
    steps = {"min_warmup_windows": 2, "max_warmup_windows": 2, "min_windows": 8, "max_windows": 8}
    often = MEASURE.model_copy(update={**steps, "checkpoint_steps": 3})
    assert run(sheet(tmp_path, spec().model_copy(update={"measure": often}))) == [0, 0]
    saved, result = read(tmp_path / "checkpoints.json"), read(tmp_path / "result.json")
    assert len(saved) == 3
    assert len(result["window_times_s"]) == 8
    kept = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in kept) > 4 * 3 * MODEL.parameters  # weights and two moments


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["torch_ddp", "deepspeed"])
def test_two_ranks_train_and_leave_the_fields_of_a_trial(tmp_path, framework):
    of = spec(framework=framework)
    assert run(sheet(tmp_path, of)) == [0, 0]
    result = read(tmp_path / "result.json")
    trial = Trial(**of.model_dump(), **result, status="ok", created_at="2025-01-01T00:00:00Z")
    assert 3 <= len(trial.window_times_s) <= 8
    assert trial.tokens_per_s == pytest.approx(256 * len(trial.window_times_s) / sum(trial.window_times_s))
    assert trial.tokens_per_s_per_device == pytest.approx(trial.tokens_per_s / 2)
    assert trial.loss_last < trial.loss_first
    assert trial.startup_s > 0.5
    assert trial.hosts == [socket.gethostname()] * 2
    assert trial.peak_memory_device_bytes > 4 * 4 * MODEL.parameters
    assert trial.counters["link_sent_end_bytes"] > trial.counters["link_sent_start_bytes"]
    assert trial.software["torch"]
    assert read(tmp_path / "progress.json")["phase"] == "done"
    assert [read(tmp_path / f"rank-{rank}.json")["status"] for rank in (0, 1)] == ["ok", "ok"]


@pytest.mark.slow
def test_a_trial_that_is_asked_to_stop_ends_well_with_what_it_has_measured(tmp_path):
    endless = Measure(min_windows=10**6, max_windows=10**6, max_seconds=3600.0)
    of = spec().model_copy(update={"measure": endless})
    sheet(tmp_path, of)
    (tmp_path / "stop.json").touch()
    assert run(tmp_path) == [0, 0]
    result = read(tmp_path / "result.json")
    assert result["stopped_early"] is True
    assert 3 <= len(result["window_times_s"]) < 10**5
    assert result["tokens_per_s_std_error"] > 0
    (began, used), *_ = read(tmp_path / "memory.json")
    assert abs(time.time() - began) < 120
    assert used > 4 * 4 * MODEL.parameters


@pytest.mark.long
def test_deepspeed_tells_its_collectives_in_a_diagnosis_and_never_in_a_measurement(tmp_path):
    usual = spec(framework="deepspeed", zero_stage=1)
    diagnosis = usual.model_copy(update={"purpose": "diagnostic"})
    assert run(sheet(tmp_path / "usual", usual)) == run(sheet(tmp_path / "diagnosis", diagnosis)) == [0, 0]
    without, told = (read(tmp_path / name / "result.json") for name in ("usual", "diagnosis"))
    assert "it slows what is measured" in without["missing"]["deepspeed_comm"]
    assert not [name for name in without["counters"] if name.startswith("comm_")]
    reduced = told["counters"]["comm_bytes_per_step.all_reduce"]
    assert reduced == pytest.approx(4 * MODEL.parameters, rel=0.05)  # fp32 gradients, once
    assert told["counters"]["comm_calls_per_step.all_reduce"] >= 1
    assert told["counters"]["comm_time_s.all_reduce"] > 0


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_oom_by_its_exception(tmp_path):
    huge = MODEL.model_copy(update={"vocabulary": 2**40})
    assert run(sheet(tmp_path, spec(huge))) == [1, 1]
    for rank in (0, 1):
        ended = read(tmp_path / f"rank-{rank}.json")
        assert (ended["ended"], ended["status"]) == ("exception", "oom")
        assert "Transformer" in ended["traceback"]
    assert not (tmp_path / "result.json").exists()


@pytest.mark.slow
def test_an_illegal_configuration_is_invalid_before_any_process_group(tmp_path):
    assert run(sheet(tmp_path, spec(micro_batch=3))) == [1, 1]
    ended = read(tmp_path / "rank-0.json")
    assert (ended["status"], ended["exception"]) == ("invalid", "IllegalKnobs")
    assert read(tmp_path / "progress.json")["phase"] == "import"


@pytest.mark.slow
def test_ranks_that_read_different_sheets_refuse_to_train(tmp_path):
    folders = sheet(tmp_path / "a", spec(seed=0)), sheet(tmp_path / "b", spec(seed=1))
    assert run(*folders) == [1, 1]
    for rank, folder in enumerate(folders):
        ended = read(folder / f"rank-{rank}.json")
        assert ended["status"] == "invalid"
        assert "differs between the ranks" in ended["message"]


@pytest.mark.slow
def test_ranks_with_different_tokens_refuse_to_train(tmp_path):
    assert run(sheet(tmp_path, spec()), **{TOKENS: ("", "/data/ids.npy")}) == [1, 1]
    ended = read(tmp_path / "rank-0.json")
    assert (ended["status"], ended["message"][:22]) == ("invalid", "PRETUNE_TOKENS: differ")


@pytest.mark.slow
def test_a_rank_dies_with_its_parent(tmp_path):
    """The rank waits for a partner that never comes; then its parent is killed."""
    sheet(tmp_path, spec())
    start = (
        f"import os, subprocess, time; os.environ[{PARENT!r}] = str(os.getpid());"
        f"p = subprocess.Popen({rank(tmp_path)!r}); print(p.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", start], env=environment(0, free_port()), stdout=subprocess.PIPE, text=True
    )
    child = psutil.Process(int(parent.stdout.readline()))
    deadline = time.monotonic() + 60
    while not (tmp_path / "progress.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "progress.json"
    write_json(path, {"windows": 1})
    before = path.open()
    write_json(path, {"windows": 2})
    assert json.load(before) == {"windows": 1}
    before.close()
    assert read(path) == {"windows": 2}
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_the_hosts_trouble_and_no_crash_of_the_configuration(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(trial_program, "write_json", full)
    assert trial_program.run(sheet(tmp_path, spec())) == os.EX_IOERR
    assert "progress.json: cannot be written (No space left on device)" in capsys.readouterr().err
