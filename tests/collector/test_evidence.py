"""Status and cause come from exit codes, exceptions and the kernel's counts, never from words in a log."""

import json

import pytest

from pretune.collector.evidence import Ending, judge, read_json, status_of, write_json
from pretune.datasets import Knobs, ModelSpec, Platform, Status, TrialSpec, Workload
from pretune.datasets.platform import Accelerator

RESULT = {
    "window_times_s": [0.5, 0.5],
    "warmup_windows": 2,
    "step_time_s": 0.5,
    "tokens_per_s": 512.0,
    "tokens_per_s_per_device": 256.0,
    "tokens_per_s_std_error": 1.0,
    "loss_first": 7.0,
    "loss_last": 6.0,
    "peak_memory_device_bytes": 1000,
    "hosts": ["a", "a"],
}

SPEC = TrialSpec(
    trial_id="t",
    workload=Workload(
        model=ModelSpec(name="m", layers=1, hidden_size=8, heads=1, vocabulary=16),
        sequence_length=8,
        global_batch_tokens=256,
    ),
    platform=Platform(name="p", accelerator=Accelerator(name="cpu"), devices_per_node=2, backend="gloo"),
    knobs=Knobs(micro_batch=1),
)


def ending(**changes):
    return Ending(began=1.8e9, wall_s=9.0, **{"returncodes": {0: 0, 1: 0}, "warm": True, **changes})


def rank(folder, number, status, exception="RuntimeError", time=1.0):
    record = {
        "rank": number,
        "status": status,
        "exception": exception,
        "message": f"{exception}\nmore",
        "time": time,
    }
    write_json(folder / f"rank-{number}.json", record)


def test_a_measured_trial_is_ok(tmp_path):
    write_json(tmp_path / "result.json", RESULT)
    assert status_of(tmp_path, ending()) == (Status.OK, None)


def test_exit_code_zero_without_a_measurement_is_no_success(tmp_path):
    status, cause = status_of(tmp_path, ending())
    assert status is Status.CRASH
    assert "none measured" in cause


def test_the_word_error_in_a_log_is_nothing(tmp_path):
    write_json(tmp_path / "result.json", RESULT)
    (tmp_path / "rank-0.log").write_text("ERROR: CUDA out of memory. Traceback")
    assert status_of(tmp_path, ending()) == (Status.OK, None)


def test_a_kill_that_the_kernel_counted_is_out_of_memory(tmp_path):
    rank(tmp_path, 0, "crash", "ConnectionResetError")  # its peer was gone
    status, cause = status_of(tmp_path, ending(returncodes={0: 1, 1: -9}, oom_kills=1))
    assert status is Status.OOM
    assert "rank 1" in cause


def test_a_kill_from_outside_is_a_crash(tmp_path):
    status, cause = status_of(tmp_path, ending(returncodes={0: 0, 1: -9}))
    assert (status, cause) == (Status.CRASH, "rank 1 was killed by SIGKILL")


def test_a_rank_that_broke_without_a_word_is_the_cause_not_the_one_that_lost_its_peer(tmp_path):
    rank(tmp_path, 0, "crash", "ConnectionResetError")
    codes = {0: 1, 1: -11, 2: -15}
    status, cause = status_of(tmp_path, ending(returncodes=codes, killed_ranks=[2]))
    assert (status, cause) == (Status.CRASH, "rank 1 was killed by SIGSEGV")


@pytest.mark.parametrize(("code", "ours"), [(-9, [0]), (-6, [])])
def test_a_rank_that_was_ended_or_aborted_after_an_exception_is_not_its_cause(tmp_path, code, ours):
    rank(tmp_path, 1, "crash", "KeyError")
    status, cause = status_of(tmp_path, ending(returncodes={0: code, 1: 1}, killed_ranks=ours))
    assert (status, cause) == (Status.CRASH, "rank 1: KeyError: KeyError")


@pytest.mark.parametrize("kills", [0, 1])
def test_a_rank_that_we_killed_after_another_failed_is_not_the_cause(tmp_path, kills):
    codes = {0: -9, 1: 3}
    status, cause = status_of(tmp_path, ending(returncodes=codes, oom_kills=kills, killed_ranks=[0]))
    assert (status, cause) == (Status.CRASH, "rank 1 exited with code 3")


def test_what_we_killed_for_time_is_a_timeout_even_when_the_kernel_counts_kills(tmp_path):
    status, cause = status_of(
        tmp_path, ending(returncodes={0: -9, 1: -9}, oom_kills=2, killed_because="no progress for 120 s")
    )
    assert (status, cause) == (Status.TIMEOUT, "no progress for 120 s")


@pytest.mark.parametrize("told", ["oom", "diverged", "invalid"])
def test_the_telling_rank_is_the_cause_not_the_one_that_lost_its_peer(tmp_path, told):
    rank(tmp_path, 0, "crash", "ConnectionResetError", time=0.5)
    rank(tmp_path, 1, told, "Telling", time=1.0)
    status, cause = status_of(tmp_path, ending(returncodes={0: 1, 1: 1}))
    assert status == told
    assert cause == "rank 1: Telling: Telling"


@pytest.mark.parametrize(
    ("told", "status"), [("oom", Status.OOM), ("invalid", Status.INVALID), ("crash", Status.INTERRUPTED)]
)
def test_a_lost_host_explains_what_its_peers_say_but_not_what_the_configuration_did(tmp_path, told, status):
    rank(tmp_path, 0, told)
    lost = "node failure: host n2: its agent ended with code 1"
    judged = judge(SPEC, tmp_path, ending(returncodes={}, interrupted_because=lost, scheduler_job="slurm:7"))
    assert judged.status is status
    assert judged.scheduler_job == "slurm:7"
    assert (judged.cause == lost) is (status is Status.INTERRUPTED)


def test_a_failed_trial_has_no_throughput(tmp_path):
    write_json(tmp_path / "result.json", RESULT)
    good = judge(SPEC, tmp_path, ending())
    bad = judge(SPEC, tmp_path, ending(returncodes={0: 0, 1: 3}))
    assert good.tokens_per_s == 512.0
    assert bad.status is Status.CRASH
    assert bad.tokens_per_s is None
    assert bad.window_times_s == []
    assert bad.peak_memory_device_bytes == 1000


def test_a_failed_trial_keeps_what_its_ranks_could_still_write(tmp_path):
    for number, peak in ((0, 700), (1, 900)):
        told = {
            "rank": number,
            "status": "oom",
            "exception": "MemoryError",
            "message": "",
            "host": f"h{number}",
        }
        write_json(
            tmp_path / f"rank-{number}.json",
            told
            | {
                "peak_memory_device_bytes": peak,
                "peak_memory_reserved_bytes": None,
                "software": {"torch": "2"},
            },
        )
    trial = judge(SPEC, tmp_path, ending(returncodes={0: 1, 1: 1}))
    assert trial.status is Status.OOM
    assert trial.hosts == ["h0", "h1"]
    assert trial.peak_memory_device_bytes == 900
    assert trial.peak_memory_reserved_bytes is None
    assert trial.software == {"torch": "2"}


def test_a_json_file_that_was_cut_off_reads_as_absent(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"a": 1})[:-2])
    assert read_json(tmp_path / "x.json") is None
    assert read_json(tmp_path / "absent.json") is None


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", {"a": object()})
    assert list(tmp_path.iterdir()) == []


def test_an_ending_survives_the_file(tmp_path):
    ending(returncodes={0: 0, 1: -9}).save(tmp_path)
    assert Ending.load(tmp_path) == ending(returncodes={0: 0, 1: -9})
