from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pretune.datasets import Accelerator, Knobs, ModelSpec, Platform, Status, Trial, Workload

MODEL = ModelSpec(name="tiny-gpt", layers=2, hidden_size=64, heads=4, vocabulary=512)


@pytest.fixture(autouse=True)
def no_server_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "to be restored: MLflow itself sets it")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")


@pytest.fixture
def make_trial() -> Callable[..., Trial]:
    """A trial of session s1; ``knobs`` are merged into a legal configuration."""

    legal = {"micro_batch": 4, "accumulation": 2, "dp": 2, "zero_stage": 1}

    def make(trial_id: str, status: str = "ok", knobs: dict[str, Any] | None = None, **more: Any) -> Trial:
        fields: dict[str, Any] = {
            "trial_id": trial_id,
            "session_id": "s1",
            "workload": Workload(model=MODEL, sequence_length=64, global_batch_tokens=1024, precision="fp32"),
            "platform": Platform(name="two-ranks", accelerator=Accelerator(name="cpu"), devices_per_node=2),
            "knobs": Knobs(**{**legal, **(knobs or {})}),
            "created_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            "status": Status(status),
            "wall_s": 12.0,
            "counters": {"net.sent_bytes": 1e6, "absent": None},
            "software": {"torch": "2.13.0"},
        }
        if status == "ok":
            fields |= {"window_times_s": [0.5, 0.25, 0.25], "tokens_per_s": 3072.0, "step_time_s": 1 / 3}
            fields |= {"tokens_per_s_per_device": 1536.0, "loss_last": 5.5}
        else:
            fields["cause"] = "the kernel killed rank 1 for memory"
        return Trial(**{**fields, **more})

    return make


@pytest.fixture
def out(tmp_path: Path, fresh_database: Path) -> Path:
    """A session's folder with an empty MLflow database in it."""
    (tmp_path / "mlflow.db").write_bytes(fresh_database.read_bytes())
    return tmp_path


@pytest.fixture(scope="session")
def fresh_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database, migrated once for all tests: it takes seconds."""
    from pretune.mlflow_config.connection import speaking
    from pretune.mlflow_config.settings import sqlite_uri

    folder = tmp_path_factory.mktemp("database")
    with speaking("the database"):
        from mlflow import MlflowClient

        MlflowClient(sqlite_uri(folder)).search_experiments()
    return folder / "mlflow.db"
