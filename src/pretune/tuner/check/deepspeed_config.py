"""A DeepSpeed JSON, or a template of one: lists are values to choose from, "auto" is left to derive."""

from __future__ import annotations

import difflib
import itertools
import json
import math
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from pretune.datasets.frameworks.base import Problem
from pretune.datasets.importers.deepspeed_config import from_zero
from pretune.datasets.knobs import Knobs
from pretune.datasets.workload import ModelSpec
from pretune.errors import InputError
from pretune.tuner.check import text_of
from pretune.tuner.check.deepspeed_keys import DEPRECATED, REMOVED, SECTION, TOP_LEVEL, WHOLE, ZERO
from pretune.tuner.check.deepspeed_rules import ignored, refused
from pretune.tuner.check.devices import Devices
from pretune.tuner.check.layout import judged
from pretune.tuner.check.verdict import Verdict

TRAIN, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
NAMES = {
    "sequences": TRAIN,
    "micro_batch": MICRO,
    "accumulation": STEPS,
    "tp": "tensor_parallel.autotp_size",
    "cp": "sequence_parallel_size",
}
MOST = 200_000  # combinations of a template
ALIKE = 0.85  # from which an unknown key is a misspelt one

Place = tuple[str, ...]


def judge(path: Path, devices: Devices, model: ModelSpec | None) -> Verdict:
    """Raises :class:`InputError` when the file is no JSON object, or a template of too many combinations."""
    template = _read(path)
    verdict = Verdict("deepspeed", warnings=_keys(template, fatal=False))
    fatal = _keys(template, fatal=True)
    if template.get(TRAIN, "auto") == template.get(MICRO) == "auto":
        template[MICRO] = 1
    combinations, problems, unused = 0, dict[Problem, None](), dict[Problem, None]()
    for config in _expanded(template, path):
        combinations += 1
        resolved, found = _judged(config, devices, model)
        problems |= dict.fromkeys(found)
        unused |= dict.fromkeys(ignored(config) if not found else ())
        if not found and not fatal:
            verdict.legal_combinations += 1
            verdict.resolved = verdict.resolved or resolved
    verdict.combinations, verdict.problems = combinations, fatal + list(problems)
    verdict.warnings += unused
    return verdict


def _read(path: Path) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise InputError(f"{path}: {twice} stands there twice; DeepSpeed refuses that, remove one")
        return dict(pairs)

    try:
        template = json.loads(text_of(path), object_pairs_hook=unique)
    except ValueError as error:
        raise InputError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(template, dict):
        raise InputError(f"{path}: holds no object; give a DeepSpeed configuration")
    return template


def _keys(template: dict[str, Any], fatal: bool) -> list[Problem]:
    """What is wrong with the names alone: what DeepSpeed refuses (``fatal``), or misreads."""
    section = template.get(SECTION)
    zero = section if isinstance(section, dict) else {}
    found = [
        Problem(place, f"was removed from DeepSpeed, which refuses it: {REMOVED[place]}")
        for place in [*template, *(f"{SECTION}.{key}" for key in zero)]
        if fatal and place in REMOVED
    ]
    for key in zero:
        if f"{SECTION}.{key}" in REMOVED:
            continue
        if key in DEPRECATED and not fatal:
            found.append(Problem(f"{SECTION}.{key}", f"is deprecated; use {DEPRECATED[key]}"))
        elif key not in ZERO and key not in DEPRECATED and fatal:
            near = difflib.get_close_matches(key, ZERO, 1, 0.6)
            found.append(Problem(f"{SECTION}.{key}", "is no key of this section", tuple(near)))
    for key in template:
        if not fatal and key not in TOP_LEVEL and key not in REMOVED:
            near = difflib.get_close_matches(key, TOP_LEVEL, 1, ALIKE)
            found.append(Problem(key, "is no key of DeepSpeed, which ignores it silently", tuple(near)))
    if not fatal and all(template.get(key, "auto") == "auto" for key in (TRAIN, MICRO)) and MICRO in template:
        reason = "is left to whoever fills in the template (Hugging Face's Trainer); 1 is taken here"
        found.append(Problem(MICRO, reason))
    if section is not None and not isinstance(section, dict) and fatal:
        found.append(Problem(SECTION, "is no object of settings"))
    return found


def _expanded(template: dict[str, Any], path: Path) -> Iterator[dict[str, Any]]:
    """All choices of the lists among what pretune sets; "auto" is taken out."""
    lists: dict[Place, list[Any]] = {}
    cleaned = deepcopy(template)
    for place in _places(template):
        value = _at(template, place)
        if isinstance(value, list) and value:
            lists[place] = value
        elif value == "auto" or value == []:
            del _holder(cleaned, place)[place[-1]]
    count = math.prod(len(values) for values in lists.values())
    if count > MOST:
        raise InputError(f"{path}: {count} combinations are more than {MOST}; give fewer values")
    for choice in itertools.product(*lists.values()):
        config = deepcopy(cleaned)
        for place, value in zip(lists, choice, strict=True):
            if value == "auto":
                del _holder(config, place)[place[-1]]
            else:
                _holder(config, place)[place[-1]] = value
        yield config


def _places(template: dict[str, Any]) -> Iterator[Place]:
    """Where a template may be open: the batch, degrees, and ZeRO's settings; precision switches too."""
    for key, value in template.items():
        if key in (TRAIN, MICRO, STEPS, "sequence_parallel_size", "gradient_clipping"):
            yield (key,)
        elif key in (SECTION, "tensor_parallel", "bf16", "bfloat16", "fp16") and isinstance(value, dict):
            for inner, held in value.items():
                if isinstance(held, dict) and key == SECTION:
                    yield from ((key, inner, name) for name in held)
                else:
                    yield (key, inner)


def _holder(config: dict[str, Any], place: Place) -> dict[str, Any]:
    for step in place[:-1]:
        config = config[step]
    return config


def _at(config: dict[str, Any], place: Place) -> Any:
    return _holder(config, place)[place[-1]]


def _judged(
    config: dict[str, Any], devices: Devices, model: ModelSpec | None
) -> tuple[dict[str, Any], list[Problem]]:
    """One configuration without lists: everything that follows from it, and what is wrong."""
    config = deepcopy(config)
    problems = [problem for place in list(_places(config)) for problem in _whole(config, place)]
    problems += refused(config)
    if problems:
        return {}, problems
    if TRAIN not in config and MICRO not in config:
        reason = f'neither this nor {MICRO} is given; give one, or "auto" where a trainer fills it in'
        return {}, [Problem(TRAIN, reason)]
    zero = from_zero(config.get(SECTION, {}))
    knobs = Knobs(
        micro_batch=config.get(MICRO),
        accumulation=config.get(STEPS, None if TRAIN in config else 1),
        tp=config.get("tensor_parallel", {}).get("autotp_size") or None,
        cp=config.get("sequence_parallel_size"),
        **{name.removeprefix("knob."): value for name, value in zero.items()},
    )
    known, problems = judged(config.get(TRAIN), knobs, devices, model, None, NAMES)
    if problems:
        return {}, problems
    config |= {
        TRAIN: known["global_batch_sequences"],
        MICRO: known["micro_batch"],
        STEPS: known["accumulation"],
    }
    return known | knobs.settings() | {"config": config}, []


def _whole(config: dict[str, Any], place: Place) -> list[Problem]:
    """Makes the whole numbers whole (5e8 is read as a float); a problem where one is none, or below 1."""
    value = _at(config, place)
    if place[-1] not in WHOLE or value is None:
        return []
    name, least = ".".join(place), 1 if len(place) == 1 or place[-1] == "reduce_bucket_size" else 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return [Problem(name, f"{json.dumps(value)} is no number")]
    if value != int(value):
        near = (math.floor(value), math.ceil(value))
        return [Problem(name, f"{value} is no whole number, and DeepSpeed refuses it", near)]
    if value < least:
        return [Problem(name, f"{value} is less than {least}", (least,))]
    _holder(config, place)[place[-1]] = int(value)
    return []
