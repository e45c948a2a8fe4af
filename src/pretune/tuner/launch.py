"""A job's own command as a shell script: as its trials ran it, under the configuration that was found."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from pretune.collector.script_program import values
from pretune.datasets.knobs import KnobValue
from pretune.datasets.trial import TrialSpec

HERE = "$here"  # the shell's name of the folder in which the files lie
# what is the run's to choose, and not the configuration's: a variable of the shell
_VARIABLES: dict[str, KnobValue] = {
    "python": "${PYTHON:-python3}",
    "steps": "${STEPS:?}",
    "node_rank": "${NODE_RANK:-0}",
    "master_addr": "${MASTER_ADDR:-127.0.0.1}",
    "master_port": "${MASTER_PORT:-29500}",
}
_EXPANDED = re.compile(r"(\$here|\$\{[A-Z_]+:[-?][^}]*\})")


def own_script(spec: TrialSpec, exports: Sequence[str]) -> str:
    """The shell script; ``spec`` is a trial of the configuration, ``exports`` its environment's lines."""
    nodes = ["# Run it on every node, with NODE_RANK (0, 1, ...) and MASTER_ADDR (node 0) set."]
    lines = [
        "#!/bin/sh",
        f"# Runs the job's command with the configuration that pretune found on {spec.platform.name}.",
        *(nodes if spec.platform.nodes > 1 else []),
        *exports,
        f'here=$(cd "$(dirname "$0")" && pwd) && cd {shlex.quote(spec.script.folder)} || exit',
        f'exec {_command(spec)} "$@"',
    ]
    return "\n".join([*lines, ""])


def _command(spec: TrialSpec) -> str:
    """The command with its files in :data:`HERE`. A product has the trial's numbers."""
    told = values(spec, Path(HERE), node=0)
    variables = {name: text for name, text in _VARIABLES.items() if name not in spec.script.factors()}
    return " ".join(map(_quoted, spec.script.words(told | variables)))


def _quoted(word: str) -> str:
    """For the shell: as it is, but for the variables."""
    pieces = enumerate(_EXPANDED.split(word))
    return "".join(f'"{text}"' if at % 2 else shlex.quote(text) for at, text in pieces if text) or "''"
