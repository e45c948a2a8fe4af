"""The code of a logged surrogate. MLflow copies this file into the model and runs it when it is loaded."""

from __future__ import annotations

from typing import Any

import mlflow
import pandas as pd
import polars as pl
import pyarrow as pa
from mlflow.pyfunc import PythonModel, PythonModelContext

from pretune.mlflow_config.flavour import input_columns, load_surrogate


class ServedSurrogate(PythonModel):  # type: ignore[misc]
    """Predicts throughput from a pandas frame in the columns of the trial store."""

    def load_context(self, context: PythonModelContext) -> None:
        self.surrogate = load_surrogate(context.artifacts["surrogate"])

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """(n, 5): the fields of :class:`pretune.model.base.Prediction`."""
        prediction = self.surrogate.predict(store_frame(model_input))
        return pd.DataFrame(
            {
                "tokens_per_s_per_device": prediction.mean,
                "low": prediction.low,
                "high": prediction.high,
                "chance_to_run": prediction.chance_to_run,
                "out_of_domain": prediction.out_of_domain or [None] * len(prediction),
            }
        )


def store_frame(frame: pd.DataFrame) -> pl.DataFrame:
    """The same rows in the store's types; a column that was not given is null throughout."""
    known = input_columns()
    columns = {name: pa.array(frame[name], from_pandas=True) for name in frame.columns}
    for name, kind in known.items():
        columns[name] = columns[name].cast(kind) if name in columns else pa.nulls(len(frame), kind)
    table = pl.from_arrow(pa.table(columns))
    assert isinstance(table, pl.DataFrame)
    return table


mlflow.models.set_model(ServedSurrogate())
