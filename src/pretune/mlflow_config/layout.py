"""What a run looks like: its name, tags, parameters and metrics. Nothing here talks to a server."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretune.datasets.schema import flatten
from pretune.datasets.trial import StatedTrial, Trial
from pretune.model.saving import CARD

KIND = "pretune.kind"  # session, trial or fit
SESSION_ID = "pretune.session_id"
TRIAL_ID = "pretune.trial_id"
FIT = "pretune.fit"
FIT_DIGEST = "pretune.fit_digest"  # of its parameters: more trials, or another seed, is another fit
PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"
NOTE_LIMIT = 8000  # characters that MLflow's tables keep of a tag

SHARED = ("platform", "model", "workload", "framework")  # tags that runs of every kind are filtered by
SEARCHED, BEST = "searched_tokens_per_s_per_device", "best_so_far_tokens_per_s_per_device"  # of a session
WINDOW_TIME = "window_time_s"  # the metric whose history is the windows of a trial, in order
_PARAMETERS = ("knob.", "workload.", "model.")


def trial_name(spec: StatedTrial) -> str:
    """A name to be read in a list: the id, then the knobs that matter most."""
    knobs, words = spec.knobs, [spec.trial_id]
    if spec.purpose != "search":
        words.append(spec.purpose)
    if knobs.zero_stage is not None:
        words.append(f"ZeRO-{knobs.zero_stage}")
    if knobs.micro_batch is not None:
        words.append(f"micro batch {knobs.micro_batch} x {knobs.accumulation or '?'}")
    return ", ".join(words)


def trial_tags(spec: StatedTrial) -> dict[str, str]:
    """What trials are found by."""
    tags = {
        KIND: "trial",
        TRIAL_ID: spec.trial_id,
        SESSION_ID: spec.session_id,
        "platform": spec.platform.name,
        "model": spec.workload.model.name,
        "workload": spec.workload.name,
        "framework": spec.framework,
        "purpose": spec.purpose,
    }
    return {name: value for name, value in tags.items() if value is not None}


def shared_tags(params: Mapping[str, Any]) -> dict[str, str]:
    """Of a session or a fit, the tags that its trials have too."""
    return {name: value for name, value in text(params).items() if name in SHARED}


def session_status(metrics: Mapping[str, float]) -> str:
    """``ok`` where something ran, else ``failed``."""
    return "ok" if "best_tokens_per_s_per_device" in metrics else "failed"


def trial_params(spec: StatedTrial) -> dict[str, str]:
    """Knobs and workload, under the names of the store's columns."""
    row = {**flatten(spec), "seed": spec.seed}
    return text({k: v for k, v in row.items() if k.startswith(_PARAMETERS) or k == "seed"})


def trial_metrics(trial: Trial) -> dict[str, float]:
    """Every figure that came of a trial, counters as ``counter.NAME``."""
    given = flatten(StatedTrial(**{name: getattr(trial, name) for name in StatedTrial.model_fields}))
    return {
        metric_name(name): float(value)
        for name, value in flatten(trial).items()
        if name not in given and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def card_note(files: list[Path]) -> str | None:
    """The model card among the files, without its pictures, which a note cannot show; None without one."""
    for file in files:
        if file.name == CARD and file.exists():
            return re.sub(r"!\[.*?\]\(.*?\)\n+", "", file.read_text(encoding="utf-8"))[:NOTE_LIMIT]
    return None


def metric_name(name: str) -> str:
    """``name`` in the characters that MLflow allows."""
    return re.sub(r"[^\w\-. /:]", "_", name)


def digest(values: Mapping[str, Any]) -> str:
    """The same for the same parameters in any order."""
    return hashlib.sha256(json.dumps(text(values), sort_keys=True).encode()).hexdigest()[:16]


def text(values: Mapping[str, Any]) -> dict[str, str]:
    """Parameters as MLflow keeps them; what is None is not a parameter."""
    return {metric_name(name): str(value) for name, value in values.items() if value is not None}
