"""Run under torchrun: trains a few steps per configuration and prints the collectives of one step as JSON.

Arguments: a file with ``[{"model": ..., "config": ..., "micro_batch": ..., "sequence_length": ...}, ...]``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import deepspeed
import torch
from deepspeed.comm.comm import comms_logger

from pretune.collector.transformer import Transformer
from pretune.datasets.workload import ModelSpec

LOGGER = {"comms_logger": {"enabled": True, "prof_all": True, "verbose": False, "debug": False}}
WARM = 3  # ZeRO-3 learns the order of its weights first


def observe(case: dict) -> dict[str, list[int]]:
    """Collectives of one optimizer step: name -> [calls, bytes as DeepSpeed logs them]."""
    spec = ModelSpec.model_validate(case["model"])
    torch.manual_seed(0)
    engine, *_ = deepspeed.initialize(
        model=Transformer(spec), config=case["config"] | LOGGER, dist_init_required=False
    )
    tokens = torch.randint(spec.vocabulary, (case["micro_batch"], case["sequence_length"]))
    for step in range(WARM + 1):
        if step == WARM:
            comms_logger.comms_dict.clear()
        for _ in range(case["config"]["gradient_accumulation_steps"]):
            engine.backward(engine(tokens, tokens))
            engine.step()
    seen = {
        op: [sum(entry[0] for entry in sizes.values()), sum(size * entry[0] for size, entry in sizes.items())]
        for op, sizes in comms_logger.comms_dict.items()
    }
    engine.destroy()
    return seen


def main() -> None:
    deepspeed.init_distributed(dist_backend="gloo")
    results = [observe(case) for case in json.loads(Path(sys.argv[1]).read_text())]
    if os.environ["RANK"] == "0":
        print("OBSERVED " + json.dumps(results), flush=True)
    torch.distributed.destroy_process_group()


main()
