"""Whether a configuration of any framework can run on so many devices, why not, and what is nearest."""

from __future__ import annotations

from pathlib import Path

from pretune.datasets.workload import ModelSpec
from pretune.errors import InputError
from pretune.tuner.check.devices import Devices
from pretune.tuner.check.verdict import Verdict


def check(path: str | Path, devices: Devices, model: ModelSpec | None = None) -> Verdict:
    """Judge a DeepSpeed JSON, a job file (YAML), or a Megatron argument list (anything else).

    Without ``model`` what depends on a model's shape is judged as far as the file states one. Raises
    :class:`InputError` when the file is none of these.
    """
    path = Path(path)
    if path.suffix == ".json":
        from pretune.tuner.check.deepspeed_config import judge
    elif path.suffix in (".yaml", ".yml"):
        from pretune.tuner.check.job_file import judge
    else:
        from pretune.tuner.check.megatron_arguments import judge
    return judge(path, devices, model)


def text_of(path: Path) -> str:
    """What the file holds; raises :class:`InputError` when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InputError(f"{path}: cannot be read ({reason}); check the path") from None


__all__ = ["Devices", "Verdict", "check"]
