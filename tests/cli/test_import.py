import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from pretune.cli.reading import Bar
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
        (["trainer", str(GOLDEN)], "holds no file trainer_state.json"),
        (["megatron", str(GOLDEN), "--map", "columns.yaml"], "columns.yaml: columns: megatron names its own"),
        (["megatron", str(GOLDEN), "--map", "words.yaml"], "words.yaml: constants.model.layers: 'many'"),
        (["megatron", str(GOLDEN), "--map", "typo.yaml"], "typo.yaml: constants.model.layer: is no column"),
        (["megatron", str(GOLDEN), "--store", "typo.yaml"], "--store typo.yaml: cannot be made"),
    ],
)
def test_wrong_input_is_one_line(pretune, tmp_path, arguments, problem):
    (tmp_path / "columns.yaml").write_text("columns: {step_time_s: t}")
    (tmp_path / "words.yaml").write_text("constants: {model.layers: many}")
    (tmp_path / "typo.yaml").write_text("constants: {model.layer: 2}")
    done = pretune("import", "--store", "trials", *arguments)
    assert done.returncode == 2
    assert problem in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_file_of_another_kind_costs_a_folder_only_itself(pretune, tmp_path):
    (tmp_path / "pod.yaml").write_text(PLATFORM)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "README").write_text("what these runs were\n")
    (tmp_path / "logs" / "run.log").write_bytes((GOLDEN / "core_0.12.log").read_bytes())
    given = ["megatron", "logs", "--store", "trials", "--platform", "pod.yaml", "--json"]
    account = json.loads(pretune("import", *given).stdout)
    (aside,) = account["set_aside"]
    assert (account["taken"], aside["file"]) == (1, "logs/README")
    assert aside["reason"].startswith("is no megatron log")


def test_of_several_files_a_table_says_what_became_of_each(pretune, tmp_path):
    header = "gpu,gpus,tok/s\n"
    for name, rows in {"a": "H100-SXM,8,100\n", "b": "H100-SXM,8,100\nodd,16,100\n"}.items():
        (tmp_path / f"{name}.csv").write_text(header + rows)
    (tmp_path / "map.yaml").write_text(
        "columns: {accelerator.name: gpu, platform.devices: gpus, tokens_per_s: tok/s}\n"
        "constants: {model.name: m}\n"
    )
    done = pretune("import", "csv", "a.csv", "b.csv", "--store", "trials", "--map", "map.yaml")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["a.csv", "1", "0", "0"] in rows
    assert ["b.csv", "0", "1", "1"] in rows  # the row that both have is one run
    assert done.stdout.splitlines()[-1] == "trials: 1 taken, 1 already there, 1 set aside"


def test_the_table_shows_the_whole_name_of_a_file(pretune, tmp_path):
    folder = tmp_path / "a-name-that-leaves-no-room" / "on-a-line-of-eighty-characters" / "of-a-terminal"
    folder.mkdir(parents=True)
    for name in ("one.log", "two.log"):
        (folder / name).write_bytes((GOLDEN / "core_0.12.log").read_bytes())
    done = pretune("import", "megatron", folder, "--store", "trials")
    table = done.stdout.partition("taken")[2]
    shown = "".join(line.split()[0] for line in table.splitlines() if line.strip())
    assert f"{folder}/one.log" in shown
    assert f"{folder}/two.log" in shown


def test_a_terminal_sees_a_bar_of_bytes(tmp_path):
    (tmp_path / "a.log").write_bytes(b"x" * 1000)
    (tmp_path / "b.log").write_bytes(b"x" * 3000)
    shown = Console(file=io.StringIO(), force_terminal=True)
    with Progress(console=shown) as progress:
        bar = Bar(progress)
        bar.planned([tmp_path / "a.log", "a run on a server", tmp_path / "b.log"])
        (task,) = progress.tasks
        seen = []
        for source, count in (
            (tmp_path / "a.log", 600),
            ("a run on a server", 0),
            (tmp_path / "b.log", 3000),
        ):
            bar.reading(source)
            bar.read(count)
            seen.append(task.completed)
    assert (task.total, seen) == (4000, [600, 1000, 4000])
