"""accelerate's own parser takes the file, and its DeepSpeed plugin the configuration that it names."""

import json
import os
import subprocess
import sys

import pytest

from pretune.datasets import Knobs
from pretune.datasets.frameworks import framework
from pretune.tuner.accelerate import accelerate_files

# what `accelerate launch` makes of the file in each folder, and a script's Accelerator of the environment
_PARSED = """
import json, os, sys
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DeepSpeedPlugin
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

options = "--machine_rank 1 --main_process_ip 10.0.0.1 --main_process_port 29511".split()
found = {}
for folder in sys.argv[1:]:
    os.chdir(folder)
    told = ["--config_file", "accelerate.yaml", *options, "train.py"]
    args, defaults, _ = _validate_launch_command(launch_command_parser().parse_args(told))
    if args.use_deepspeed:
        args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
        os.environ.update(prepare_deepspeed_cmd_env(args)[1])
        args.plugin = DeepSpeedPlugin().deepspeed_config
    else:
        prepare_multi_gpu_env(args)
    found[os.path.basename(folder)] = vars(args)
print("PARSED" + json.dumps(found, default=str))
"""


@pytest.mark.slow  # imports torch and accelerate
def test_accelerate_launches_what_was_found(tmp_path, workload, target):
    platform = target.model_copy(update={"backend": "nccl", "nodes": 2, "devices_per_node": 2})
    asked = {"torch_ddp": Knobs(micro_batch=1), "deepspeed": Knobs(micro_batch=1, zero_stage=3)}
    for name, knobs in asked.items():
        (tmp_path / name).mkdir()
        one = framework(name)
        best = one.resolve(workload, platform, knobs)
        files = one.files_to_use(workload, platform, best) | accelerate_files(name, platform, best)
        for file, text in files.items():
            (tmp_path / name / file).write_text(text)
    found = parsed(*(tmp_path / name for name in asked))
    for each in found.values():
        assert (each["num_processes"], each["nproc_per_node"], each["nnodes"]) == (4, "2", "2")
        assert (each["node_rank"], each["rdzv_endpoint"]) == (1, "10.0.0.1:29511")
    deepspeed, ddp = found["deepspeed"], found["torch_ddp"]
    assert (ddp["multi_gpu"], ddp["use_deepspeed"]) == (True, False)
    assert (deepspeed["multi_gpu"], deepspeed["use_deepspeed"]) == (False, True)
    own = json.loads((tmp_path / "deepspeed" / "ds_config.json").read_text())
    assert own.items() <= deepspeed["plugin"].items()


def parsed(*folders):
    environment = os.environ | {"DS_ACCELERATOR": "cpu"}
    command = [sys.executable, "-W", "ignore", "-c", _PARSED, *map(str, folders)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("PARSED")[2])


def test_there_is_no_file_where_accelerate_cannot_launch(target):
    on_cpu = target.model_copy(update={"backend": "gloo"})
    assert accelerate_files("deepspeed", on_cpu, Knobs()) == {}
    one = target.model_copy(update={"backend": "nccl", "nodes": 1, "devices_per_node": 1})
    assert "distributed_type: 'NO'" in accelerate_files("torch_ddp", one, Knobs())["accelerate.yaml"]
