"""Whether what the tuner decides arrives at a job's script: by its command, a file, or the environment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from pretune.datasets.frameworks import framework as find_framework
from pretune.datasets.frameworks.base import Framework
from pretune.datasets.knobs import Knobs
from pretune.datasets.platform import Accelerator, Platform
from pretune.datasets.script import OF_THE_NODE, OF_THE_TRIAL, Script, file_placeholder
from pretune.datasets.workload import Workload
from pretune.errors import InputError
from pretune.tuner.space import Candidates

_VARIABLES = ("env.", "threads_per_rank")  # knobs that are set in the script's environment
# the global batch and the micro batch tell the accumulation; the devices and the degrees tell dp
_TOLD = {"accumulation": ("global_batch_sequences", "global_batch_tokens")}
_SEEN = 8  # configurations that are looked at closely


def check_placeholders(
    script: Script, declared: Framework, workload: Workload, space: Collection[str], where: str
) -> None:
    """Raises :class:`InputError` for a placeholder that stands for nothing, naming those that there are."""
    known = [*OF_THE_TRIAL, *OF_THE_NODE, *_files(declared, workload), *declared.knobs]
    known += [name for name in space if name not in known]
    for name in script.placeholders():
        if name not in known:
            raise InputError(f"{where}: command: {{{name}}} stands for nothing; known: {', '.join(known)}")


def _files(declared: Framework, workload: Workload) -> list[str]:
    """The placeholders of the framework's files; which there are does not depend on the platform."""
    anywhere = Platform(name="any", accelerator=Accelerator(name="any"), devices_per_node=1)
    knobs = declared.filled(workload, anywhere, Knobs(micro_batch=1))
    return [file_placeholder(name) for name in declared.files_to_follow(workload, anywhere, knobs)]


def check_knobs_arrive(
    script: Script, named: Collection[str], candidates: Candidates, default: Knobs, where: str
) -> None:
    """Raises :class:`InputError` naming a knob that differs between trials, and would be the same in the
    script; or that the command asks for, and some trial has not.

    ``named``: the knobs that the job itself names. What a framework makes of those is its own affair, but for
    the accumulation: without it micro batches of another size are another global batch.
    """
    taken, samples = set(script.placeholders()), [*_spread(candidates.knobs), default]
    for name in sorted(_differing(candidates, default) & {*named, "accumulation"}):
        told = name in taken or name.startswith(_VARIABLES) or name == "dp"
        told = told or bool(taken & set(_TOLD.get(name, ()))) or _in_a_file(name, taken, samples, candidates)
        if not told and not (name in _TOLD and _batch_in_a_file(taken, samples[0], candidates)):
            raise InputError(
                f"{where}: {name} differs between trials, and the script is not told: put {{{name}}} into "
                f"command{_or_a_file(candidates)}, or give it one value"
            )
    files = _files(find_framework(candidates.framework), candidates.workload)
    for knobs in samples:
        _check_words(script, knobs, files, where)


def _differing(candidates: Candidates, default: Knobs) -> set[str]:
    """The knobs that have not one value in all candidates and in the default configuration."""
    stock = default.settings()
    values = {name: {*found, stock.get(name)} for name, found in candidates.values().items()}
    return {name for name, found in values.items() if len(found) > 1}


def _spread(knobs: Sequence[Knobs]) -> list[Knobs]:
    """Some of them, from the first to the last."""
    return [knobs[at] for at in sorted({i * (len(knobs) - 1) // (_SEEN - 1) for i in range(_SEEN)})]


def _in_a_file(name: str, taken: set[str], samples: Sequence[Knobs], candidates: Candidates) -> bool:
    """Whether another value of the knob makes another file, of those that the command names."""
    other = [knobs.settings()[name] for knobs in samples if name in knobs.settings()]
    return any(
        _named_files(taken, knobs, candidates)
        != _named_files(taken, knobs.model_copy(update={name: value}), candidates)
        for knobs in samples
        for value in other
    )


def _batch_in_a_file(taken: set[str], knobs: Knobs, candidates: Candidates) -> bool:
    """Whether another global batch makes another file, so that the accumulation follows there."""
    tokens = 2 * candidates.workload.global_batch_tokens
    other = replace(
        candidates, workload=candidates.workload.model_copy(update={"global_batch_tokens": tokens})
    )
    return _named_files(taken, knobs, candidates) != _named_files(taken, knobs, other)


def _named_files(taken: set[str], knobs: Knobs, candidates: Candidates) -> dict[str, str]:
    """The framework's files that the command names."""
    declared = find_framework(candidates.framework)
    found = declared.files_to_follow(candidates.workload, candidates.platform, knobs)
    return {n: text for n, text in found.items() if "folder" in taken or file_placeholder(n) in taken}


def _or_a_file(candidates: Candidates) -> str:
    names = _files(find_framework(candidates.framework), candidates.workload)
    return f" (or {' or '.join(f'{{{name}}}' for name in names)}, if that carries it)" if names else ""


def _check_words(script: Script, knobs: Knobs, files: Collection[str], where: str) -> None:
    """The command for ``knobs``, with a number in place of what only a trial knows."""
    values = dict.fromkeys((*OF_THE_TRIAL, *OF_THE_NODE, *files), 1) | knobs.settings()
    for name in script.placeholders():
        if name not in values:
            raise InputError(f"{where}: {name}: command asks for it; give it a value in space and in default")
    try:
        script.words(values)
    except TypeError:
        raise InputError(f"{where}: command: a product is of numbers, not of words") from None
