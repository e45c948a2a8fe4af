from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from pretune.datasets import TrialStore


def test_help_is_quick(pretune):
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        assert pretune("--help").returncode == 0
        times.append(time.perf_counter() - begun)
    assert min(times) < 0.3


def test_help_imports_nothing_heavy():
    heavy = {
        "torch",
        "polars",
        "pyarrow",
        "pydantic",
        "xgboost",
        "sklearn",
        "scipy",
        "numpy",
        "mlflow",
        "rich",
    }
    code = f"import sys, pretune.cli; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_predict_ranks_without_any_trial(pretune, write_job, tmp_path):
    done = pretune("predict", write_job(), "--json", "--top", 3)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["candidates"] == 56  # ZeRO-0 reads no bucket size
    worth = [
        e["predicted"]["tokens_per_s_per_device"] * e["predicted"]["chance_to_run"] for e in found["ranking"]
    ]
    assert len(worth) == 3
    assert worth == sorted(worth, reverse=True)
    assert {"fast-link", "middling-link"} <= {name.split("/")[0] for name in found["provenance"]}
    assert not (tmp_path / "runs").exists()


def test_history_show_counts_trials(pretune, history):
    found = json.loads(pretune("history", "show", history, "--json").stdout)
    assert found["trials"] == 128
    assert [row["platform.name"] for row in found["platforms"]] == ["fast-link", "middling-link"]
    assert [row["oom"] for row in found["platforms"]] == [8, 8]
    assert "fast-link" in pretune("history", "show", history).stdout


def test_history_validate_finds_what_is_wrong(pretune, history, tmp_path):
    sound = pretune("history", "validate", history, "--json")
    assert (sound.returncode, json.loads(sound.stdout)["faults"]) == (0, [])
    file = TrialStore(history).files()[0]
    broken = tmp_path / "broken" / file.parent.name / file.name
    broken.parent.mkdir(parents=True)
    broken.write_bytes(file.read_bytes()[:1000])
    found = pretune("history", "validate", tmp_path / "broken", "--json")
    assert found.returncode == 1
    assert file.name in json.loads(found.stdout)["faults"][0]["file"]


@pytest.mark.parametrize("command", [("history", "show"), ("history", "validate"), ("fit", "--history")])
def test_a_store_without_trials_is_wrong_input(pretune, command, tmp_path):
    done = pretune(*command, tmp_path)
    assert done.returncode == 2
    assert "holds no trials" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["fit", "--history", "mine", "--out", "file"],
        ["history", "export", "mine", "file"],
        ["probe", "--out", "file/p.yaml"],
        ["record", "--store", "file", "--", "touch", "begun"],
    ],
)
def test_a_place_that_cannot_be_written_is_wrong_input_before_any_work(pretune, history, tmp_path, command):
    (tmp_path / "mine").symlink_to(history)
    (tmp_path / "file").touch()
    done = pretune(*command)
    assert done.returncode == 2
    (said,) = done.stderr.splitlines()
    assert said.endswith("name another folder")
    assert not (tmp_path / "begun").exists()


def test_fit_saves_a_surrogate_per_platform_with_its_errors(pretune, history, tmp_path):
    done = pretune("fit", "--history", history, "--out", "fits", "--tracking", "none", "--json")
    assert done.returncode == 0, done.stderr
    fits = json.loads(done.stdout)["fits"]
    assert [each["platform"] for each in fits] == ["fast-link", "middling-link"]
    from pretune.model import BoostedTrees

    for each in fits:
        assert each["errors"]["median_absolute_relative_error"] < 0.1
        assert (tmp_path / each["folder"] / "predictions.parquet").exists()
        BoostedTrees.load(tmp_path / each["folder"] / "model")
        page, card = (tmp_path / each[name] for name in ("card", "card_json"))
        assert page.read_text().startswith(f"# Surrogate of {each['platform']}\n")
        everything = json.loads(card.read_text())["everything"]
        assert everything["trials"] == {"ok": 56, "oom": 8}
        assert everything["errors"]["median"] == each["errors"]["median_absolute_relative_error"]
        for picture in ("parity.png", "residuals.png", "attributions.png"):
            assert f"]({picture})" in page.read_text()
            assert (page.parent / picture).read_bytes().startswith(b"\x89PNG")


def test_fit_shows_a_platform_that_is_too_small_to_validate(pretune, history, tmp_path):
    trials = list(TrialStore(history).trials())
    alone = next(t for t in trials if t.ok and t.platform.name == "middling-link")
    fast = [t for t in trials if t.platform.name == "fast-link"][:12]
    TrialStore(tmp_path / "few").append([*fast, alone])
    done = pretune("fit", "--history", "few", "--out", "fits", "--tracking", "none")
    assert done.returncode == 0, done.stderr
    assert "middling-link: fits/middling-link/card.md" in done.stdout


def test_the_page_is_opened_where_the_session_was_tracked(monkeypatch, tmp_path):
    from pretune.cli.ui import page_command

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert page_command(tmp_path, None) == f"pretune ui --out {tmp_path}"
    assert page_command(tmp_path, "sqlite:///a b.db") == "pretune ui --tracking 'sqlite:///a b.db'"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert page_command(tmp_path, None) == "http://tracking:5000"


def test_ui_names_the_remedy_without_a_session(pretune):
    done = pretune("ui")
    assert done.returncode == 2
    assert "no session is under runs/ here" in done.stderr


def test_sync_tells_every_stored_trial_and_what_is_gone(pretune, write_job, tmp_path):
    pretune("tune", write_job(), "--tracking", "none", "--out", "here")
    done = pretune("sync", "here", "--tracking", "none", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"] > 4
    (tmp_path / "here" / "launch.sh").unlink()
    (tmp_path / "here").rename(tmp_path / "moved")
    done = pretune("sync", "moved", "--tracking", "none", "--json")
    assert json.loads(done.stdout)["missing"] == ["launch.sh"]
    assert "moved/launch.sh: is gone" in done.stderr
    assert pretune("sync", "nowhere").returncode == 2
