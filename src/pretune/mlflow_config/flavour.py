"""A surrogate as an MLflow model: code and data, no pickle, with a signature in the store's columns."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import pretune
from pretune.datasets.schema import HOW_IT_RAN, core_schema, knob_types
from pretune.datasets.spec import Spec
from pretune.datasets.trial import TrialSpec
from pretune.errors import InputError
from pretune.model.saving import SHEET

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.models import ModelSignature
    from mlflow.models.model import Model

    from pretune.model.base import Predictor

_CODE = Path(__file__).with_name("served.py")
OUTPUTS = {
    "tokens_per_s_per_device": "double",
    "low": "double",
    "high": "double",
    "chance_to_run": "double",
    "out_of_domain": "string",
}


def log_model(
    client: MlflowClient, run: Run, folder: Path, tags: Mapping[str, str | None] | None = None
) -> str:
    """Log the surrogate saved under ``folder`` as a model of ``run``, with ``tags``; returns its model id.

    ``mlflow.pyfunc.load_model(f"models:/{model_id}")`` loads it wherever pretune is
    installed; it predicts from a pandas frame in the store's columns.
    """
    from mlflow.entities import LoggedModelOutput
    from mlflow.models.model import Model

    given = {name: value for name, value in (tags or {}).items() if value is not None}
    made = client.create_logged_model(
        run.info.experiment_id, name="surrogate", source_run_id=run.info.run_id, tags=given
    )
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "model")
        save_model(folder, path, Model(run_id=run.info.run_id, model_id=made.model_id))
        client.log_model_artifacts(made.model_id, str(path))
    client.finalize_logged_model(made.model_id, "READY")
    client.log_outputs(run.info.run_id, [LoggedModelOutput(made.model_id, step=0)])
    return str(made.model_id)


def save_model(folder: Path, path: Path, mlflow_model: Model | None = None) -> None:
    """Write the surrogate saved under ``folder`` as an MLflow model at ``path``, a new folder."""
    import mlflow.pyfunc

    declared = declared_knobs(folder)
    with tempfile.TemporaryDirectory() as scratch:
        # MLflow keeps the last part of an artifact's name: give it the one that served.py asks for
        surrogate = shutil.copytree(folder, Path(scratch, "surrogate"))
        mlflow.pyfunc.save_model(
            path=str(path),
            python_model=str(_CODE),
            artifacts={"surrogate": str(surrogate)},
            signature=signature(declared),
            input_example=input_example(folder, declared),
            pip_requirements=[f"pretune[mlflow]=={pretune.__version__}"],
            mlflow_model=mlflow_model,
        )


def load_surrogate(folder: str | Path) -> Predictor:
    """The surrogate saved under ``folder``, whichever class it is of. Raises :class:`InputError`."""
    import pretune.model

    kind = _sheet(folder).get("kind")
    if kind not in dir(pretune.model):
        raise InputError(f"{folder}: holds a surrogate of kind {kind}, which pretune.model does not have")
    surrogate: Predictor = getattr(pretune.model, kind).load(folder)
    return surrogate


def declared_knobs(folder: Path) -> list[str]:
    """Columns of the knobs that a user declared, from the rows that a surrogate is saved with."""
    rows = _sheet(folder)["check"]["rows"]
    return sorted({name for row in rows for name in row if name.startswith("knob.")} - set(knob_types()))


def input_example(folder: Path, declared: list[str]) -> pd.DataFrame:
    """One configuration, of those that a surrogate is saved with, as somebody would ask for it."""
    import pandas as pd

    row = _sheet(folder)["check"]["rows"][0]
    known = [name for name in (*input_columns(), *declared) if row.get(name) is not None]
    return pd.DataFrame([{name: row[name] for name in known}])


def _sheet(folder: str | Path) -> dict:
    path = Path(folder, SHEET)
    try:
        sheet: dict = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: is no saved surrogate ({error}); save it again") from None
    return sheet


def signature(more_knobs: list[str]) -> ModelSignature:
    """Inputs: every column known before a trial; outputs: the fields of a :class:`Prediction`.

    What a spec requires is required; the rest may be absent or null. MLflow refuses a whole
    number column that pandas widened to float for a null, so optional whole numbers are Any.
    """
    from mlflow.models import ModelSignature
    from mlflow.types.schema import AnyType, ColSpec, Schema

    required = _required(TrialSpec)
    inputs = [
        ColSpec(_mlflow_type(arrow_type, name in required), name, required=name in required)
        for name, arrow_type in input_columns().items()
    ]
    inputs += [ColSpec(AnyType(), name, required=False) for name in more_knobs]
    return ModelSignature(
        inputs=Schema(inputs),
        outputs=Schema([ColSpec(kind, name, required=kind == "double") for name, kind in OUTPUTS.items()]),
    )


def input_columns() -> dict[str, pa.DataType]:
    """Name -> Arrow type of the columns that a prediction may read."""
    core = {field.name: field.type for field in core_schema()}
    known = {name: kind for name, kind in core.items() if name == "framework" or "." in name}
    return {**{n: kind for n, kind in known.items() if not n.startswith(HOW_IT_RAN)}, **knob_types()}


def _required(spec: type[Spec], prefix: str = "") -> set[str]:
    names: set[str] = set()
    for name, info in spec.model_fields.items():
        if not info.is_required():
            continue
        if isinstance(info.annotation, type) and issubclass(info.annotation, Spec):
            names |= _required(info.annotation, f"{name}.")
        else:
            names.add(prefix + name)
    return names


def _mlflow_type(kind: pa.DataType, required: bool) -> object:
    from mlflow.types.schema import AnyType

    if pa.types.is_integer(kind):
        return "long" if required else AnyType()
    if pa.types.is_floating(kind):
        return "double"
    return "boolean" if pa.types.is_boolean(kind) else "string"
