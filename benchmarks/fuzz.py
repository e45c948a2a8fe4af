"""Fuzz the readers of other people's files: whatever the bytes, they are read, set aside, or refused.

    python benchmarks/fuzz.py importers [--minutes 10] [--engine hypothesis|atheris] [--only megatron]
    python benchmarks/fuzz.py store [--minutes 10] [--engine hypothesis|atheris]

The seeds are the importers' golden files, an MLflow folder and a store, both made here. Each attempt spoils
one file: bytes and lines are overwritten, cut, doubled and swapped, figures become nan, huge or negative.
Of importers only :class:`InputError` and what is set aside are allowed, of the store's reader only warnings
and :class:`StoreError`; both in one line. ``hypothesis`` draws the attempts; ``atheris`` (``pip install
atheris``, no dependency of pretune) prefers those that reach new code. The first attempt that breaks the
rule is left in the folder that the last line names, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, NoReturn, Protocol

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pretune.datasets import Platform, TrialStore, shipped_history
from pretune.datasets.importers import FORMATS, importer
from pretune.datasets.importers.account import accounted
from pretune.datasets.importers.base import SetAside
from pretune.datasets.importers.complete import Given, complete
from pretune.errors import InputError, StoreError

GOLDEN = Path(__file__).parents[1] / "tests" / "datasets" / "importers" / "golden"
POD = {"name": "pod", "accelerator": {"name": "H100"}, "devices_per_node": 8, "nodes": 4}
GIVEN = Given(Platform.from_mapping(POD, "fuzz"))
FIGURE = re.compile(rb"\d[\d.,]*(?:[eE][+-]?\d+)?")
ODD = [
    *(b"nan", b"inf", b"-1", b"0", b"1e308", b"1e-320", b"9" * 25, b"null", b"true", b'""', b"[]", b"{}"),
    *(b"\x00", b"\xff\xfe", b"\r", b"\n", b'"', b",", b"|", b"\xf0\x9f\x92\xa9", b"[" * 3000, b"9" * 5000),
]


class Choices(Protocol):
    """Where an attempt's decisions come from."""

    def number(self, most: int) -> int: ...  # 0 to most
    def some(self, most: int) -> bytes: ...


class Drawn:
    """By hypothesis."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data

    def number(self, most: int) -> int:
        return self.data.draw(st.integers(0, most))

    def some(self, most: int) -> bytes:
        return self.data.draw(st.binary(max_size=most))


class Guided:
    """By atheris, out of the bytes that it found to reach new code."""

    def __init__(self, data: bytes) -> None:
        import atheris

        self.provider = atheris.FuzzedDataProvider(data)

    def number(self, most: int) -> int:
        return int(self.provider.ConsumeIntInRange(0, most))

    def some(self, most: int) -> bytes:
        return bytes(self.provider.ConsumeBytes(self.number(most)))


def spoiled(text: bytes, choices: Choices) -> bytes:
    """The text with one to four changes."""
    for _ in range(1 + choices.number(3)):
        text = (_bytes, _lines, _figure)[choices.number(2)](text, choices)
    return text


def _bytes(text: bytes, choices: Choices) -> bytes:
    at, width = choices.number(len(text)), choices.number(40)
    odd = choices.number(len(ODD))
    put = ODD[odd] if odd < len(ODD) else choices.some(12)
    return text[:at] + put + (b"" if choices.number(7) == 0 else text[at + width :])


def _lines(text: bytes, choices: Choices) -> bytes:
    """A line goes, comes twice, or changes places with another one."""
    lines = text.splitlines(keepends=True) or [b""]
    one, other = choices.number(len(lines) - 1), choices.number(len(lines) - 1)
    match choices.number(2):
        case 0:
            del lines[one : one + 1 + choices.number(3)]
        case 1:
            lines.insert(one, lines[other])
        case _:
            lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def _figure(text: bytes, choices: Choices) -> bytes:
    figures = list(FIGURE.finditer(text))
    if not figures:
        return text
    chosen = figures[choices.number(len(figures) - 1)]
    return text[: chosen.start()] + ODD[choices.number(len(ODD) - 1)] + text[chosen.end() :]


def read_import(name: str, folder: Path, victim: Path) -> None:
    """Reads the folder, and the spoiled file in it, as format ``name``; raises what would be a traceback."""

    def made(run: Any, source: Any) -> Any:
        if name == "kernel-tuner":  # its runs are rows of tables, and no trials
            return run.key, run
        trial = complete(run, source, name, GIVEN)
        return trial if isinstance(trial, SetAside) else (trial.trial_id, trial)

    for path in [folder] if name == "mlflow" else [folder, victim]:
        try:
            account = accounted(importer(name)(), [path], made, set(), lambda _: None)
        except InputError as error:
            one_line(str(error))
        else:
            for aside in account.set_aside:
                one_line(aside.reason)


def read_store(_name: str, folder: Path, _victim: Path) -> None:
    store = TrialStore(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for ask in (lambda: list(store.trials()), lambda: store.frame(places=True), lambda: "x" in store):
            try:
                ask()
            except StoreError as error:
                one_line(str(error))
        for fault in store.validate():
            one_line(str(fault))


def one_line(text: str) -> None:
    assert "\n" not in text, f"more than one line: {text!r}"


def mlflow_folder(folder: Path) -> None:
    """Two runs as MLflow keeps them in files."""
    from mlflow import MlflowClient

    client = MlflowClient(folder.as_uri())
    experiment = client.create_experiment("theirs")
    for speed in (4096.0, None):
        run = client.create_run(experiment)
        client.log_param(run.info.run_id, "n_layer", 2)
        client.log_param(run.info.run_id, "seq_length", 128)
        for step in range(5 if speed else 0):
            client.log_metric(run.info.run_id, "tokens_per_second", float(speed or 0), step=step)
        client.set_terminated(run.info.run_id, "FINISHED" if speed else "FAILED")


def seeds(what: str, root: Path, only: str | None) -> list[tuple[str, Path]]:
    """Names and folders of sound files, under ``root``."""
    if what == "store":
        TrialStore(root / "store").append(list(shipped_history().trials())[:40])
        return [("store", root / "store")]
    found = [(name, GOLDEN / name) for name in FORMATS if (GOLDEN / name).is_dir()]
    if importlib.util.find_spec("mlflow") and only in (None, "mlflow"):
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        mlflow_folder(root / "mlflow")
        found.append(("mlflow", root / "mlflow"))
    return [(name, folder) for name, folder in found if only in (None, name)]


class Fuzz:
    """One attempt after the other; counts them, and keeps the one that failed."""

    def __init__(
        self, read: Callable[[str, Path, Path], None], sound: list[tuple[str, Path]], kept: Path
    ) -> None:
        self.read, self.sound, self.kept = read, sound, kept
        self.attempts = 0

    def attempt(self, choices: Choices) -> None:
        self.attempts += 1
        name, folder = self.sound[choices.number(len(self.sound) - 1)]
        shutil.rmtree(self.kept, ignore_errors=True)
        shutil.copytree(folder, self.kept)
        files = sorted(path for path in self.kept.rglob("*") if path.is_file())
        victim = files[choices.number(len(files) - 1)]
        victim.write_bytes(spoiled(victim.read_bytes(), choices))
        self.read(name, self.kept, victim)

    def passed(self) -> int:
        shutil.rmtree(self.kept, ignore_errors=True)
        print(f"{self.attempts} attempts, no traceback", flush=True)
        return 0

    def failed(self) -> int:
        traceback.print_exc()
        print(f"attempt {self.attempts} failed; it lies in {self.kept}", flush=True)
        return 1


def by_hypothesis(fuzz: Fuzz, seconds: float) -> None:
    @settings(
        max_examples=200,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def many(data: st.DataObject) -> None:
        fuzz.attempt(Drawn(data))

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        many()


def by_atheris(fuzz: Fuzz, seconds: float) -> NoReturn:
    """Ends the process with the status, since libFuzzer does not return."""
    import atheris

    for name in FORMATS:
        importer(name)  # else loaded only later, and not watched
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and str(function.__module__).startswith("pretune."):
            atheris.instrument_func(function)
    end = time.monotonic() + seconds

    def one(data: bytes) -> None:
        if time.monotonic() > end:
            os._exit(fuzz.passed())
        try:
            fuzz.attempt(Guided(data))
        except Exception:
            os._exit(fuzz.failed())

    atheris.Setup([sys.argv[0], "-rss_limit_mb=0", "-max_len=4096", "-verbosity=0"], one)
    atheris.Fuzz()
    raise AssertionError("libFuzzer has returned")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=["importers", "store"])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--engine", choices=["hypothesis", "atheris"], default="hypothesis")
    parser.add_argument("--only", choices=[*FORMATS])
    told = parser.parse_args(arguments)
    root = Path(tempfile.mkdtemp(prefix="pretune-fuzz-"))
    reader = read_store if told.what == "store" else read_import
    fuzz = Fuzz(reader, seeds(told.what, root, told.only), root / "attempt")
    try:
        (by_atheris if told.engine == "atheris" else by_hypothesis)(fuzz, told.minutes * 60)
    except Exception:
        return fuzz.failed()
    return fuzz.passed()


if __name__ == "__main__":
    sys.exit(main())
