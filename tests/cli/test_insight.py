"""``pretune portability`` and ``explain`` on the history that ships."""

import json


def test_the_shipped_platforms_are_judged_and_drawn(pretune, tmp_path):
    found = pretune("portability", "--budget", "0", "--plot", tmp_path / "plots", "--json")
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    assert len(answer["problems"]) == 2
    for problem in answer["problems"]:
        assert len(problem["platforms"]) == 5
        policies = {each["policy"]: each["scores"]["application"] for each in problem["policies"]}
        assert policies["stock defaults"]["harmonic"] < policies["tuned on each"]["harmonic"] == 1.0
    assert len(answer["plots"]) == 2
    assert all((tmp_path / "plots" / f"cascade-{n}.svg").stat().st_size for n in (1, 2))

    wrong = pretune("portability", "--platforms", "cpu-half,nowhere")
    assert wrong.returncode == 2
    assert "known: cpu-1gbit" in wrong.stderr


def test_explain_parts_what_was_measured_from_what_is_predicted(pretune):
    shown = pretune("explain", "--platform", "cpu-half")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.index("What the defaults cost") < shown.stdout.index("measured, pairs")
    assert "predicted, too few pairs" in shown.stdout
    answer = json.loads(pretune("explain", "--platform", "cpu-half", "--json").stdout)
    assert len(answer["insights"]) == 2
