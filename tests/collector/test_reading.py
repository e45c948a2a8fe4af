"""What the output of a command and its exit code make of each other."""

import signal
from pathlib import Path

import pytest

from pretune.collector.passthrough import Ended
from pretune.collector.reading import Reading, read_log
from pretune.collector.settling import last_words
from pretune.datasets import Accelerator, Platform, Status
from pretune.datasets.importers.base import SetAside
from pretune.datasets.importers.complete import Given

GOLDEN = Path(__file__).parents[1] / "datasets" / "importers" / "golden"
HERE = Given(Platform(name="pod", accelerator=Accelerator(name="a100-sxm-80gb"), devices_per_node=8))
WELL = Ended(0)
READING = Reading("this time", Given(), HERE)


@pytest.fixture
def read(tmp_path):
    """The trials of golden logs, one after the other, of a command that ended so."""

    def outcome(*names, ended=WELL, kills=0, format=None, reading=READING):
        log = tmp_path / "output.log"
        words = last_words(ended, kills)
        log.write_text(
            "".join((GOLDEN / name).read_text() for name in names) + (f"{words}\n" if words else "")
        )
        found = read_log(log, format, ended, reading)
        return found if isinstance(found, SetAside) else [trial for _, trial in found]

    return outcome


def test_every_run_of_a_log_is_a_trial_and_only_the_last_has_the_commands_end(read):
    first, second, last = read("megatron/megatron_deepspeed_2022_two_runs.log", ended=Ended(3))
    assert [each.status for each in (first, second, last)] == [Status.OK, Status.OK, Status.CRASH]
    assert last.cause == "exits with return code = 3"
    assert len({each.trial_id for each in (first, second, last)}) == 3


def test_the_kernel_s_kill_for_memory_says_more_than_an_exit_code(read):
    (trial,) = read("megatron/core_0.12.log", ended=Ended(137), kills=2)
    assert (trial.status, trial.cause) == (Status.OOM, "pretune record: Detected 2 oom_kill event(s)")


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_what_was_measured_before_somebody_stopped_it_stands(read, sent):
    (trial,) = read("megatron/core_0.12.log", ended=Ended(128 + sent, sent))
    (whole,) = read("megatron/core_0.12.log")
    assert (trial.status, trial.cause, trial.tokens_per_s) == (
        Status.OK,
        f"stopped by {sent.name}",
        whole.tokens_per_s,
    )


def test_a_signal_that_the_command_outlived_did_not_stop_it(read):
    (trial,) = read("megatron/core_0.12.log", ended=Ended(0, signal.SIGTERM))
    assert (trial.status, trial.cause) == (Status.OK, None)


def test_a_failure_that_the_log_names_stands_whoever_stopped_it(read):
    trials = read("torchtitan/2025_oom.log", ended=Ended(143, signal.SIGTERM))
    assert trials[-1].status is Status.OOM


def test_what_two_formats_understand_is_for_the_user_to_say(read):
    logs = ("megatron/core_0.12.log", "torchtitan/2025_two_ranks.log")
    assert read(*logs).reason == "megatron and torchtitan understand its output; name one by --format"
    (trial,) = read(*logs, format="megatron")
    assert trial.framework == "megatron"


def test_a_log_that_names_its_accelerator_needs_no_platform(read):
    (trial,) = read("torchtitan/2025_two_ranks.log")
    assert trial.platform.accelerator.name != HERE.platform.accelerator.name


def test_mlperf_s_log_of_a_command_that_failed_has_no_throughput(read):
    accelerator = Accelerator(name="Example X100 80GB")
    shape = {"layers": 96, "hidden_size": 12288, "heads": 96, "vocabulary": 51200}
    constants = {f"model.{name}": value for name, value in shape.items()} | {"workload.sequence_length": 2048}
    platform = Platform(name="pod", accelerator=accelerator, devices_per_node=8, nodes=8)
    given = Given(platform, constants)
    told = {"reading": Reading("this time", given, given)}
    (well,), (failed,) = (read("mlperf/v4.0_gpt3.txt", ended=Ended(code), **told) for code in (0, 1))
    assert (well.status, failed.status) == (Status.OK, Status.CRASH)
    assert failed.tokens_per_s is None


def test_a_quiet_deepspeed_is_told_how_to_speak(tmp_path):
    (tmp_path / "output.log").write_text("DeepSpeed deepspeed_shm_comm_op built successfully\n")
    found = read_log(tmp_path / "output.log", None, WELL, READING)
    assert found.reason.endswith('DeepSpeed needs "log_level": "info" in its configuration')
