"""The best configuration as Hugging Face's ``accelerate launch`` reads it."""

from __future__ import annotations

from typing import Any

from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Platform

FILE = "accelerate.yaml"


def accelerate_files(framework: str, platform: Platform, knobs: Knobs) -> dict[str, str]:
    """``accelerate.yaml`` for a script that uses accelerate, by file name; {} where it cannot be launched so.

    It launches DeepSpeed and several processes of DDP on GPUs alone. Beside DeepSpeed's own file it refuses
    to be told batch, ZeRO stage or precision again, and with DDP these are the script's.
    """
    if platform.backend != "nccl" or framework not in ("deepspeed", "torch_ddp"):
        return {}
    several = "MULTI_GPU" if platform.devices > 1 else "NO"
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED" if framework == "deepspeed" else several,
        "num_machines": platform.nodes,
        "num_processes": platform.devices,
        "main_training_function": "main",
    }
    if framework == "deepspeed":
        config["deepspeed_config"] = {
            "deepspeed_config_file": "ds_config.json",
            "deepspeed_multinode_launcher": "standard",
            "zero3_init_flag": knobs.zero_stage == 3,
        }
    return {FILE: _text(platform, config)}


def _text(platform: Platform, config: dict[str, Any]) -> str:
    import yaml

    where = " --machine_rank RANK --main_process_ip NODE_0 --main_process_port 29500"
    lines = [
        f"# The configuration that pretune found on {platform.name}; launch.sh says what it does not carry:",
        f"#   accelerate launch --config_file {FILE}{where if platform.nodes > 1 else ''} train.py",
    ]
    return "\n".join([*lines, yaml.safe_dump(config, sort_keys=False)])
