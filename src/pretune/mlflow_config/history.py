"""The history that a session or a fit learned from, as an MLflow dataset."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretune.datasets.store import TrialStore

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput


def history_dataset(folder: Any) -> DatasetInput | None:
    """The store under ``folder`` with a digest of its contents; None when there is no such store.

    The digest is over the file names: a file's name comes from the trials in it.
    """
    if not folder or not Path(folder).is_dir():
        return None
    from mlflow.entities import Dataset, DatasetInput, InputTag

    store = TrialStore(folder)
    names = "\n".join(str(path.relative_to(store.root)) for path in store.files())
    dataset = Dataset(
        name=store.root.name or "history",
        digest=hashlib.sha256(names.encode()).hexdigest()[:16],
        source_type="local",
        source=json.dumps({"uri": str(store.root.resolve())}),
        profile=json.dumps({"trials": len(store), "files": len(store.files())}),
    )
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "history")])
