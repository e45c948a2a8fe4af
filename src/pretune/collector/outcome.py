"""What an exception says about a trial: its status, judged by type and never by words such as "error"."""

from __future__ import annotations

import traceback
from collections.abc import Mapping

from pretune.datasets.trial import Status
from pretune.errors import InputError, PretuneError

_OOM_TYPES = {"OutOfMemoryError"}  # torch's and cupy's; MemoryError is caught by its class
_INVALID_TYPES = {"DeepSpeedConfigError", "DeepSpeedConfigModelError", "ValidationError"}
# torch's CPU allocator raises a bare RuntimeError; this is its own sentence, there is no type to go by
_CPU_ALLOCATOR = "DefaultCPUAllocator: can't allocate memory"


class Diverged(PretuneError):
    """The loss became NaN or infinite."""


def judge(error: BaseException) -> Status:
    """The status of a trial that this exception ended."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, MemoryError) or names & _OOM_TYPES or _CPU_ALLOCATOR in str(error):
        return Status.OOM
    if isinstance(error, Diverged):
        return Status.DIVERGED
    if isinstance(error, InputError) or names & _INVALID_TYPES:
        return Status.INVALID
    return Status.CRASH


def describe(error: BaseException) -> Mapping[str, str]:
    """``exception`` (type), ``message``, ``status`` and the last lines of the ``traceback``."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return {
        "exception": type(error).__name__,
        "message": str(error)[:2000],
        "status": str(judge(error)),
        "traceback": "\n".join(lines[-30:]),
    }


def cause(error: BaseException) -> str:
    """One line for ``Trial.cause``."""
    first = str(error).strip().splitlines()[:1]
    return f"{type(error).__name__}: {first[0][:500]}" if first else type(error).__name__
