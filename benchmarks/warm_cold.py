"""Does a warm trial measure what a cold one does? The same configurations, in pairs, in one run.

    python benchmarks/warm_cold.py [--pairs 6]

A cold trial starts its ranks through torchrun; a warm one forks them from a process that has
torch and DeepSpeed imported. The ratio is warm over cold throughput, with a 95 % t-interval
of the mean log ratio; memory is the peak beyond what the libraries take.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pretune.collector.detect import detect_platform
from pretune.collector.evidence import write_json
from pretune.collector.launchers.hosts import HostsLauncher, LocalLauncher
from pretune.datasets import Knobs, Measure, Trial, TrialSpec, TrialStore, Workload
from pretune.datasets.frameworks import framework
from pretune.datasets.presets import model
from pretune.tuner.verify import Measured, ratio

RESULTS = Path(__file__).resolve().parent / "results"
CONFIGURATIONS = (
    {"micro_batch": 4, "zero_stage": 0},
    {"micro_batch": 2, "zero_stage": 1, "activation_checkpointing": "full"},
)
WORKLOAD = Workload(model=model("gpt-tiny"), sequence_length=128, global_batch_tokens=1024, precision="fp32")


def run(launcher: HostsLauncher, spec: TrialSpec) -> Trial:
    handle = launcher.submit(spec)
    while (trial := launcher.poll(handle)) is None:
        time.sleep(0.05)
    return trial


def measured(pairs: int, folder: Path) -> list[Trial]:
    trials = []
    with (
        LocalLauncher(2, folder / "warm", warm=True) as warm,
        LocalLauncher(2, folder / "cold", warm=False) as cold,
    ):
        platform = detect_platform(warm)
        for number in range(pairs):
            for index, settings in enumerate(CONFIGURATIONS):
                knobs = framework("deepspeed").resolve(WORKLOAD, platform, Knobs(**settings))
                pair = [("warm", warm), ("cold", cold)][:: 1 if number % 2 == 0 else -1]
                for kind, launcher in pair:
                    trial_id = f"warm-cold-{index}-{number}-{kind}"
                    spec = TrialSpec(
                        trial_id=trial_id,
                        purpose="verify",
                        workload=WORKLOAD,
                        platform=platform,
                        knobs=knobs,
                        measure=Measure(max_seconds=4.0),
                    )
                    trials.append(run(launcher, spec))
                    print(trial_id, trials[-1].status, trials[-1].tokens_per_s, file=sys.stderr, flush=True)
    return trials


def compared(trials: list[Trial]) -> list[dict[str, Any]]:
    """Per configuration: warm over cold throughput with its interval, and both peaks of memory."""
    rows = []
    for index, settings in enumerate(CONFIGURATIONS):
        mine = [trial for trial in trials if trial.trial_id.startswith(f"warm-cold-{index}-")]
        warm, cold = ([t for t in mine if t.warm is flag] for flag in (True, False))
        found = ratio(Measured(warm[0].knobs, warm), Measured(cold[0].knobs, cold)).asdict()
        memory = {
            f"memory_{name}_mib": max(t.peak_memory_device_bytes or 0 for t in kind) / 2**20
            for name, kind in (("warm", warm), ("cold", cold))
        }
        wall = {
            f"wall_{name}_s": sum(t.wall_s or 0 for t in kind) / len(kind)
            for name, kind in (("warm", warm), ("cold", cold))
        }
        rows.append({"knobs": str(settings), **found, **memory, **wall})
    return rows


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("runs/warm_cold"))
    arguments = parser.parse_args()
    trials = measured(arguments.pairs, arguments.out)
    TrialStore(RESULTS / "warm_cold").append(trials)
    rows = compared(trials)
    write_json(RESULTS / "warm_cold.json", rows)
    table = Table(title="warm over cold throughput")
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=160).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
