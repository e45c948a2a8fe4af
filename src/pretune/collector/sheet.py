"""The sheet of the trial that this process runs in, where a tuner started it; and the way back to the tuner.

The tuner names in the environment the file with the :class:`TrialSpec`, and its digest. Every rank inherits
both, so that every rank can tell whether it reads the sheet that was handed out.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.errors import InputError

if TYPE_CHECKING:
    from pretune.datasets.trial import Trial, TrialSpec

SHEET, DIGEST = "PRETUNE_TRIAL_SPEC", "PRETUNE_TRIAL_DIGEST"
# beside the sheet: what a recorder in the script measured; that enough was printed, so that all nodes stop
RECORDED, ENOUGH = "recorded.json", "enough.json"


def digest_of(sheet: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(sheet).hexdigest()


def environment(sheet: Path) -> dict[str, str]:
    """What tells a script's processes that they run in the trial of this sheet."""
    return {SHEET: str(sheet), DIGEST: digest_of(sheet.read_bytes())}


def trial_here() -> TrialSpec | None:
    """The trial that this process runs in; None where no tuner started it.

    Raises :class:`InputError` when the sheet is not there, or not the one that was handed out.
    """
    if SHEET not in os.environ:
        return None
    from pretune.datasets.trial import TrialSpec

    path = Path(os.environ[SHEET])
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); every host must see it") from None
    if digest_of(text) != os.environ.get(DIGEST):
        raise InputError(f"{path}: is not the sheet that this trial was started with; start the trial again")
    return TrialSpec.from_mapping(json.loads(text), str(path))


def report(phase: str, windows: int, window_times_s: Sequence[float] = ()) -> None:
    """Tell the tuner how far the trial is: it ends what makes no progress, or will not be the best. Nothing
    outside of a trial."""
    from pretune.collector.evidence import write_json

    if SHEET in os.environ:
        path = Path(os.environ[SHEET]).with_name("progress.json")
        record = {"phase": phase, "windows": windows, "time": time.time()}
        record |= {"window_times_s": list(window_times_s)} if window_times_s else {}
        write_json(path, record, durable=False)


def stop_asked() -> bool:
    """Whether the tuner wants the trial to end with what it has measured."""
    from pretune.collector.evidence import STOP

    return SHEET in os.environ and Path(os.environ[SHEET]).with_name(STOP).exists()


def hand_over(trial: Trial) -> bool:
    """Give the tuner what was recorded; False where another rank did. Raises :class:`OSError`."""
    from pretune.collector.evidence import write_json

    path = Path(os.environ[SHEET]).with_name(RECORDED)
    if path.exists():
        return False
    write_json(path, trial.model_dump(mode="json"))
    return True


def handed_over(folder: Path) -> dict[str, Any] | None:
    """The fields of the trial that a recorder handed over; None where there was none."""
    from pretune.collector.evidence import read_json

    found: dict[str, Any] | None = read_json(folder / RECORDED)
    return found
