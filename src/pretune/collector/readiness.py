"""What would make every trial on a host fail, looked for there before a trial is spent."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pretune.collector.evidence import read_json, write_json
from pretune.collector.script_program import values
from pretune.datasets.trial import TrialSpec

Finding = tuple[str, str]  # what it is about, and the reason with its remedy
HELP_S = 60.0  # a script imports torch before it reads its arguments
_PORT = re.compile(r"--(?:master[-_]port|rdzv[-_]endpoint)[= ](?:\S*:)?(\d+)")
_LIBRARIES = {"deepspeed": ("torch", "deepspeed")}  # of pretune's own trial program, by framework


def run(folder: Path) -> int:
    """Look on this node, for the trial whose sheet is in the folder; writes ``found-N.json`` of node N.

    Where there is no sheet, the folder is not the launcher's: it will miss the file.
    """
    if (sheet := read_json(folder / "spec.json")) is None:
        return 0
    spec, node = TrialSpec.from_mapping(sheet, "spec.json"), int(os.environ["GROUP_RANK"])
    found = [*findings(spec, folder, node), *unknown_options(spec, folder, node)]
    write_json(folder / f"found-{node}.json", {"host": socket.gethostname(), "findings": found})
    return 0


def findings(spec: TrialSpec, folder: Path, node: int = 0) -> Iterator[Finding]:
    """What takes no time to find."""
    yield from _devices(spec)
    if spec.script.run is None:
        yield from _libraries(spec.framework)
    else:
        words = spec.script.words(values(spec, folder, node))
        yield from _files(words, Path(spec.script.folder))
        yield from _ports(words, node)


def _devices(spec: TrialSpec) -> Iterator[Finding]:
    wanted, visible = spec.platform.devices_per_node, os.environ.get("CUDA_VISIBLE_DEVICES")
    if spec.platform.backend != "nccl" or Path("/dev/kfd").exists():
        return
    count = (
        len(list(Path("/dev").glob("nvidia[0-9]*")))
        if visible is None
        else len(visible.split(",")) * bool(visible)
    )
    if count < wanted:
        yield "devices", f"{count} GPUs are here, and the platform has {wanted} on every node"


def _libraries(framework: str) -> Iterator[Finding]:
    for name in _LIBRARIES.get(framework, ("torch",)):
        if importlib.util.find_spec(name) is None:
            yield "python", f"{sys.executable} has no {name}; install it there, or name another interpreter"


def _files(words: Sequence[str], folder: Path) -> Iterator[Finding]:
    """The folder, the program and the Python files and modules that the command names."""
    if not folder.is_dir():
        yield "command", f"folder {folder} is not there; every host must see it"
        return
    program = words[0] if os.sep not in words[0] else str(folder / words[0])
    if shutil.which(program) is None:
        yield "command", f"{words[0]} is no program here; give its path, or {{python}} -m its module"
        return
    for word in words[1:]:
        if word.endswith(".py") and "=" not in word and not (folder / word).is_file():
            yield "command", f"{word} is not in {folder}; check the path"
    if Path(program).name.startswith("python") and words[1:2] == ["-m"] and not _has(program, words[2]):
        yield "command", f"{words[0]} has no module {words[2]}; install it there"


def _has(python: str, module: str) -> bool:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    package = module.partition(".")[0]  # to look into a package imports it, which takes seconds of torch
    return subprocess.run([python, "-c", code, package], capture_output=True, check=False).returncode == 0


def _ports(words: Sequence[str], node: int) -> Iterator[Finding]:
    """A port that the command names, where node 0 is to listen on it."""
    ports = {int(port) for port in _PORT.findall(" ".join(words))} if node == 0 else set()
    for port in sorted(ports):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as error:
                yield "command", f"port {port}: {error.strerror}; write {{master_port}}, which is free"


def unknown_options(spec: TrialSpec, folder: Path, node: int) -> Iterator[Finding]:
    """Options of the command that a Python script does not take, by its ``--help``, where it has one."""
    words = [] if spec.script.run is None else spec.script.words(values(spec, folder, node))
    at = next((place for place, word in enumerate(words) if word.endswith(".py")), None)
    if at is None or not (Path(spec.script.folder) / words[at]).is_file():
        return
    options = [word.partition("=")[0] for word in words[at + 1 :] if word.startswith("--")]
    told = _help([_interpreter(words), words[at]], spec.script.folder) if options else ""
    for option in dict.fromkeys(options) if "usage:" in told else ():
        same = re.escape(option).replace("_", "[-_]").replace(r"\-", "[-_]")
        if not re.search(rf"(?<![\w-]){same}", told):  # argparse takes the beginning of a name
            yield "command", f"{words[at]} takes no {option}, by its --help; check the spelling"


def _interpreter(words: Sequence[str]) -> str:
    return words[0] if Path(words[0]).name.startswith("python") else sys.executable


def _help(words: Sequence[str], folder: str) -> str:
    try:
        asked = subprocess.run(
            [*words, "--help"], cwd=folder, capture_output=True, text=True, timeout=HELP_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout if asked.returncode == 0 else ""
