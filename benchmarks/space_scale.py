"""A space of a million legal configurations: enumerated, featurised and ranked.

    python benchmarks/space_scale.py [--json]

DeepSpeed on 16 nodes of 8 made-up accelerators; ranked by what the shipped history says. Peak memory is the
process's own, Python and libraries included.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path

from pretune.datasets import Accelerator, Link, PeakFlops, Platform, Workload
from pretune.datasets.presets import model
from pretune.datasets.store import shipped_history
from pretune.tuner import Space, Tuner

RESULTS = Path(__file__).parent / "results" / "space_scale.json"
CLUSTER = Platform(
    name="made-up",
    accelerator=Accelerator(
        name="made-up-80gb",
        peak_flops_per_s=PeakFlops(bf16=1e15),
        memory_bytes=80 * 2**30,
        memory_bandwidth_bytes_per_s=3e12,
    ),
    devices_per_node=8,
    nodes=16,
    intra_node=Link(bandwidth_bytes_per_s=4e11),
    inter_node=Link(bandwidth_bytes_per_s=5e10),
)
SPACE = Space(
    knobs={
        "micro_batch": [1, 2, 4, 8, 16],
        "zero_stage": [1, 3],
        "offload_optimizer": ["none", "cpu"],
        "reduce_bucket_size": [n * 10**7 for n in range(1, 19)],
        "overlap_comm": [False, True],
        "reduce_scatter": [False, True],
        "use_multi_rank_bucket_allreduce": [False, True],
        "contiguous_gradients": [False, True],
        "stage3_prefetch_bucket_size": [n * 10**7 for n in (1, 2, 5, 10, 20)],
        "stage3_param_persistence_threshold": [0, 10**4, 10**5, 10**6],
        "stage3_max_live_parameters": [10**8, 10**9, 3 * 10**9],
        "activation_checkpointing": ["none", "selective", "full"],
        "attention": ["sdpa", "eager"],
        "compile": [False, True],
    }
)


def measured() -> dict[str, float]:
    workload = Workload(
        model=model("llama-2-7b"), sequence_length=4096, global_batch_tokens=2048 * 4096, precision="bf16"
    )
    begun = time.perf_counter()
    candidates = SPACE.candidates(workload, CLUSTER)
    enumerated = time.perf_counter()
    tuner = Tuner.over(candidates, shipped_history().frame())
    ranked = tuner.ranking(10)
    ended = time.perf_counter()
    assert len(ranked) == 10
    return {
        "combinations": SPACE.count,
        "legal_configurations": len(candidates),
        "enumerated_s": round(enumerated - begun, 2),
        "ranked_s": round(ended - enumerated, 2),
        "total_s": round(ended - begun, 2),
        "peak_memory_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measured()
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:22} {value:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
