"""Trials that run a script of the user's: their measure, and the truth about how they ended."""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from pathlib import Path

import psutil
import pytest

from pretune.collector import script_program
from pretune.collector.launchers import launcher_for
from pretune.collector.sheet import environment
from pretune.datasets import Accelerator, Knobs, Measure, ModelSpec, Platform, Status, TrialSpec, Workload
from pretune.datasets.frameworks import framework
from pretune.datasets.script import Script

SCRIPT = Path(__file__).parent / "programs" / "script.py"
WORKLOAD = Workload(
    model=ModelSpec(name="m", layers=1, hidden_size=8, heads=1, vocabulary=16),
    sequence_length=8,
    global_batch_tokens=256,
    precision="fp32",
)
PLATFORM = Platform(name="p", accelerator=Accelerator(name="cpu"), devices_per_node=2, backend="gloo")
MEASURE = Measure(max_windows=20, timeout_s=60.0)
STALL_S = 6.0
COUNT = itertools.count()
ONE = PLATFORM.model_copy(update={"devices_per_node": 1})


def sheet(
    trial_id,
    run,
    folder=".",
    framework_name="torch_ddp",
    measure=MEASURE,
    platform=None,
    **how,
):
    chosen = framework(framework_name)
    return TrialSpec(
        trial_id=trial_id,
        workload=WORKLOAD,
        platform=platform or PLATFORM,
        framework=framework_name,
        knobs=chosen.resolve(WORKLOAD, platform or PLATFORM, Knobs(micro_batch=4, **{"env.TASTE": "sweet"})),
        measure=measure,
        script=Script(run=run, folder=str(folder), **how),
    )


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    settings = {"local": {"devices": 2}, "warm": False, "stall_s": STALL_S}
    with launcher_for(settings, tmp_path_factory.mktemp("runs")) as opened:
        yield opened


@pytest.fixture
def ended(launcher):
    """The trial of a script, and its folder."""

    def run(words, **how):
        handle = launcher.submit(sheet(f"t{next(COUNT)}", words, **how))
        while (trial := launcher.poll(handle)) is None:
            time.sleep(0.02)
        return trial, handle.folder

    return run


def act(name):
    return f"{{python}} {SCRIPT} {name} {{folder}}"


def test_steps_are_measured_by_the_clock_where_lines_state_no_time(ended):
    trial, _ = ended(act("train"))
    assert (trial.status, trial.cause) == (Status.OK, None)
    assert 0.02 < trial.step_time_s < 0.3
    assert trial.tokens_per_s == pytest.approx(256 / trial.step_time_s)
    assert trial.tokens_per_s_per_device == trial.tokens_per_s / 2
    assert trial.tokens_per_s_std_error > 0
    assert (trial.loss_first, trial.loss_last) == (3.0, pytest.approx(1.9))
    assert trial.hosts
    assert trial.script.run == act("train")


def test_a_script_is_stopped_when_it_has_printed_enough(ended):
    few = Measure(max_warmup_windows=3, min_windows=6, max_seconds=0.5)
    trial, folder = ended(act("endless"), measure=few)
    assert (trial.status, trial.cause) == (Status.OK, None)
    assert len(trial.window_times_s) >= 6
    (left,) = [int(path.name.split("-")[1]) for path in folder.glob("runs-*")]
    assert gone(left)


def test_a_step_line_says_where_the_time_stands(ended):
    trial, _ = ended(act("train"), step_line=r"iter (?P<step>\d+): .* time (?P<milliseconds>[\d.]+)ms")
    assert trial.step_time_s == pytest.approx(0.01)


BROKEN = {  # how the script behaves -> status, words of the cause
    "silent": (Status.CRASH, "exits with code 0, but printed no step"),
    "short": (Status.CRASH, r"only its warm-up \(1 lines of progress\); let it run for longer"),
    "nan": (Status.DIVERGED, "the loss became nan"),
    "hang": (Status.TIMEOUT, "no progress for"),
    "stuck": (Status.TIMEOUT, "no progress for"),
    "daemon": (Status.CRASH, "exits with return code = 9"),
    "complain": (Status.OK, None),
    "caught": (Status.OK, None),
    "oom": (Status.OOM, "OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB"),
    "exit": (Status.CRASH, "exits with return code = 3"),
    "segfault": (Status.CRASH, "exits with return code = 139"),
}
WAIT = ("stuck",)  # as long as "hang", and show little more


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in WAIT else name for name in BROKEN]
)
def test_the_status_is_true_whatever_the_script_does(ended, name):
    status, cause = BROKEN[name]
    trial, folder = ended(act(name))
    assert trial.status is status, trial.cause
    assert (trial.tokens_per_s is not None) == (status is Status.OK)
    assert trial.cause is None if cause is None else re.search(cause, trial.cause)
    left = [int(path.name.split("-")[1]) for path in folder.glob("hangs-*")]
    assert bool(left) == (name in ("hang", "stuck", "daemon"))
    assert all(map(gone, left))


def test_a_script_gets_the_files_the_placeholders_and_the_variables_of_its_trial(ended, tmp_path):
    (tmp_path / "look.py").write_text(LOOK)
    words = [
        "{python}",
        "look.py",
        "{ds_config}",
        "{micro_batch}",
        "{accumulation*dp}",
        "{steps}",
        "{folder}",
    ]
    words += ["{zero_stage:0=|1=--one}", "{node_rank}", "{{x}}", "{master_port}"]
    trial, folder = ended(words, folder=tmp_path, framework_name="deepspeed")
    assert trial.status is Status.CRASH  # it trains nothing
    seen = json.loads((folder / "seen.json").read_text())
    config = json.loads(Path(seen["words"][0]).read_text())
    assert config["train_micro_batch_size_per_gpu"] == trial.knobs.micro_batch == 4
    assert config["steps_per_print"] == 1
    assert seen["words"][1:6] == ["4", "8", "28", str(folder), "0"]  # a word of which nothing is left is none
    assert seen["words"][6] == "{x}"
    assert int(seen["words"][7]) > 0
    assert seen["environment"]["TASTE"] == "sweet"
    assert seen["folder"] == str(tmp_path)
    assert "RANK" not in seen["environment"]


LOOK = """
import json, os, sys
told = {"words": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}
open(sys.argv[5] + "/seen.json", "w").write(json.dumps(told))
"""


@pytest.mark.parametrize(
    ("words", "folder", "cause"),
    [
        ("no-such-program --x 1", ".", "no-such-program cannot be run in .*No such file"),
        ("{python} train.py", "/no-such-folder", "cannot be run in /no-such-folder"),
    ],
)
def test_a_command_that_cannot_be_started_is_invalid(ended, words, folder, cause):
    trial, _ = ended(words, folder=folder)
    assert trial.status is Status.INVALID
    assert re.search(cause, trial.cause)


RECORDS = """
import sys, time
from pathlib import Path
from pretune.collector import TrialRecorder
from pretune.collector.sheet import trial_here

act, micro_batch, folder = sys.argv[1:]
if act == "forge":
    sheet = Path(folder, "spec.json")
    sheet.write_text(sheet.read_text().replace('"seed": 0', '"seed": 1'))
trial = trial_here()
knobs = trial.knobs.model_copy(update={"micro_batch": int(micro_batch)})
with TrialRecorder(
    workload=trial.workload, platform=trial.platform, knobs=knobs, store=folder + "/own"
) as recorder:
    for step in range(1_000_000):
        if act == "fail" and step > 5:
            raise MemoryError("no more")
        time.sleep(0.01)
        recorder.step(loss=2.0)
"""


@pytest.fixture
def recorded(ended, tmp_path):
    def run(act, micro_batch="{micro_batch}"):
        (tmp_path / "train.py").write_text(RECORDS)
        words = ["{python}", "train.py", act, micro_batch, "{folder}"]
        return ended(words, folder=tmp_path, platform=ONE)

    return run


def test_a_recorder_in_the_script_hands_its_record_over_and_the_script_need_not_end(recorded):
    trial, folder = recorded("train")
    assert (trial.status, trial.cause) == (Status.OK, None)
    assert trial.tokens_per_s == pytest.approx(256 / trial.step_time_s, rel=1e-3)
    assert len(trial.window_times_s) == 20  # by the trial's own measure
    assert trial.trial_id == folder.name
    assert not (folder / "own").exists()


def test_a_recorder_tells_how_the_script_failed(recorded):
    trial, _ = recorded("fail")
    assert (trial.status, trial.cause) == (Status.OOM, "MemoryError: no more")


def test_a_script_that_did_something_else_than_it_was_asked_is_no_measurement(recorded):
    trial, _ = recorded("train", micro_batch="2")
    assert trial.status is Status.INVALID
    assert trial.cause.startswith("the script trained with micro_batch 2, the trial asked for 4")


def test_a_sheet_that_is_not_the_one_handed_out_is_refused_by_every_rank(recorded):
    trial, _ = recorded("forge")
    assert trial.status is Status.CRASH
    assert "is not the sheet that this trial was started with" in trial.cause


def test_an_importer_reads_what_the_script_prints_and_holds_it_against_the_trial(ended):
    golden = Path(__file__).parents[1] / "datasets/importers/golden/megatron/core_0.12.log"
    trial, _ = ended(["cat", str(golden)], log_format="megatron")
    assert trial.status is Status.INVALID
    assert re.match(r"the script trained with \w+ \d+, the trial asked for \d+", trial.cause)
    quiet, _ = ended(act("train"), log_format="megatron")
    assert quiet.status is Status.CRASH
    assert "no importer understands its output (megatron)" in quiet.cause


MEETS = """
import socket, sys, time
time.sleep(0.3)
node, address, port, act = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
if node == 0:
    with socket.create_server((address, port)) as server:
        peer, _ = server.accept()
        for step in range(24 if act != "endless" else 10**6):
            time.sleep(0.02)
            peer.sendall(b".")
            if not peer.recv(1):
                raise ConnectionError("the peer is gone")
            print(f"step {step} loss {3 - step / 10}", flush=True)
else:
    for _ in range(100):
        try:
            peer = socket.create_connection((address, port))
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    for step in range(24 if act != "endless" else 10**6):
        if act == "oom" and step == 9:
            raise MemoryError("no more on node 1")
        if act == "hang" and step == 9:
            time.sleep(600)
        if not peer.recv(1):
            raise ConnectionError("the peer is gone")
        peer.sendall(b".")
"""


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    here = {"address": "127.0.0.1", "interface": "lo", "prefix": ["nice"]}
    folder = tmp_path_factory.mktemp("nodes")
    settings = {"hosts": [here, here], "warm": False, "stall_s": STALL_S}
    with launcher_for(settings, folder) as opened:
        yield opened


@pytest.mark.parametrize(
    ("act", "status", "cause"),
    [
        ("train", Status.OK, None),
        ("endless", Status.OK, None),
        ("oom", Status.OOM, "MemoryError: no more on node 1"),
        pytest.param("hang", Status.TIMEOUT, "no progress for 6 s", marks=pytest.mark.long),
    ],
)
def test_a_command_runs_once_on_every_node_and_all_of_them_make_one_trial(
    two_nodes, tmp_path, act, status, cause
):
    (tmp_path / "train.py").write_text(MEETS)
    words = f"{{python}} train.py {{node_rank}} {{master_addr}} {{master_port}} {act}"
    platform = PLATFORM.model_copy(update={"devices_per_node": 1, "nodes": 2})
    handle = two_nodes.submit(sheet(f"nodes-{act}", words, folder=tmp_path, platform=platform))
    while (trial := two_nodes.poll(handle)) is None:
        time.sleep(0.02)
    assert trial.status is status
    assert (trial.cause or "").startswith(cause or "")
    if trial.ok:
        assert len(trial.hosts) == 2


def test_a_script_does_not_outlive_an_agent_that_is_killed(tmp_path):
    with launcher_for({"local": {"devices": 1}, "warm": False}, tmp_path) as opened:
        handle = opened.submit(sheet("orphan", act("hang")))
        while not (pids := [int(path.name.split("-")[1]) for path in handle.folder.glob("hangs-*")]):
            time.sleep(0.02)
        children = psutil.Process().children()
        agents = [each for each in children if "pretune.collector.agent" in each.cmdline()]
        max(agents, key=psutil.Process.create_time).kill()
        limit = time.monotonic() + 30
        while not all(map(gone, pids)):
            assert time.monotonic() < limit
            time.sleep(0.05)


@pytest.fixture
def in_a_trial(tmp_path, monkeypatch):
    """As the agent of node 0 would run it."""
    (tmp_path / "spec.json").write_text(sheet("here", act("train")).model_dump_json())
    monkeypatch.setattr(
        "os.environ", {**os.environ, "GROUP_RANK": "0", **environment(tmp_path / "spec.json")}
    )
    monkeypatch.setattr(script_program, "adopt_orphans", lambda: None)
    return tmp_path


def test_a_folder_that_takes_no_more_is_no_fault_of_the_configuration(in_a_trial):
    (in_a_trial / "output-0.log").mkdir()
    assert script_program.run(in_a_trial) == os.EX_IOERR


def test_a_node_that_sees_another_sheet_runs_nothing(in_a_trial):
    (in_a_trial / "spec.json").write_text(sheet("another", act("train")).model_dump_json())
    assert script_program.run(in_a_trial) == 1
    told = json.loads((in_a_trial / "rank-0.json").read_text())
    assert told["status"] == "invalid"
    assert "is not the sheet that this trial was started with" in told["cause"]
    assert not (in_a_trial / "output-0.log").exists()
