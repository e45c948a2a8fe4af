"""Megatron-LM's arguments: a list, or a launch script that sets them in shell variables and arrays."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any

from pretune.datasets.frameworks.base import Problem
from pretune.datasets.frameworks.megatron_rules import layout_rules
from pretune.datasets.importers.megatron import stated
from pretune.datasets.knobs import Knobs
from pretune.datasets.workload import ModelSpec
from pretune.errors import InputError
from pretune.tuner.check import text_of
from pretune.tuner.check.devices import Devices
from pretune.tuner.check.layout import judged
from pretune.tuner.check.verdict import Verdict

NAMES = {
    "sequences": "--global-batch-size",
    "micro_batch": "--micro-batch-size",
    "accumulation": "--micro-batch-size",
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "vp": "--num-virtual-stages-per-pipeline-rank",
    "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
    "dp": "devices",
}
# arguments that Megatron's validate_args refuses today -> what took their place
_GONE = {
    "batch_size": "--micro-batch-size",
    "model_parallel_size": "--tensor-model-parallel-size",
    "checkpoint_activations": "--recompute-granularity full --recompute-method uniform",
    "warmup": "--lr-warmup-fraction",
}
_NEEDS = (  # a flag, and the one without which it is refused
    ("overlap_param_gather", "use_distributed_optimizer"),
    ("overlap_param_gather", "overlap_grad_reduce"),
)
# with one of these, stages need not have equally many layers
_UNEVEN = (
    *("pp_partition_method", "pipeline_model_parallel_layout"),
    *("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"),
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
)
_COUNTS = (
    *(
        "num_layers",
        "hidden_size",
        "num_attention_heads",
        "ffn_hidden_size",
        "seq_length",
        "micro_batch_size",
    ),
    *("global_batch_size", "num_query_groups", "num_experts"),
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "num_layers_per_virtual_pipeline_stage"),
    *("num_virtual_stages_per_pipeline_rank", "expert_tensor_parallel_size"),
)
_ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)\+?=(.*)$", re.DOTALL)


def judge(path: Path, devices: Devices, model: ModelSpec | None) -> Verdict:
    """Raises :class:`InputError` when the file holds no argument that pretune knows of Megatron."""
    arguments = read_arguments(text_of(path), path)
    if not any(name in arguments for name in (*_COUNTS, *_GONE)):
        raise InputError(f"{path}: has no Megatron argument; give a list such as --micro-batch-size 1")
    for name in _COUNTS:
        if "$" in arguments.get(name, "") or arguments.get(name, "").startswith("-"):
            raise InputError(
                f"{path}: {_option(name)}: what the script computes cannot be read; give the list that it "
                "passes (bash -x shows it)"
            )
    verdict = Verdict("megatron")
    verdict.problems = _words(arguments)
    if verdict.problems:
        return verdict
    values = stated(arguments)
    knobs = _knobs(values, arguments)
    shape = model or _model(values)
    known, found = judged(
        values.get("workload.global_batch_sequences"),
        knobs,
        devices,
        shape,
        None,  # context parallelism asks for more than a divisor
        NAMES,
    )
    missing = _missing(values, model)
    told = {problem.field for problem in missing}
    padded = ("vocabulary", "layers") if any(map(arguments.get, _UNEVEN)) else ("vocabulary",)
    found = [each for each in found if not each.reason.startswith(padded) and each.field not in told]
    # a file without the model is a part: a wrapper's, or one whose model a checkpoint states
    if "model.layers" in values:
        verdict.problems += missing
    else:
        verdict.warnings += missing
    verdict.problems += found + _rules(values, arguments, known, shape)
    verdict.legal_combinations = int(not verdict.problems)
    if verdict.legal:
        verdict.resolved = known | knobs.settings()
    return verdict


def read_arguments(text: str, path: Path) -> dict[str, str]:
    """By name with underscores, as Megatron prints them; a flag is "True". Shell variables are replaced.

    Raises :class:`InputError` where quotes do not match.
    """
    variables: dict[str, str] = {}
    words: list[str] = []
    try:
        for word in shlex.split(text.replace("(", " ").replace(")", " "), comments=True):
            told = Template(word.replace("[@]", "")).safe_substitute(variables)
            if match := _ASSIGNED.match(told):
                variables[match[1]] = match[2]
                told = match[2]
            words += shlex.split(told) if " " in told else [told]
    except ValueError as error:
        raise InputError(f"{path}: is no list of arguments ({error}); mend the quotes") from None
    found: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            flag = after.startswith("--") or not after
            found[name.replace("-", "_")] = value or ("True" if flag else after)
    return found


def _words(arguments: dict[str, str]) -> list[Problem]:
    """What is wrong with single arguments."""
    found = [
        Problem(_option(name), f"is refused by Megatron today; use {new}")
        for name, new in _GONE.items()
        if name in arguments and not (name == "checkpoint_activations" and "deepspeed" in arguments)
    ]
    for name in _COUNTS:
        told = arguments.get(name)
        if told is not None and not (told.isdigit() and int(told)):
            found.append(Problem(_option(name), f"{told} is no count; give the number"))
    return found


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _knobs(values: dict[str, Any], arguments: dict[str, str]) -> Knobs:
    told = {name.removeprefix("knob."): value for name, value in values.items() if name.startswith("knob.")}
    stages, layers = told.get("pp", 1), values.get("model.layers")
    per_chunk = arguments.get("num_layers_per_virtual_pipeline_stage")
    if "num_virtual_stages_per_pipeline_rank" in arguments:
        told["vp"] = int(arguments["num_virtual_stages_per_pipeline_rank"])
    elif per_chunk and layers and layers % (stages * int(per_chunk)) == 0:
        told["vp"] = layers // stages // int(per_chunk)
    return Knobs(**told)


def _model(values: dict[str, Any]) -> ModelSpec | None:
    shape = {name.removeprefix("model."): v for name, v in values.items() if name.startswith("model.")}
    try:
        return ModelSpec.from_mapping({"name": "megatron", "vocabulary": 1} | shape, "arguments")
    except InputError:  # it states too little of its shape to be judged by it
        return None


def _missing(values: dict[str, Any], model: ModelSpec | None) -> list[Problem]:
    """What Megatron has to be told, and the file does not say."""
    found, ep = [], values.get("knob.ep", 1)
    if "knob.micro_batch" not in values:
        found.append(Problem(NAMES["micro_batch"], "is not given, and Megatron has no default"))
    if ep > 1 and not (model.experts if model else values.get("model.experts")):
        found.append(Problem(NAMES["ep"], f"{ep} splits experts, but --num-experts is not given", (1,)))
    return found


def _rules(
    values: dict[str, Any], arguments: dict[str, str], known: dict[str, Any], model: ModelSpec | None
) -> list[Problem]:
    """What Megatron's validate_args and TransformerConfig refuse beside the batch and the degrees."""
    found = [
        Problem(_option(flag), f"needs {_option(other)}")
        for flag, other in _NEEDS
        if arguments.get(flag) and not arguments.get(other)
    ]
    if arguments.get("fp16") and arguments.get("bf16"):
        found.append(Problem("--fp16", "and --bf16 exclude each other"))
    if arguments.get("recompute_granularity") == "full" and not arguments.get("recompute_method"):
        reason = "full needs --recompute-method (uniform or block) and --recompute-num-layers"
        found.append(Problem("--recompute-granularity", reason))
    layers, per_chunk = values.get("model.layers"), arguments.get("num_layers_per_virtual_pipeline_stage")
    if per_chunk and layers and layers % (known["pp"] * int(per_chunk)):
        reason = f"{per_chunk} does not divide the {layers} layers of {known['pp']} stages"
        found.append(Problem("--num-layers-per-virtual-pipeline-stage", reason))
    told = {name.removeprefix("knob."): value for name, value in values.items()} | known
    refused = layout_rules(told, values.get("workload.sequence_length"), model)
    return found + [_in_arguments(each, known) for each in refused]


def _in_arguments(problem: Problem, known: dict[str, Any]) -> Problem:
    if problem.field == "accumulation":  # which Megatron works out from the global batch
        near = tuple(int(n) * known["micro_batch"] * known["dp"] for n in problem.nearest)
        return Problem(NAMES["sequences"], problem.reason, near)
    return replace(problem, field=NAMES.get(problem.field, _option(problem.field)))
