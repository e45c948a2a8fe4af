"""A history that is to be shared names nobody, and teaches a cost model the same."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_trials import sample_trial

from pretune.datasets import Knobs, Status, TrialStore, presets, shipped_history
from pretune.datasets.redact import Redactor, export
from pretune.errors import InputError
from pretune.model.features import Encoder
from pretune.model.physics import TransformerPhysics

SECRET = "seCretAcme"


def secretive(trial_id: str, secret: str = SECRET, **fields):
    """A trial with the secret in every word that a user can choose."""
    trial = sample_trial(trial_id)
    model = trial.workload.model.model_copy(update={"name": f"{secret}-7b"})
    device = trial.platform.accelerator.model_copy(update={"name": f"H100 {secret}"})
    settings = {
        "workload": trial.workload.model_copy(update={"model": model}),
        "platform": trial.platform.model_copy(update={"name": f"{secret}-cluster", "accelerator": device}),
        "framework": f"{secret}-framework",
        "session_id": f"{secret}-session",
        "source": f"/data/{secret}/log.txt",
        "hosts": [f"{secret}-node1", "10.0.0.1"],
        "counters": {f"net.{secret}.bytes": 1.0},
        "missing": {f"{secret}-provider": f"no {secret}"},
        "software": {"torch": f"2.8.0+{secret}", f"lib{secret}": "1"},
        "knobs": Knobs(
            micro_batch=2,
            attention=f"{secret}-kernel",
            **{
                f"{secret}_knob": 3,
                "my_path": f"/data/{secret}",
                "env.NCCL_SOCKET_IFNAME": f"{secret}0",
                "env.NCCL_ALGO": "Ring",
                f"env.{secret}_TOKEN": "hunter2",
            },
        ),
    }
    return trial.model_copy(update={**settings, **fields})


def words_of(root: Path) -> str:
    """Every byte and every value of every file below, and their names."""
    parts = []
    for path in sorted(root.rglob("*")):
        parts.append(str(path.relative_to(root)))
        if path.is_file():
            parts.append(path.read_bytes().decode("latin-1"))
            table = pq.ParquetFile(path).read()
            parts += [str(table.schema), str(table.to_pylist()), str(pq.read_metadata(path).to_dict())]
    return "\n".join(parts)


def failed(trial_id: str):
    figures = {"tokens_per_s": None, "tokens_per_s_per_device": None}
    return secretive(trial_id, status=Status.CRASH, cause=f"Traceback: /data/{SECRET}/x.py", **figures)


def test_no_word_of_the_user_s_is_left(tmp_path: Path) -> None:
    store, out = TrialStore(tmp_path / "mine"), TrialStore(tmp_path / "shared")
    store.append([secretive(f"{SECRET}-1"), secretive("2"), failed("3")])
    assert SECRET in words_of(store.root)
    assert export(store, out, redact=True) == 3
    found = words_of(out.root)
    for secret in (SECRET, "hunter2", "10.0.0.1", "/data", "node1"):
        assert secret.lower() not in found.lower()
    assert out.validate() == []


def test_what_a_model_learns_from_is_kept(tmp_path: Path) -> None:
    store, out = TrialStore(tmp_path / "mine"), TrialStore(tmp_path / "shared")
    trial = secretive("a")
    store.append([trial, secretive("b"), failed("c")])
    export(store, out, redact=True)
    shared = sorted(out.trials(), key=lambda t: t.ok)
    (crash, one, two) = shared
    assert (crash.status, crash.cause) == (Status.CRASH, "crash: what it said is redacted")
    assert one.knobs == two.knobs
    assert one.platform == two.platform == crash.platform
    assert one.workload.model.model_copy(update={"name": ""}) == trial.workload.model.model_copy(
        update={"name": ""}
    )
    settings = one.knobs.settings()
    assert (settings["micro_batch"], settings["env.NCCL_ALGO"]) == (2, "Ring")
    assert 3 in settings.values()
    assert len(settings) == len(trial.knobs.settings())
    assert (one.tokens_per_s, one.window_times_s) == (trial.tokens_per_s, trial.window_times_s)
    assert one.software == {"torch": "2.8.0"}
    assert not one.hosts
    assert one.session_id is None


def test_a_cost_model_is_given_the_same_numbers(tmp_path: Path) -> None:
    """Features of the shipped history, redacted: the same but for the order of unknown words."""
    out = TrialStore(tmp_path)
    export(shipped_history(), out, redact=True)
    key = ["tokens_per_s", "wall_s", "startup_s", "step_time_s", "knob.micro_batch"]
    before, after = (store.frame().filter(pl.col("status") == "ok") for store in (shipped_history(), out))
    before, after = (frame.sort(*(k for k in key if k != "wall_s")) for frame in (before, after))
    physics = TransformerPhysics()
    assert physics.log_throughput(before).tolist() == pytest.approx(physics.log_throughput(after).tolist())
    assert len(Encoder(physics).fit(after).points(after)) == len(before)
    assert after["platform.name"].n_unique() == before["platform.name"].n_unique()


def test_public_words_stay_and_the_rest_cannot_be_joined_over_two_exports() -> None:
    model = presets.model("llama-3-8b")
    trial = secretive("a", workload=sample_trial("a").workload.model_copy(update={"model": model}))
    device = trial.platform.accelerator.model_copy(update={"name": "h100-sxm"})
    if "h100-sxm" not in presets.accelerator_names():
        device = device.model_copy(update={"name": presets.accelerator_names()[0]})
    trial = trial.model_copy(
        update={
            "platform": trial.platform.model_copy(update={"accelerator": device}),
            "framework": "deepspeed",
        }
    )
    one, two = Redactor().trial(trial), Redactor().trial(trial)
    for shared in (one, two):
        assert shared.workload.model == model
        assert shared.platform.accelerator.name == device.name
        assert shared.framework == "deepspeed"
    assert one.platform.name != two.platform.name
    assert one.trial_id != two.trial_id


def test_a_public_name_on_a_shape_of_one_s_own_is_no_public_model() -> None:
    model = presets.model("llama-3-8b").model_copy(update={"layers": 31})
    trial = sample_trial("a", workload=sample_trial("a").workload.model_copy(update={"model": model}))
    assert "llama" not in Redactor().trial(trial).workload.model.name


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_string_of_an_own_knob_is_an_alias_or_a_public_word(value: str) -> None:
    (found,) = Redactor().trial(sample_trial("a", knobs=Knobs(mine=value))).knobs.settings().values()
    assert found == value or re.fullmatch(r"value-[0-9a-f]{12}", str(found))
    assert len(str(found)) < 30


def test_it_is_not_mixed_into_a_store_that_has_trials(tmp_path: Path) -> None:
    store = TrialStore(tmp_path)
    store.append(sample_trial("a"))
    with pytest.raises(InputError, match="holds trials already"):
        export(store, store, redact=True)
