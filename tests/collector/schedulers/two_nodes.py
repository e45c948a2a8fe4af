"""What the tests of every scheduler run on its two nodes, and what they see of it."""

import json
import time

from pretune.collector.evidence import read_json
from pretune.datasets import Accelerator, Knobs, Measure, ModelSpec, Platform, TrialSpec, Workload
from pretune.datasets.frameworks import framework

MODEL = ModelSpec(name="m", layers=2, hidden_size=64, heads=2, vocabulary=128, max_positions=64)
WORKLOAD = Workload(model=MODEL, sequence_length=32, global_batch_tokens=256, precision="fp32")
TWO = Platform(
    name="two-nodes", accelerator=Accelerator(name="cpu"), devices_per_node=1, nodes=2, backend="gloo"
)
NODE_NAMES = ("SLURM_JOB_ID", "SLURMD_NODENAME", "RAY_RAYLET_PID")  # what a scheduler tells a rank


def sheet(trial_id, platform=TWO, **measure):
    knobs = framework("deepspeed").resolve(WORKLOAD, platform, Knobs(micro_batch=2, zero_stage=1))
    measure = Measure(max_warmup_windows=2, **({"max_windows": 6} | measure))
    return TrialSpec(trial_id=trial_id, workload=WORKLOAD, platform=platform, knobs=knobs, measure=measure)


def endless(trial_id, platform=TWO):
    """A trial that measures until it is interrupted."""
    return sheet(trial_id, platform, min_windows=6, max_windows=10**6, max_seconds=600.0, timeout_s=900.0)


def ended(launcher, handle):
    while (trial := launcher.poll(handle)) is None:
        time.sleep(0.05)
    told = f"{trial.step_time_s:.4f} s a step" if trial.ok else trial.cause
    print(f"{trial.trial_id} in {trial.scheduler_job}: {trial.status}: {told}")  # pytest -rP shows it
    return trial


def wait_until(condition, seconds=120.0):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"did not come true within {seconds:g} s")


def is_measuring(handle):
    return (read_json(handle.folder / "progress.json") or {}).get("windows", 0) >= 3


def ranks_tell(launcher, name="tell", ranks=2):
    """The environment of every rank of a program that reports its own."""
    folder = launcher.folder / name
    folder.mkdir(parents=True)
    (folder / "behave.json").write_text(json.dumps({str(rank): "tell" for rank in range(ranks)}))
    launcher.run(name, "programs.sleeper")
    told = [read_json(folder / f"environment-{rank}") for rank in range(ranks)]
    for rank, environment in enumerate(told):
        named = {name: environment[name] for name in NODE_NAMES if name in environment}
        print(f"rank {rank} of {len(told)}: {named}")
    return told
