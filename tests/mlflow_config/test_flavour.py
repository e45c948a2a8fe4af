import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from pretune.datasets import TrialStore
from pretune.errors import InputError
from pretune.mlflow_config import tracker
from pretune.mlflow_config.connection import speaking
from pretune.mlflow_config.flavour import load_surrogate, save_model
from pretune.model import BoostedTrees, RandomSurrogate

FRESH_PROCESS = """
import sys
import mlflow, pandas
predicted = mlflow.pyfunc.load_model(sys.argv[1]).predict(pandas.read_parquet(sys.argv[2]))
predicted.to_parquet(sys.argv[3])
"""


@pytest.fixture
def frame(tmp_path, make_trial) -> pl.DataFrame:
    """Trials over three knobs and one that the user declared, with an unset knob and a failure among them."""
    trials = []
    for stage in (0, 1, 2, 3):
        for micro in (1, 2, 4, 8):
            knobs = {
                "zero_stage": stage,
                "micro_batch": micro,
                "accumulation": 8 // micro,
                "tile": 16 * micro,
            }
            if micro > 1:
                knobs["reduce_bucket_size"] = 1_000_000
            speed = 1000.0 + 100 * micro - 50 * stage
            more = {"tokens_per_s_per_device": speed, "tokens_per_s": 2 * speed}
            failed = stage == 0 and micro == 8
            trial_id = f"t{stage}{micro}"
            trials.append(
                make_trial(trial_id, "oom", knobs) if failed else make_trial(trial_id, "ok", knobs, **more)
            )
    store = TrialStore(tmp_path / "history")
    store.append(trials)
    return store.frame()


@pytest.fixture
def model(frame, tmp_path, monkeypatch):
    """An MLflow model in a folder of its own, without any server."""
    monkeypatch.chdir(tmp_path)  # MLflow may make a store where it stands
    RandomSurrogate().fit(frame).save(tmp_path / "saved")
    with speaking("a folder"):
        import mlflow.pyfunc

        save_model(tmp_path / "saved", tmp_path / "model")
        yield mlflow.pyfunc.load_model(str(tmp_path / "model"))


@pytest.mark.slow
def test_a_fitted_surrogate_is_logged_and_predicts_the_same_in_a_fresh_process(frame, out):
    from mlflow import MlflowClient

    surrogate = BoostedTrees(n_estimators=20).fit(frame)
    surrogate.save(out / "saved")
    plot = out / "errors.svg"
    plot.write_text("<svg/>")
    card = out / "card.md"
    card.write_text("# Surrogate\n\n![errors](errors.svg)\n\nFits.")
    uri = f"sqlite:///{out / 'mlflow.db'}"
    teller = tracker(uri, out)
    session = teller.session_begun("s1", "a session", {})
    for _ in range(2):
        teller.fit_begun("fit of two-ranks", {"rows": len(frame), "history": out / "history"})
        teller.fit_ended("fit of two-ranks", {"mean error %": 0.25}, [card, plot], out / "saved")

    client = MlflowClient(uri)
    (run,) = client.search_runs(["1"], "tags.`pretune.kind` = 'fit'")
    assert run.info.status == "FINISHED"
    assert run.data.tags["mlflow.parentRunId"] == session
    assert run.data.metrics == {"mean error _": 0.25}
    assert run.inputs.dataset_inputs[0].dataset.name == "history"
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["card.md", "errors.svg"]
    (model,) = run.outputs.model_outputs
    page = "# Surrogate\n\nFits."
    assert run.data.tags["mlflow.note.content"] == page
    tags = client.get_logged_model(model.model_id).tags
    assert (tags["mlflow.note.content"], tags["pretune.fit"]) == (page, "fit of two-ranks")

    frame.to_pandas().to_parquet(out / "asked.parquet")
    arguments = [f"models:/{model.model_id}", out / "asked.parquet", out / "answer.parquet"]
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FRESH_PROCESS, *arguments],
        env={**os.environ, "MLFLOW_TRACKING_URI": uri, "OMP_NUM_THREADS": "1"},
        cwd=out,
        check=True,
        timeout=120,
    )
    answer, expected = pd.read_parquet(out / "answer.parquet"), surrogate.predict(frame)
    assert len(answer) == len(frame) == 16
    assert answer["tokens_per_s_per_device"].nunique() > 4
    np.testing.assert_allclose(answer["tokens_per_s_per_device"], expected.mean, rtol=1e-4)
    np.testing.assert_allclose(answer["low"], expected.low, rtol=1e-4)
    np.testing.assert_allclose(answer["chance_to_run"], expected.chance_to_run, rtol=1e-4)


def test_the_signature_names_types_and_what_is_required(model, frame, tmp_path):
    from mlflow.exceptions import MlflowException

    files = {path.name for path in (tmp_path / "model").rglob("*") if path.is_file()}
    assert not [name for name in files if name.endswith((".pkl", ".pickle"))]

    names = model.metadata.signature.inputs.input_names()
    assert {"knob.zero_stage", "knob.tile", "model.layers", "fingerprint.copy_bytes_per_s"} <= set(names)
    assert not {"tokens_per_s", "status", "wall_s", "measure.max_windows"} & set(names)
    row = frame.head(1).to_pandas()
    with pytest.raises(MlflowException, match=r"model\.layers"):
        model.predict(row.drop(columns="model.layers"))
    with pytest.raises(MlflowException, match=r"accelerator\.name"):
        model.predict(row.assign(**{"accelerator.name": 3.5}))
    bare = row[[name for name in row if not name.startswith(("knob.", "fingerprint."))]]
    assert model.predict(bare)["tokens_per_s_per_device"].gt(0).all()


def test_a_knob_that_the_user_declared_reaches_the_surrogate(model, frame):
    row = frame.head(1).to_pandas()
    other = row.assign(**{"knob.tile": 999})
    assert model.predict(row)["low"].item() != model.predict(other)["low"].item()


def test_a_folder_without_a_surrogate_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match=r"surrogate\.json"):
        load_surrogate(tmp_path)
    Path(tmp_path, "surrogate.json").write_text('{"kind": "os"}')
    with pytest.raises(InputError, match="kind os"):
        load_surrogate(tmp_path)


def test_it_has_an_example_that_it_predicts(model, tmp_path):
    from mlflow.models import Model

    path = str(tmp_path / "model")
    with speaking("a folder"):
        saved = Model.load(path)
        example = saved.load_input_example(path)
        assert model.predict(example)["tokens_per_s_per_device"].iloc[0] > 0
        assert "knob.zero_stage" in saved.get_serving_input(path)
