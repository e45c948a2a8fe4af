"""A history that can be shared: what a cost model learns from, and no word that names anyone.

It is a list of what is kept, so that a field nobody thought of is left out. Numbers are kept, and words that
are public: models and accelerators that ship as presets, frameworks, settings such as ``ring``. Every
other word becomes an alias, the same one wherever it stands, so that two clusters stay two. An alias is an
HMAC under a key that nobody keeps: it cannot be guessed back, and two exports do not match.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterator
from itertools import islice
from typing import get_args

from pretune.datasets import presets
from pretune.datasets.frameworks import FRAMEWORKS
from pretune.datasets.knobs import Knobs, KnobValue
from pretune.datasets.platform import StatedPlatform
from pretune.datasets.stated import Precision, StatedWorkload
from pretune.datasets.store import TrialStore
from pretune.datasets.trial import Trial
from pretune.errors import InputError

# fields of a trial that are numbers, or one of a few words that pretune itself gives
KEPT = (
    *("purpose", "measure", "status", "window_times_s", "warmup_windows", "step_time_s", "tokens_per_s"),
    *("tokens_per_s_per_device", "tokens_per_s_std_error", "peak_memory_allocated_bytes"),
    *("peak_memory_reserved_bytes", "peak_memory_device_bytes", "startup_s", "compile_s", "data_wait_s"),
    "warm",
)
SOFTWARE = frozenset(
    ["python", "torch", "deepspeed", "cuda", "nccl", "rocm", "rccl", "driver", "transformers"]
)
ENVIRONMENT = re.compile(r"env\.(NCCL|RCCL|OMP|KMP|MKL|CUDA|HIP|TORCH|PYTORCH|GLOO|UCX|XLA)_[A-Z0-9_]+")
NUMBER = re.compile(r"[+-]?\d{1,12}(\.\d{1,9})?")
VERSION = re.compile(r"\d{1,4}(\.\d{1,4}){0,3}")
WORDS = frozenset(
    (
        *("none", "cpu", "cuda", "nvme", "true", "false", "on", "off", "auto", "close", "spread"),
        *("full", "selective", "ring", "tree", "collnet", "nvls"),
        *("eager", "sdpa", "flash", "flash_attention", "flash_attention_2", "flash_attention_3"),
        *get_args(Precision),
    )
)
ROWS_AT_ONCE = 10_000


def export(store: TrialStore, out: TrialStore, redact: bool) -> int:
    """Write every trial of ``store`` to ``out``, :func:`redacted <Redactor.trial>` or as it is; how many.

    Raises :class:`InputError` when ``out`` holds trials already.
    """
    if out.files():
        raise InputError(f"{out.root}: holds trials already; name a new folder")
    redactor = Redactor()
    count = 0
    for some in _batches(store.trials()):
        out.append([redactor.trial(trial) for trial in some] if redact else some)
        count += len(some)
    return count


class Redactor:
    """Makes trials without names. The same word becomes the same alias, for as long as this object lives."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def trial(self, trial: Trial) -> Trial:
        """What a cost model learns of the trial: no host, path, user, project, counter, loss or text."""
        return Trial(
            **{name: getattr(trial, name) for name in KEPT},
            trial_id=self._alias("t", trial.trial_id),
            workload=self._workload(trial.workload),
            platform=self._platform(trial.platform),
            framework=self._framework(trial.framework),
            knobs=self._knobs(trial.knobs),
            created_at=trial.created_at.replace(hour=0, minute=0, second=0, microsecond=0),
            cause=None if trial.ok else f"{trial.status}: what it said is redacted",
            source=trial.source if trial.source == "pretune" else self._alias("source", trial.source),
            software=_versions(trial.software),
        )

    def _alias(self, kind: str, text: str) -> str:
        word = f"{kind} {text}".encode("utf-8", "surrogatepass")
        return f"{kind}-{hmac.digest(self._key, word, 'sha256').hex()[:12]}"

    def _workload(self, workload: StatedWorkload) -> StatedWorkload:
        model = workload.model
        name = model.name if presets.known_model(model) else self._alias("model", model.name)
        return workload.model_copy(update={"model": model.model_copy(update={"name": name})})

    def _platform(self, platform: StatedPlatform) -> StatedPlatform:
        known = presets.known_accelerator(platform.accelerator.name)
        device = known.accelerator.name if known else self._alias("device", platform.accelerator.name)
        accelerator = platform.accelerator.model_copy(update={"name": device})
        name = self._alias("platform", platform.name)
        return platform.model_copy(update={"name": name, "accelerator": accelerator})

    def _framework(self, name: str) -> str:
        return name if name in FRAMEWORKS else self._alias("framework", name)

    def _knobs(self, knobs: Knobs) -> Knobs:
        settings = knobs.settings().items()
        return Knobs(**{self._knob_name(name): self._knob_value(value) for name, value in settings})

    def _knob_name(self, name: str) -> str:
        public = name in Knobs.model_fields or ENVIRONMENT.fullmatch(name)
        return name if public else self._alias("knob", name)

    def _knob_value(self, value: KnobValue) -> KnobValue:
        if not isinstance(value, str) or value.lower() in WORDS or NUMBER.fullmatch(value):
            return value
        return self._alias("value", value)


def _versions(software: dict[str, str]) -> dict[str, str]:
    """The numbers of public components' versions, without what a build adds (``2.8.0+cu128.acme``)."""
    found = {name: VERSION.match(version) for name, version in software.items() if name in SOFTWARE}
    return {name: match.group() for name, match in found.items() if match}


def _batches(trials: Iterator[Trial]) -> Iterator[list[Trial]]:
    while some := list(islice(trials, ROWS_AT_ONCE)):
        yield some
