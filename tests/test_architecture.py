"""The rules of the house that no single part can hold by itself."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "pretune"
DOORS = ["collector", "datasets", "mlflow_config", "model", "tuner"]

# part -> the parts that it may import; all may import pretune.errors and themselves
MAY_IMPORT = {
    "datasets": set(),
    "collector": {"datasets"},
    "model": {"datasets"},
    "mlflow_config": {"datasets", "model"},
    "tuner": {"datasets", "collector", "model", "mlflow_config"},
    "cli": {"datasets", "collector", "model", "mlflow_config", "tuner"},
    "errors": set(),
    "": {"datasets", "model", "tuner"},
}
HEAVY = {"torch", "polars", "xgboost", "mlflow", "pyarrow", "sklearn", "scipy", "deepspeed", "pandas"}


def part_of(module: str) -> str:
    """``pretune.model.base`` -> ``model``; a name in ``pretune`` itself -> the empty name."""
    part = [*module.split("."), ""][1]
    return part if part in MAY_IMPORT else ""


def imports(path: Path, root: Path = PACKAGE) -> Iterator[str]:
    """Every module of pretune's that a file imports, wherever in the file."""
    package = ["pretune", *path.parent.relative_to(root).parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "pretune")
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, node.module] if node.module else above)
            if module == "pretune":
                yield from (f"pretune.{alias.name}" for alias in node.names)
            elif module.startswith("pretune."):
                yield module


def sources() -> list[Path]:
    return sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")])


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_imports_run_downward_only(part):
    names = {path: path.relative_to(PACKAGE).with_suffix("").parts[0] for path in sources()}
    own = [path for path, name in names.items() if name == (part or "__init__")]
    assert own
    allowed = MAY_IMPORT[part] | {part, "errors", ""}
    wrong = [
        f"{path.relative_to(ROOT)}: {m}" for path in own for m in imports(path) if part_of(m) not in allowed
    ]
    assert wrong == []


def test_the_import_reader_sees_every_form_of_import(tmp_path):
    file = tmp_path / "collector" / "a.py"
    file.parent.mkdir()
    lines = ["import os, pretune.tuner.x", "from pretune.model import y", "def f():", " from ..cli import z"]
    file.write_text("\n".join([*lines, "from . import b", "from pretune import cli"]))
    found = ["pretune.cli", "pretune.cli", "pretune.collector", "pretune.model", "pretune.tuner.x"]
    assert sorted(imports(file, tmp_path)) == found


@pytest.mark.parametrize("name", DOORS)
def test_the_top_level_door_is_a_relative_link(name):
    door = ROOT / name
    assert door.is_symlink()
    assert os.readlink(door) == f"src/pretune/{name}"
    assert door.resolve() == PACKAGE / name


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


def test_importing_the_collector_is_cheap():
    timed = "import time; t = time.perf_counter(); import pretune.collector; print(time.perf_counter() - t)"
    assert min(float(run_python(timed)) for _ in range(3)) < 0.1


@pytest.mark.parametrize(
    "statement", ["import pretune.collector", "from pretune.collector import TrialRecorder"]
)
def test_the_collector_brings_no_heavy_library_into_a_training_process(statement):
    loaded = run_python(f"{statement}; import sys; print(*sorted(sys.modules))").split()
    assert HEAVY.intersection(loaded) == set()


def texts() -> Iterator[Path]:
    """The project's own text files."""
    kinds = {".py", ".pyi", ".md", ".yaml", ".toml", ".txt", ".json", ".in", ""}
    skipped = re.compile(
        r"(^|/)(\.git$|(\.git|\.venv|runs|build|dist|__pycache__|\.[a-z]+_cache|\.hypothesis|[^/]+\.egg-info)/)"
    )
    for folder, _, names in os.walk(ROOT):
        for path in (Path(folder, name) for name in names):
            if path.suffix in kinds and not skipped.search(str(path.relative_to(ROOT))) and path.is_file():
                yield path


# somebody's home or working folder; in a web address it is a page
SOMEBODYS = re.compile(r"(?<![\w.])/(home|root|Users|work|tmp)/\w")


def test_no_file_names_a_path_of_the_machine_it_was_written_on():
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()[:100]}"
        for file in texts()
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
        if SOMEBODYS.search(line) or str(ROOT) in line
    ]
    assert found == []
    assert SOMEBODYS.search(f"open('{Path('/', 'home', 'me', 'x.py')}')")


def test_no_file_is_too_long_to_read():
    files = [path for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    long = {str(p.relative_to(ROOT)): n for p in files if (n := len(p.read_text().splitlines())) > 400}
    assert long == {}
