"""A report says what the store says: of a session, of one that was killed, of one in which nothing ran."""

import json
import re
import shutil
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.datasets import TrialStore
from pretune.errors import InputError
from pretune.mlflow_config import NoTracker
from pretune.tuner import JobSpec, TuningSession
from pretune.tuner.recall import recall
from pretune.tuner.report import report
from pretune.tuner.report.charts import chart
from pretune.tuner.tables import Section, Table


def sections(place):
    return {section.key: section for section in report(str(place)).sections}


def test_a_session_is_recalled_as_it_answered(finished):
    out, answer = finished
    found = recall(out)
    assert (
        found.written
        == json.loads((out / "best.json").read_text())
        == json.loads(json.dumps(answer.asdict()))
    )
    assert [trial.trial_id for trial in found.answer.trials] == [trial.trial_id for trial in answer.trials]
    assert found.answer.comparison.recommended.asdict() == answer.comparison.recommended.asdict()
    assert found.answer.comparison.speedup == answer.comparison.speedup


def test_every_figure_is_the_stores(finished):
    out, answer = finished
    found = sections(out)
    stored = {trial.trial_id: trial for trial in TrialStore(out / "trials").trials()}
    searched = found["trials"].tables[0].records()
    assert len(searched) == 3
    for row in searched:
        assert row["tokens/s per device"] == stored[row["trial"]].tokens_per_s_per_device
    compared = {row["configuration"]: row for row in found["answer"].tables[0].records()}
    assert compared["winner"]["tokens/s per device"] == answer.comparison.winner.tokens_per_s_per_device
    assert sorted(found["answer"].words) == sorted(answer.sentences())
    assert found["parity"].tables[1].records()[0]["trials"] == sum(stored[r["trial"]].ok for r in searched)
    assert f"pretune tune {out}/job.yaml --out {out}" in found["reproduce"].commands[0]


def test_the_commands_go_on_with_the_session(finished):
    out, answer = finished
    before = sorted(path.name for path in out.glob("trials/*/*"))
    again = TuningSession(JobSpec.from_yaml(out / "job.yaml"), out, NoTracker()).run()
    assert again.comparison.recommended.asdict() == answer.comparison.recommended.asdict()
    assert sorted(path.name for path in out.glob("trials/*/*")) == before


def test_a_session_that_was_killed_says_how_far_it_came(finished, tmp_path):
    out, answer = shutil.copytree(finished[0], tmp_path / "out"), finished[1]
    (out / "best.json").unlink()
    for path in [*out.glob("trials/*/*-v0*"), *out.glob("trials/*/*-t002*")]:
        path.unlink()
    found = sections(out)
    best = max(trial.tokens_per_s_per_device or 0 for trial in answer.trials[:2])
    assert f"fastest so far: {best:,.0f} tokens/s per device" in found["answer"].words[0]
    assert "begun and not ended" in found["answer"].words[-1]
    assert not found["answer"].commands
    assert len(found["trials"].tables[0].rows) == 2


def test_where_nothing_ran_the_causes_are_counted(failed_store):
    found = sections(failed_store)
    (row,) = found["failures"].tables[0].records()
    assert row["trials"] == 5
    assert row["cause"] == "the kernel killed rank 0 for memory"
    assert found["parity"].words == ["no trial that ran was predicted before it"]
    assert chart(found["parity"]) is None
    assert chart(found["trials"])["usermeta"]["rows"] == 5


def test_a_store_of_several_problems_is_told_one_at_a_time(history, tmp_path):
    trials = sorted(TrialStore(history).trials(), key=lambda trial: trial.trial_id)
    few = [trial for trial in trials if trial.knobs.zero_stage == 0 and trial.knobs.micro_batch < 4]
    TrialStore(tmp_path / "few").append(few)
    found = sections(tmp_path / "few")
    names = {row["problem"] for row in found["trials"].tables[0].records()}
    assert len(names) == 2
    (chosen,) = [p for p in chart(found["trials"])["params"] if p["name"] == "problem"]
    assert set(chosen["bind"]["options"]) == names
    assert "best single configuration" in {r["policy"] for r in found["cascade"].tables[0].records()}


@pytest.mark.long
def test_measured_and_predicted_effects_stay_apart(history):
    measured, _, predicted = sections(history)["effects"].tables
    assert all(row["pairs"] >= 3 for row in measured.records())
    assert "pairs" not in predicted.columns


def test_a_place_that_holds_nothing_is_one_line(tmp_path):
    with pytest.raises(InputError, match="is neither a session's folder nor a store"):
        report(str(tmp_path))


@given(st.floats(allow_nan=False, allow_infinity=False), st.text())
def test_a_page_keeps_all_digits_and_takes_any_text(number, text):
    html = Table(("<figure>", "words"), [(number, text)])._repr_html_()
    assert float(re.search(r'data value="([^"]*)"', html)[1]) == number
    assert "<figure>" not in html
    assert unescape(re.findall(r"<td[^>]*>(.*?)</td>", html, re.DOTALL)[1]) == text


def test_a_notebook_shows_the_same_figures(finished):
    _, answer = finished
    html = answer._repr_html_()
    assert f'value="{answer.comparison.winner.tokens_per_s_per_device!r}"' in html
    assert answer.sentences()[0] in html
    assert "<pre>" not in Section("a", "b", ["c"])._repr_html_()
