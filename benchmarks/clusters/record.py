"""Record the history that ships: every cluster of cluster.py, two models each, one campaign after another.

    sudo python benchmarks/clusters/record.py [--only loopback ...] [--out runs/history]

Nothing else may run on the machine meanwhile. A killed recording goes on where it was. At
the end the trials of each cluster become one Parquet file under src/pretune/datasets/history,
and the cluster, as it was probed, a YAML file beside this one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from pretune.collector.detect import detect_platform
from pretune.collector.launchers import launcher_for
from pretune.collector.launchers.hosts import HostsLauncher
from pretune.datasets import Platform, TrialStore
from pretune.datasets.presets import model as model_preset
from pretune.mlflow_config.none import NoTracker
from pretune.tuner.campaign import Campaign
from pretune.tuner.job import JobSpec

HERE = Path(__file__).resolve().parent
SHIPPED = HERE.parents[1] / "src" / "pretune" / "datasets" / "history"
MEMORY_LIMIT_MIB = 250
# (model, global batch in tokens, configurations); the first is what the live benchmark tunes
CAMPAIGNS = (("gpt-tiny", 1024, 40), ("llama-mini", 1024, 20))

MEASURE = {"max_warmup_windows": 3, "min_windows": 4, "max_seconds": 2.5, "timeout_s": 120.0}
# steps of seconds, which the shaped link makes steady
SLOW_MEASURE = {"min_warmup_windows": 1, "max_warmup_windows": 2, "min_windows": 3}

LOCAL: dict[str, Any] = {"address": "127.0.0.1", "interface": "lo", "ranks": 2}
TWO_HOSTS = [
    {"address": f"10.77.0.{n}", "interface": f"veth-{ns}", "prefix": ["ip", "netns", "exec", f"pretune-{ns}"]}
    for n, ns in ((1, "a"), (2, "b"))
]
HALF = "/sys/fs/cgroup/cpu/pretune-{local_rank}"
CAPPED = "/sys/fs/cgroup/memory/pretune-{local_rank}"
# name -> (what cluster.py is to put up, launcher)
CLUSTERS: dict[str, tuple[str | None, list[dict[str, Any]]]] = {
    "cpu-loopback": (None, [LOCAL]),
    "cpu-1gbit": ("1gbit", TWO_HOSTS),
    "cpu-200mbit": ("200mbit", TWO_HOSTS),
    "cpu-capped": ("memory", [{**LOCAL, "rank_cgroups": [CAPPED]}]),
    "cpu-half": ("half-cpu", [{**LOCAL, "rank_cgroups": [HALF]}]),
}


def cluster(*arguments: str) -> None:
    subprocess.run([sys.executable, str(HERE / "cluster.py"), *arguments], check=True)


def bring_up(name: str) -> dict[str, Any]:
    """Put the cluster up; returns the ``launcher`` field of a job on it."""
    kind, hosts = CLUSTERS[name]
    limit = ["--limit-mib", str(MEMORY_LIMIT_MIB)] if kind == "memory" else []
    cluster(*(["up", kind, *limit] if kind else ["down"]))
    return {"hosts": hosts, "warm": True}


def probed(name: str, launcher: dict[str, Any], folder: Path) -> Platform:
    """The platform as its file says, else probed now and written there."""
    path = HERE / f"{name}.yaml"
    if path.exists():
        return Platform.from_yaml(path)
    with launcher_for(launcher, folder) as running:
        assert isinstance(running, HostsLauncher)
        platform = detect_platform(running).model_copy(update={"name": name})
    if CLUSTERS[name][0] == "memory":
        capped = platform.accelerator.model_copy(update={"memory_bytes": MEMORY_LIMIT_MIB << 20})
        platform = platform.model_copy(update={"accelerator": capped})
    path.write_text(yaml.safe_dump(platform.model_dump(mode="json"), sort_keys=False))
    return platform


def job(name: str, model: str, tokens: int, platform: Platform, launcher: dict[str, Any]) -> JobSpec:
    settings = {
        "name": f"{name}-{model}",
        "model": model_preset(model),
        "sequence_length": 128,
        "global_batch_tokens": tokens,
        "precision": "fp32",
        "platform": platform,
        "launcher": launcher,
        "measure": MEASURE | (SLOW_MEASURE if name == "cpu-200mbit" else {}),
        **yaml.safe_load((HERE / "space.yaml").read_text()),
    }
    return JobSpec.from_mapping(settings, name)


def record(name: str, out: Path) -> list[TrialStore]:
    launcher = bring_up(name)
    stores = []
    for model, tokens, trials in CAMPAIGNS:
        platform = probed(name, launcher, out / name / "probe")
        folder = out / name / model
        stores.append(TrialStore(folder / "trials"))
        if (folder / "done.json").exists():
            continue
        answer = Campaign(job(name, model, tokens, platform, launcher), folder, trials, NoTracker()).run()
        (folder / "done.json").write_text(json.dumps(asdict(answer)))
        print(json.dumps(asdict(answer)), flush=True)
    return stores


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--only", nargs="+", choices=list(CLUSTERS), default=list(CLUSTERS))
    parser.add_argument("--out", type=Path, default=Path("runs/history"))
    arguments = parser.parse_args()
    for name in arguments.only:
        stores = record(name, arguments.out)
        TrialStore(SHIPPED).append([trial for store in stores for trial in store.trials()])
    cluster("down")
    return 0


if __name__ == "__main__":
    sys.exit(main())
