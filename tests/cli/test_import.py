import json
from pathlib import Path

import pytest

from pretune.datasets.importers.megatron import MegatronLog

GOLDEN = Path(__file__).parents[1] / "datasets" / "importers" / "golden" / "megatron"
PLATFORM = "name: pod\naccelerator: {name: a100-sxm-80gb}\ndevices_per_node: 8\n"


def test_a_folder_of_logs_ends_with_an_account(pretune, tmp_path):
    (tmp_path / "pod.yaml").write_text(PLATFORM)
    given = [
        "megatron",
        str(GOLDEN),
        "--store",
        str(tmp_path / "trials"),
        "--platform",
        str(tmp_path / "pod.yaml"),
    ]
    first = pretune("import", *given, "--json")
    assert first.returncode == 0, first.stderr
    account = json.loads(first.stdout)
    runs = sum(len(list(MegatronLog().read(log))) for log in GOLDEN.iterdir())
    assert (account["taken"], account["already_there"], account["set_aside"]) == (runs, 0, [])
    second = pretune("import", *given)
    assert f"0 taken, {runs} already there, 0 set aside" in second.stdout


def test_what_has_no_platform_is_set_aside_by_line_and_says_what_to_do(pretune, tmp_path):
    done = pretune(
        "import", "megatron", str(GOLDEN / "core_0.12.log"), "--store", str(tmp_path / "trials"), "--json"
    )
    (aside,) = json.loads(done.stdout)["set_aside"]
    assert aside["line"] == 2
    assert "--platform" in aside["reason"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nosuch", "x"], "known: csv, deepspeed"),
        (["megatron", "nosuch.log"], "nosuch.log"),
        (["csv", str(GOLDEN / "core_0.12.log")], "--map"),
    ],
)
def test_wrong_input_is_one_line(pretune, tmp_path, arguments, problem):
    done = pretune("import", *arguments, "--store", str(tmp_path / "trials"))
    assert done.returncode == 2
    assert problem in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
