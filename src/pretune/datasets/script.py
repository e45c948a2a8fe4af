"""A training script of the user's own: the command that a trial runs, a template over its knobs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any, Self

from pydantic import model_validator

from pretune.datasets.knobs import KnobValue
from pretune.datasets.spec import Spec

# what a trial tells besides its knobs and its framework's files
OF_THE_TRIAL = (
    *("devices", "devices_per_node", "nodes", "sequence_length", "global_batch_sequences"),
    *("global_batch_tokens", "steps", "seed", "trial_id", "folder"),
)
OF_THE_NODE = ("node_rank", "master_addr", "master_port", "python")


class Script(Spec):
    """How a trial of it is started, and how its steps are measured. Without ``run``: pretune's own program.

    ``run`` is a command line, split as a shell splits it (no shell runs it); or a list of words. It runs
    once on every node, in ``folder``. ``{name}`` stands for a knob, for one of :data:`OF_THE_TRIAL` or
    :data:`OF_THE_NODE`, or for the path of a file that the framework reads (:func:`file_placeholder`).
    ``{accumulation*dp}`` is a product; ``{compile:true=--compile|false=--eager}`` chooses by value, nothing
    where the value is not listed; a word of which nothing is left is left out. ``{{`` is a brace.

    Steps are measured by the recorder where the script has one; else by ``step_line``, a regular expression
    that finds the line of a step: its groups ``step`` (number), ``loss`` and ``seconds`` or
    ``milliseconds`` (of one step) are read where it has them, the clock where it has no time. Without it
    ``log_format`` names the importer that reads the output; without both it is found.
    """

    run: str | None = None
    folder: str = "."
    log_format: str | None = None
    step_line: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_words(cls, data: Any) -> Any:
        if isinstance(data, str | list | tuple):
            data = {"run": data}
        if isinstance(data, dict) and isinstance(data.get("run"), list | tuple):
            return data | {"run": shlex.join(map(str, data["run"]))}
        return data

    @model_validator(mode="after")
    def _readable(self) -> Self:
        if self.run is not None:
            try:
                if not shlex.split(self.run):
                    raise ValueError("is empty; give the command that trains")
                list(self.placeholders())
            except ValueError as error:
                raise ValueError(f"run: {error}; write a brace that is no placeholder twice") from None
        if self.step_line is not None:
            _check_step_line(self.step_line)
        if self.step_line and self.log_format:
            raise ValueError("log_format and step_line: both say how the output is read; leave one out")
        return self

    def placeholders(self) -> Iterator[str]:
        """The names that ``run`` asks for, each as often as it does."""
        for factors in self._fields():
            yield from factors

    def factors(self) -> set[str]:
        """The names that stand in products."""
        return {name for factors in self._fields() if len(factors) > 1 for name in factors}

    def _fields(self) -> Iterator[list[str]]:
        for word in shlex.split(self.run or ""):
            for _, field, _, _ in Formatter().parse(word):
                if field is not None:
                    yield [name.strip() for name in field.split("*")]

    def words(self, values: Mapping[str, KnobValue]) -> list[str]:
        """The command, with ``values`` for its placeholders. Raises :class:`KeyError` for one without."""
        words = []
        for word in shlex.split(self.run or ""):
            parsed = Formatter().parse(word)
            filled = "".join(text + _shown(field, choices, values) for text, field, choices, _ in parsed)
            if filled or not word:
                words.append(filled)
        return words


def file_placeholder(name: str) -> str:
    """What stands for a framework's file: its name without its ending, ``ds_config`` for
    ``ds_config.json``."""
    return re.sub(r"\W", "_", Path(name).stem)


def _shown(field: str | None, choices: str | None, values: Mapping[str, KnobValue]) -> str:
    if field is None:
        return ""
    value = _product([values[name.strip()] for name in field.split("*")])
    if not choices:
        return str(value)
    listed = dict(choice.partition("=")[::2] for choice in choices.split("|"))
    return listed.get(str(value).lower() if isinstance(value, bool) else str(value), "")


def _product(factors: Sequence[KnobValue]) -> KnobValue:
    value = factors[0]
    for factor in factors[1:]:
        value *= factor  # type: ignore[operator]  # words that are no numbers are refused with the job
    return value


def _check_step_line(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        raise ValueError(f"step_line: is no regular expression: {error}") from None
    known = ("step", "loss", "seconds", "milliseconds")
    if wrong := sorted(set(groups) - set(known)):
        raise ValueError(f"step_line: group {wrong[0]} means nothing; known: {', '.join(known)}")
