"""``pretune record -- COMMAND``: the command does not notice, and its trial is in the store."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import psutil
import pytest

from pretune.datasets import Status, TrialStore

PROGRAM = Path(__file__).parents[1] / "collector" / "programs" / "prints_megatron.py"
PLATFORM = "name: pod\naccelerator: {name: cpu}\ndevices_per_node: 1\nbackend: gloo\n"
TRAINS = [sys.executable, str(PROGRAM)]


@pytest.fixture
def command(tmp_path):
    """``pretune record`` with a store and a platform, before the words of a command."""
    (tmp_path / "pod.yaml").write_text(PLATFORM)
    given = ["--store", str(tmp_path / "trials"), "--platform", str(tmp_path / "pod.yaml")]

    def made(*words, options=()):
        return [sys.executable, "-m", "pretune.cli", "record", *given, *options, "--", *map(str, words)]

    return made


@pytest.fixture
def record(command, tmp_path):
    """Run it to its end, with its temporary files in ``tmp``."""
    (tmp_path / "tmp").mkdir()

    def run(*words, options=(), environment=None, **more):
        given = {
            "env": {**os.environ, "TMPDIR": str(tmp_path / "tmp"), **(environment or {})},
            "timeout": 120,
        }
        return subprocess.run(command(*words, options=options), capture_output=True, **given | more)

    return run


def trials(tmp_path):
    return list(TrialStore(tmp_path / "trials").trials())


def started(command, *words):
    """Begun, and so far that it has printed a first word."""
    heeds = [
        "env",
        "--default-signal=INT",
        *command(*words),
    ]  # a shell's background jobs, as in CI, ignore it
    process = subprocess.Popen(heeds, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline()
    return process


def test_a_command_is_recorded_with_its_own_step_times_and_its_output_is_its_own(record, tmp_path):
    done = record(*TRAINS, 14, 0.1)
    took = json.loads(done.stderr.splitlines()[0])["took"]
    (trial,) = trials(tmp_path)
    assert (done.returncode, trial.status, trial.platform.name) == (0, Status.OK, "pod")
    assert trial.tokens_per_s == pytest.approx(128 * 12 / sum(took[2:]), rel=0.01)
    assert len(done.stdout.splitlines()) == 14 + 14  # arguments with their frame, and steps
    said = done.stderr.decode().splitlines()
    assert said[1:] == [
        f"pretune: recorded {trial.trial_id}: {trial.tokens_per_s:,.0f} tokens/s in {tmp_path / 'trials'}"
    ]
    assert list((tmp_path / "tmp").glob("pretune-record-*")) == []
    assert (trial.purpose, trial.warmup_windows) == ("history", 2)
    # half of each step computes, but for what the machine's other work takes away
    assert 0.01 < trial.counters["cpu_clock_s"] < 1.1 * sum(took[2:])
    assert trial.counters["cpu_clock_s_per_step"] == pytest.approx(trial.counters["cpu_clock_s"] / 12)
    assert "TrialRecorder" in trial.missing["torch_memory"]
    assert "steps" not in trial.missing


def test_bytes_and_exit_code_pass_unchanged_and_quickly(record):
    code = "import os, sys; w = os.write; n = 0\nwhile n < 10_000_000: n += w(1, bytes(range(256)) * 256)\n"
    code += "w(2, b'\\xff\\x00 no line end'); w(1, b'\\r\\ncut'); sys.exit(37)"
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True)
    done = record(sys.executable, "-c", code)
    assert done.returncode == 37
    assert done.stdout == plain.stdout
    assert done.stderr.startswith(plain.stderr)
    assert len(plain.stdout) > 10_000_000


def test_output_comes_at_once_and_input_is_the_callers(command):
    echo = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"
    with subprocess.Popen(
        command(sys.executable, "-c", echo),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        for word in (b"one\n", b"two\n"):
            process.stdin.write(word)
            process.stdin.flush()
            assert process.stdout.readline() == word.upper()


def test_a_terminal_stays_one_with_its_size_and_line_ends_are_not_doubled(command):
    tells = "import os; print(os.isatty(1), os.isatty(2), os.get_terminal_size(1).columns)"
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    process = subprocess.Popen(command(sys.executable, "-c", tells), stdout=theirs, stderr=theirs)
    assert process.wait(60) == 0
    assert os.read(ours, 10_000).startswith(b"True True 77\r\npretune: nothing is recorded")
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    ("end", "status", "cause"),
    [
        ("fail", Status.CRASH, "RuntimeError: cable fell out"),
        ("oom", Status.OOM, "torch.OutOfMemoryError: CUDA out of memory."),
    ],
)
def test_a_failure_is_a_trial_with_what_its_last_lines_say(record, tmp_path, end, status, cause):
    done = record(*TRAINS, 3, 0.02, end)
    (trial,) = trials(tmp_path)
    assert (done.returncode, trial.status, trial.cause) == (1, status, cause)
    assert trial.tokens_per_s is None
    assert trial.knobs.micro_batch == 2


def test_an_exception_after_the_last_step_is_no_failure_where_the_exit_code_is_0(record, tmp_path):
    assert record(*TRAINS, 8, 0.02, "teardown").returncode == 0
    (trial,) = trials(tmp_path)
    assert (trial.status, trial.cause) == (Status.OK, None)


def test_a_command_that_a_signal_kills_has_the_shells_exit_code_and_is_a_crash(record, tmp_path):
    kills = f"{' '.join(TRAINS)} 4 0.02; kill -SEGV $$"
    assert record("sh", "-c", kills).returncode == 128 + signal.SIGSEGV
    (trial,) = trials(tmp_path)
    assert (trial.status, trial.cause) == (Status.CRASH, "exits with return code = 139")


def alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # it has ended, and nobody has asked yet
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_whole_group_and_what_was_measured_stays(command, tmp_path, sent):
    stubborn = f"trap '' INT TERM; sleep 1000 & trap - INT TERM; exec {' '.join(TRAINS)} 8 0.02 wait"
    process = started(command, "bash", "-c", stubborn)
    while b"took" not in process.stderr.readline():
        pass
    group = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(sent)
    process.communicate(timeout=60)
    assert process.returncode == 128 + sent
    assert [each for each in group if alive(each)] == []
    (trial,) = trials(tmp_path)
    assert (trial.status, trial.cause) == (Status.OK, f"stopped by {sent.name}")
    assert trial.tokens_per_s > 0


def test_stopped_by_hand_before_a_step_is_no_trial(command, tmp_path):
    process = started(command, *TRAINS, 0, 0, "wait")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert said.splitlines()[-1].startswith(b"pretune: nothing is recorded: ")
    assert trials(tmp_path) == []


def test_a_command_that_handles_its_signal_has_its_own_exit_code(command):
    handles = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
    process = started(command, sys.executable, "-c", f"{handles}print(1, flush=True); time.sleep(60)")
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 5


def killed(command, *words, options=()):
    """What the guard says after pretune is killed behind the command's last step; its command is gone."""
    stubborn = f"(trap '' TERM; exec sleep 1000) & {' '.join(map(str, words))}"
    process = started(lambda *each: command(*each, options=options), "bash", "-c", stubborn)
    while b"took" not in process.stderr.readline():
        pass
    group = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    _, gone = process.communicate(timeout=60)
    psutil.wait_procs(group, timeout=10)
    assert [each for each in group if alive(each)] == []
    (said,) = [line for line in gone.decode().splitlines() if line.startswith("pretune: record was killed")]
    return said


def test_when_pretune_is_killed_its_command_ends_too_and_what_it_measured_is_recorded(command, tmp_path):
    said = killed(command, *TRAINS, 8, 0.05, "wait", options=["--log", str(tmp_path / "kept.log")])
    (trial,) = trials(tmp_path)
    assert (trial.status, trial.cause) == (Status.OK, "stopped by SIGKILL")
    assert said.endswith(
        f"recorded {trial.trial_id}: {trial.tokens_per_s:,.0f} tokens/s in {tmp_path / 'trials'}"
    )
    assert trial.tokens_per_s == pytest.approx(128 / 0.05, rel=0.5)
    assert (trial.platform.name, trial.counters) == ("pod", {})
    assert "killed" in trial.missing["counters"]
    assert trial.wall_s > 0.4
    assert "iteration        8/" in (tmp_path / "kept.log").read_text()


def test_when_pretune_is_killed_before_anything_was_measured_the_output_is_told_of(command, tmp_path):
    said = killed(command, "true;", "echo", "took", ">&2;", "echo", "begun;", "sleep", 60)
    assert "nothing is recorded" in said
    log = Path(said.rpartition(" ")[2])
    assert {"took", "begun"} < set(log.read_text().splitlines())
    assert trials(tmp_path) == []
    log.unlink()
    log.parent.rmdir()


@pytest.mark.parametrize(("word", "code"), [("nosuch-command", 127), ("/etc/passwd", 126)])
def test_what_cannot_be_started_is_one_line_and_the_shells_exit_code(record, tmp_path, word, code):
    done = record(word, options=["--log", str(tmp_path / "kept.log")])
    assert done.returncode == code
    assert not (tmp_path / "kept.log").exists()
    assert done.stderr.decode().startswith(f"pretune: record: {word}: ")
    assert len(done.stderr.splitlines()) == 1
    assert list((tmp_path / "tmp").glob("pretune-record-*")) == []


def test_what_nobody_understands_says_so_and_keeps_the_output(record, tmp_path):
    done = record("echo", "hello", options=["--json"])
    said = json.loads(done.stderr)
    assert (done.returncode, done.stdout) == (0, b"hello\n")
    assert said["reason"].startswith("no importer understands its output (deepspeed, megatron")
    assert (said["trials"], said["exit_code"]) == ([], 0)
    assert Path(said["log"]).read_text() == "hello\n"
    assert trials(tmp_path) == []


def test_a_failure_that_nobody_understands_is_a_trial_where_constants_tell_what_ran(record, tmp_path):
    lacking = record("false").stderr.decode()
    assert "state it under constants in --map" in lacking
    model = {"name": "mine", "layers": 2, "hidden_size": 8, "heads": 2, "vocabulary": 16}
    constants = {f"model.{name}": value for name, value in model.items()}
    constants |= {"workload.sequence_length": 8, "workload.global_batch_sequences": 4, "knob.micro_batch": 4}
    (tmp_path / "map.json").write_text(json.dumps({"constants": constants}))
    told = ["--map", str(tmp_path / "map.json"), "--log", str(tmp_path / "kept.log")]
    done = record("sh", "-c", "echo MemoryError: no room >&2; exit 3", options=told)
    (trial,) = trials(tmp_path)
    assert (done.returncode, trial.status, trial.framework) == (3, Status.OOM, "custom")
    assert trial.knobs.micro_batch == 4
    assert (tmp_path / "kept.log").read_text().startswith("MemoryError: no room\n")


def test_the_same_command_twice_is_two_trials(record, tmp_path):
    for _ in range(2):
        record("cat", PROGRAM.parents[2] / "datasets" / "importers" / "golden" / "megatron" / "core_0.12.log")
    first, second = trials(tmp_path)
    assert first.trial_id != second.trial_id
    assert first.tokens_per_s == second.tokens_per_s
    assert "whole command" in first.missing["steps"]  # its lines came all at once


def test_a_script_that_records_itself_is_recorded_once(record, tmp_path):
    script = f"""
import time
from pretune.collector import TrialRecorder
from pretune.datasets import Knobs, Measure, ModelSpec, Platform, Workload
model = ModelSpec(name="tiny", layers=1, hidden_size=16, heads=2, vocabulary=32)
with TrialRecorder(
    workload=Workload(model=model, sequence_length=8, global_batch_tokens=64),
    platform=Platform.from_yaml({str(tmp_path / "pod.yaml")!r}),
    knobs=Knobs(), measure=Measure(max_seconds=0.1), store={str(tmp_path / "trials")!r},
) as recorder:
    while recorder.step():
        time.sleep(0.002)
import runpy, sys
sys.argv = ["x", "8", "0.01"]
runpy.run_path({str(PROGRAM)!r}, run_name="__main__")
"""
    done = record(sys.executable, "-c", script, options=["--json"])
    (trial,) = trials(tmp_path)
    said = json.loads(done.stderr.splitlines()[-1])
    assert (said["recorded_by_command"], said["trials"], trial.source) == ([trial.trial_id], [], "pretune")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--format", "wandb"], "known: deepspeed, megatron"),
        (["--map", "nosuch.yaml"], "nosuch.yaml"),
        (["--log", "pod.yaml"], "name another log file"),
    ],
)
def test_wrong_input_is_one_line_before_the_command_begins(record, tmp_path, options, problem):
    done = record("touch", tmp_path / "begun", options=options, cwd=tmp_path)
    assert done.returncode == 2
    assert problem in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "begun").exists()


def test_a_store_that_cannot_be_written_costs_the_record_only(record, tmp_path):
    lost = f"rmdir {tmp_path / 'trials'}; touch {tmp_path / 'trials'}; exec {' '.join(TRAINS)} 8 0.02"
    done = record("sh", "-c", lost)
    assert done.returncode == 0
    assert b"pretune: nothing is recorded: " in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_stop_at_the_terminal_stops_the_command_until_it_goes_on(command):
    process = started(command, *TRAINS, 30, 0.05)
    (child,) = [
        each
        for each in psutil.Process(process.pid).children(recursive=True)
        if str(PROGRAM) in each.cmdline()
    ]
    process.send_signal(signal.SIGTSTP)
    deadline = time.monotonic() + 20
    while child.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
        time.sleep(0.02)
    assert child.status() == psutil.STATUS_STOPPED
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=60)
    assert process.returncode == 0


def launched(record, tmp_path, *words):
    """``prints_deepspeed.py`` on two ranks, by DeepSpeed's own launcher, of a model that only a map tells."""
    model = {"name": "mlp", "layers": 4, "hidden_size": 512, "heads": 1, "vocabulary": 64}
    constants = {f"model.{name}": value for name, value in model.items()} | {"workload.sequence_length": 64}
    (tmp_path / "map.json").write_text(json.dumps({"constants": constants}))
    (tmp_path / "pod.yaml").write_text(PLATFORM.replace("devices_per_node: 1", "devices_per_node: 2"))
    launch = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "2"]
    done = record(
        *launch,
        PROGRAM.with_name("prints_deepspeed.py"),
        *words,
        options=["--map", str(tmp_path / "map.json")],
        environment={"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        timeout=280,
    )
    (trial,) = trials(tmp_path)
    return done, trial


@pytest.mark.long
def test_a_deepspeed_launch_on_two_ranks_agrees_with_its_own_stopwatch(record, tmp_path):
    done, trial = launched(record, tmp_path, 40)
    assert done.returncode == 0
    (ends,) = [json.loads(line)["ends"] for line in done.stdout.splitlines() if line.startswith(b'{"ends"')]
    first, windows = len(ends) - len(trial.window_times_s), len(trial.window_times_s)
    assert trial.tokens_per_s == pytest.approx(1024 * windows / (ends[-1] - ends[first - 1]), rel=0.05)
    assert (trial.status, trial.workload.precision, trial.knobs.zero_stage) == (Status.OK, "fp32", 1)
    assert (trial.knobs.micro_batch, trial.knobs.accumulation, trial.knobs.dp) == (4, 2, 2)
    assert trial.counters["cpu_clock_s_per_step"] > 0
    assert "steps" not in trial.missing


@pytest.mark.long
def test_a_deepspeed_launch_that_runs_out_of_memory_is_recorded_as_that(record, tmp_path):
    done, trial = launched(record, tmp_path, 40, "oom")
    assert done.returncode == 1
    assert (trial.status, trial.knobs.zero_stage) == (Status.OOM, 1)
    assert "DefaultCPUAllocator: can't allocate memory" in trial.cause
