"""The history that a session or a fit learned from, as an MLflow dataset."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from pretune.datasets.durable import is_local
from pretune.datasets.store import TrialStore

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput


def history_dataset(folder: Any) -> DatasetInput | None:
    """The store under ``folder`` (or a URL) with a digest of its contents; None when it holds no trials.

    The digest is over the file names: a file's name comes from the trials in it.
    """
    if not folder or str(folder) == "none":
        return None
    store = TrialStore(folder)
    files = store.files()
    if not files:
        return None
    from mlflow.entities import Dataset, DatasetInput, InputTag

    names = "\n".join(f"{path.parent.name}/{path.name}" for path in files)
    dataset = Dataset(
        name=store.root.name or "history",
        digest=hashlib.sha256(names.encode()).hexdigest()[:16],
        source_type="local" if is_local(store.root) else "fsspec",
        source=json.dumps({"uri": str(store.root.absolute())}),
        profile=json.dumps({"trials": len(store), "files": len(files)}),
    )
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "history")])
