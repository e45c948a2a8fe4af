"""What the page on schedulers and the examples tell to write is taken as it stands."""

import re
from pathlib import Path

import pytest
import yaml

from pretune.collector.launchers import launcher_for
from pretune.collector.launchers.ray import RaySettings
from pretune.collector.launchers.slurm import SlurmLauncher, SlurmSettings
from pretune.errors import InputError, LaunchError
from pretune.tuner.job import JobSpec

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "schedulers.md").read_text(encoding="utf-8")
DOCUMENTS = [
    document for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S) for document in yaml.safe_load_all(text)
]
LAUNCHERS = [document["launcher"] for document in DOCUMENTS if "launcher" in document]


@pytest.mark.parametrize("settings", LAUNCHERS, ids=lambda settings: "-".join(settings))
def test_each_launcher_of_the_page_is_one(tmp_path, settings):
    if "ray" in settings:
        pytest.importorskip("ray", reason="Ray is not installed")
    if settings.get("local") == {"devices": "auto"}:
        settings = {"local": {"devices": 2}}
    launcher = launcher_for(settings, tmp_path, "nccl")
    assert launcher.reach.backend == "nccl"


def test_the_page_shows_every_launcher_and_both_ways_on_kubernetes():
    assert {kind for settings in LAUNCHERS for kind in settings} == {"local", "hosts", "slurm", "ray"}
    assert [each["kind"] for each in DOCUMENTS if "kind" in each] == ["RayJob", "Service", "Job"]


@pytest.mark.parametrize("kind", ["slurm", "ray"])
def test_the_examples_are_jobs_whose_launchers_start_as_many_ranks_as_they_say(tmp_path, kind):
    if kind == "ray":
        pytest.importorskip("ray", reason="Ray is not installed")
    job = JobSpec.from_yaml(ROOT / "examples" / f"{kind}.yaml")
    reach = launcher_for(job.launcher, tmp_path, "nccl").reach
    assert (reach.nodes, reach.ranks) == (2, 8)
    if job.platform != "auto":
        assert (job.platform.nodes, job.platform.devices_per_node) == (2, 8)
        assert len(job.candidates(job.platform)) > 10


def test_what_the_job_says_of_an_allocation_is_asked_for():
    settings = SlurmSettings(
        nodes=2, ranks=8, partition="gpu", gpus_per_node=8, minutes=90, salloc=("--exclusive",)
    )
    asked = " ".join(settings.asking())
    assert asked == (
        "salloc --job-name=pretune --partition=gpu --gpus-per-node=8 --time=90 --nodes=2 --ntasks-per-node=8 "
        "--exclusive"
    )


def test_a_container_comes_between_the_step_and_the_agent():
    step = SlurmSettings(nodes=2, ranks=8, srun=("--mpi=none",), container=("apptainer", "exec", "i")).step(
        "7", "n1"
    )
    assert step[:3] == ("srun", "--jobid=7", "--nodelist=n1")
    assert step[-4:] == ("--mpi=none", "apptainer", "exec", "i")


def test_ranks_with_gpus_reserve_them():
    assert RaySettings(nodes=2, ranks=8).bundle("nccl") == {"CPU": 8.0, "GPU": 8.0}
    assert RaySettings(nodes=2, ranks=2, cpus=16).bundle("gloo") == {"CPU": 16.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slurm": {"nodes": 2}}, r"launcher: slurm\.ranks: "),
        ({"slurm": {"nodes": 2, "ranks": 8, "time": "4:00"}}, r"launcher: slurm\.time: is no field here"),
        (
            {"slurm": {"nodes": 2, "ranks": 8, "hold": "day"}},
            r"launcher: slurm\.hold: .*'trial'",
        ),
        ({"ray": {"nodes": 0, "ranks": 8}}, r"launcher: ray\.nodes: .*greater than 0"),
    ],
)
def test_wrong_settings_are_named(tmp_path, settings, message):
    with pytest.raises(InputError, match=message):
        launcher_for(settings, tmp_path)


def test_without_slurm_s_commands_it_is_said_where_to_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(LaunchError, match="no salloc here; run pretune where Slurm's commands are"):
        SlurmLauncher(SlurmSettings(nodes=1, ranks=1), tmp_path)._connect()
