"""Agents and launchers with real processes: exit codes arrive, and nothing outlives its session."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from pretune.collector.agent import Run, _torchrun_ended, kill_ranks
from pretune.collector.evidence import Ending, status_of, write_json
from pretune.collector.launchers import Handle, launcher_for
from pretune.collector.launchers.agents import Host
from pretune.collector.launchers.hosts import HostsLauncher, LocalLauncher
from pretune.datasets import Accelerator, Knobs, ModelSpec, Platform, Status, TrialSpec, Workload
from pretune.errors import InputError, LaunchError

PROGRAM = "programs.sleeper"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


def behave(root, name, **ranks):
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "behave.json").write_text(
        json.dumps({key.removeprefix("rank"): value for key, value in ranks.items()})
    )
    return folder


def pids(folder):
    return [int(path.read_text().split()[0]) for path in folder.glob("started-*")]


def wait_until(condition, seconds=60.0):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if condition():
            return True
        time.sleep(0.05)
    return False


def ended(launcher, running):
    while (ending := launcher._ending(running, 60.0)) is None:
        time.sleep(0.05)
    return ending


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.fixture(scope="module", params=["warm", "cold"])
def local(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        with LocalLauncher(2, folder, warm=request.param == "warm") as launcher:
            yield launcher


@pytest.mark.slow
class TestLocal:
    def test_every_rank_runs_with_the_environment_of_torchrun(self, local):
        behave(local.folder, "fine")
        folder = local.run("fine", PROGRAM)
        assert {path.read_text().split()[1] for path in folder.glob("started-*")} == {"2"}
        assert len(pids(folder)) == 2

    def test_an_exit_code_of_one_rank_is_reported_for_that_rank(self, local):
        behave(local.folder, "one-fails", rank1="abort")
        with pytest.raises(LaunchError, match=r"1: 7"):
            local.run("one-fails", PROGRAM)

    def test_a_killed_rank_ends_the_others(self, local):
        folder = behave(local.folder, "one-dies", rank0="die", rank1="sleep")
        with pytest.raises(LaunchError, match=r"0: -9"):
            local.run("one-dies", PROGRAM)
        assert all(gone(pid) for pid in pids(folder))

    def test_the_rank_that_died_is_the_cause_not_those_that_were_ended_for_it(self, local):
        folder = behave(local.folder, "higher-dies", rank0="sleep", rank1="break")
        running = local._start("higher-dies", folder, PROGRAM, {})
        ending = ended(local, running)
        del local._running["higher-dies"]
        assert ending.killed_ranks == [0]
        assert status_of(folder, ending) == (Status.CRASH, "rank 1 was killed by SIGSEGV")

    def test_what_takes_too_long_is_killed_with_all_its_ranks(self, local):
        folder = behave(local.folder, "too-long", rank0="sleep", rank1="sleep")
        with pytest.raises(LaunchError, match="limit of"):
            local.run("too-long", PROGRAM, timeout_s=12.0)
        assert len(pids(folder)) == 2
        assert all(gone(pid) for pid in pids(folder))


def test_a_cold_node_that_was_ended_for_another_is_not_out_of_memory(tmp_path):
    """Its torchrun was killed before it could write how its ranks ended."""
    environment = {"GROUP_RANK": "1"}
    run = Run({"run": "t", "folder": str(tmp_path), "ranks": 2, "env": environment}, {-1: 2**22 + 1})
    kill_ranks(run)
    _torchrun_ended(run, -9)
    ending = Ending(1.8e9, 9.0, {0: 7, 1: 1, **run.returncodes}, oom_kills=1, killed_ranks=run.killed)
    assert status_of(tmp_path, ending) == (Status.CRASH, "rank 0 exited with code 7")


@pytest.mark.slow
def test_ranks_that_report_no_progress_are_killed_long_before_their_limit(tmp_path):
    folder = behave(tmp_path, "stalls", rank0="sleep", rank1="sleep")
    with LocalLauncher(2, tmp_path, warm=True, stall_s=4.0) as launcher:
        with pytest.raises(LaunchError, match="no progress for"):
            launcher.run("stalls", PROGRAM, timeout_s=600.0)
        assert len(pids(folder)) == 2
        assert all(gone(pid) for pid in pids(folder))


@pytest.mark.slow
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_no_rank_outlives_a_session_that_is_killed(tmp_path, warm):
    folder = behave(tmp_path, "orphans", rank0="sleep", rank1="sleep")
    script = textwrap.dedent(f"""
        from pretune.collector.launchers.hosts import LocalLauncher
        LocalLauncher(2, {str(tmp_path)!r}, warm={warm}).run("orphans", {PROGRAM!r}, timeout_s=600)
    """)
    session = subprocess.Popen([sys.executable, "-c", script])
    assert wait_until(lambda: len(pids(folder)) == 2)
    family = [process.pid for process in psutil.Process(session.pid).children(recursive=True)]
    assert len(family) >= 3  # the agent and two ranks
    session.send_signal(signal.SIGKILL)
    session.wait()
    assert wait_until(lambda: all(gone(pid) for pid in family), 15.0)


def test_a_prefix_that_does_not_exist_is_named(tmp_path):
    launcher = HostsLauncher([Host(prefix=("no-such-command",))], tmp_path)
    with pytest.raises(LaunchError, match="cannot run no-such-command"):
        launcher.run("x", PROGRAM)


@pytest.mark.slow
def test_what_a_user_sets_for_the_ranks_arrives_where_no_environment_is_handed_on(tmp_path, monkeypatch):
    folder = behave(tmp_path / "runs", "far", rank0="tell")
    for name, value in {"NCCL_DEBUG": "WARN", "PRETUNE_TOKENS": "ids.npy", "MINE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "the launcher's own")
    far = Host(
        interface="eth7",
        prefix=("env", "-i", *(f"{name}={os.environ[name]}" for name in ("PATH", "PYTHONPATH"))),
    )
    with HostsLauncher([far], tmp_path / "runs", backend="nccl") as launcher:
        launcher.run("far", PROGRAM)
    found = json.loads((folder / "environment-0").read_text())
    assert (found["NCCL_DEBUG"], found["NCCL_SOCKET_IFNAME"]) == ("WARN", "eth7")
    assert found["PRETUNE_TOKENS"] == str(Path("ids.npy").resolve())
    assert "MINE" not in found


def test_a_folder_that_a_host_does_not_see_is_said_and_no_trial(tmp_path):
    with HostsLauncher([Host()], tmp_path / "runs", backend="nccl") as launcher:
        begun = time.monotonic()
        running = launcher._start("x", tmp_path / "elsewhere", PROGRAM, {})
        with pytest.raises(LaunchError, match=r"host 127\.0\.0\.1: .*elsewhere is not there; --out must be"):
            ended(launcher, running)
        launcher._wait(running)
        assert time.monotonic() - begun < 15


def test_an_agent_that_ends_at_once_is_an_error_that_names_its_log(tmp_path):
    launcher = HostsLauncher([Host(prefix=("false",))], tmp_path)
    with pytest.raises(LaunchError, match=r"ended with code 1; see .*agent-0\.log"):
        launcher.run("x", PROGRAM)


def sheet(**knobs):
    model = ModelSpec(name="m", layers=1, hidden_size=8, heads=1, vocabulary=16)
    return TrialSpec(
        trial_id="t",
        workload=Workload(model=model, sequence_length=8, global_batch_tokens=256),
        platform=Platform(name="p", accelerator=Accelerator(name="cpu"), devices_per_node=2, backend="gloo"),
        knobs=Knobs(micro_batch=1, **knobs),
    )


def test_a_host_that_is_lost_interrupts_the_trial_and_is_connected_anew_for_the_next(tmp_path):
    folder = behave(tmp_path, "t", rank0="sleep", rank1="sleep")
    with HostsLauncher([Host(ranks=2)], tmp_path, backend="nccl") as launcher:
        launcher._start("t", folder, PROGRAM, {})
        agent = max(  # the newest: launchers of other tests may have agents of theirs
            (child for child in psutil.Process().children() if "agent" in " ".join(child.cmdline())),
            key=psutil.Process.create_time,
        ).pid
        os.kill(agent, signal.SIGKILL)
        assert wait_until(lambda: launcher._agents[0].is_gone())
        trial = launcher.poll(Handle(sheet(), folder))
        assert trial.status is Status.INTERRUPTED
        assert trial.cause.startswith("host 127.0.0.1: its agent ended with code -9; see ")
        assert launcher.recover(sheet()) == trial  # and so it is after a kill
        launcher._start("t", folder, PROGRAM, {})
        assert not launcher._agents[0].is_gone()
    assert wait_until(lambda: all(gone(pid) for pid in pids(folder)), 15.0)


def test_a_trial_whose_ranks_could_not_write_is_not_judged(tmp_path, monkeypatch):
    launcher = HostsLauncher([Host(ranks=2)], tmp_path)
    ending = Ending(began=1.8e9, wall_s=9.0, returncodes={0: os.EX_IOERR, 1: 1})
    monkeypatch.setattr(launcher, "_ending", lambda *_: ending)
    launcher._running["t"] = None
    handle = Handle(sheet(), tmp_path)
    with pytest.raises(LaunchError, match="could not write there; make room"):
        launcher.poll(handle)
    assert Ending.load(tmp_path) is None  # started again, it runs again
    launcher.kill(handle)  # waits for nothing


def test_what_was_measured_before_its_session_was_killed_is_not_run_again(tmp_path):
    launcher = HostsLauncher([Host(ranks=2)], tmp_path, warm=True)
    spec = sheet()
    folder = tmp_path / "t"
    folder.mkdir()
    write_json(folder / "spec.json", spec.model_dump(mode="json"))
    assert launcher.recover(spec) is None  # begun, but nothing says how it ended
    write_json(folder / "result.json", {"window_times_s": [0.5], "tokens_per_s_per_device": 256.0})
    trial = launcher.recover(spec)
    assert (trial.status, trial.tokens_per_s_per_device, trial.warm) == (Status.OK, 256.0, True)
    assert launcher.recover(sheet(**{"env.X": "1"})).warm is False  # read at import: such trials start cold
    write_json(folder / "rank-1.json", {"rank": 1, "status": "crash", "exception": "OSError", "message": "x"})
    assert launcher.recover(spec).status is Status.CRASH  # it broke after it had measured


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "exactly one of local, hosts, slurm, ray, replay"),
        ({"local": {"devices": 2}, "hosts": []}, "exactly one of"),
        ({"local": {"devices": 0}}, r"launcher: local\.devices: .*greater than 0, got 0"),
        ({"local": {"devices": 2, "warm": True}}, r"launcher: local\.warm: is no field here"),
        ({"local": {"devices": 2}, "wram": True}, "launcher: wram: is no field here"),
        ({"local": {"devices": 2}, "stall_s": "5m"}, "launcher: stall_s: .*valid number"),
        ({"replay": "trials", "warm": True}, "launcher: warm: is no field here"),
        ({"hosts": []}, "launcher: hosts: .*at least 1 item"),
        ({"hosts": [{"adress": "a"}]}, r"launcher: hosts\.0\.adress"),
        ({"hosts": [{"ranks": 1}, {"ranks": 2}]}, "same number of ranks"),
        ({"hosts": [{"address": "10.0.0.1"}, {}]}, "several hosts need an address each"),
    ],
)
def test_wrong_settings_are_named(tmp_path, settings, message):
    with pytest.raises(InputError, match=message):
        launcher_for(settings, tmp_path)
