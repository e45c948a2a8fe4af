"""The package as others install it: the wheel that is built from the sdist, in an empty environment."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
# what only an extra brings: a module that asks for one of these may fail to import without it
EXTRAS = {"torch", "deepspeed", "mlflow", "pandas", "matplotlib", "pynvml"} | {
    "altair",
    "jinja2",
    "markupsafe",
    "optuna",
    "ray",
    "transformers",
    "pytorch_lightning",
}

IMPORT_ALL = f"""
import importlib, pkgutil, sys
import pretune

assert pretune.__file__.startswith(sys.prefix), pretune.__file__
assert pretune.Knobs(zero_stage=1).settings() == {{"zero_stage": 1}}
def stop(name):
    raise
done = 0
for module in pkgutil.walk_packages(pretune.__path__, "pretune.", onerror=stop):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
        done += 1
    except ModuleNotFoundError as error:
        assert not module.ispkg, module.name
        assert error.name.split(".")[0] in {EXTRAS!r}, (module.name, error.name)
print(done)
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=200)
    assert len(list(out.glob("*.tar.gz"))) == 1
    return next(out.glob("*.whl"))


def test_the_wheel_holds_every_file_of_the_package_and_only_those(wheel):
    files = {path for path in (SOURCE / "pretune").rglob("*") if path.is_file()}
    expected = {str(path.relative_to(SOURCE)) for path in files if "__pycache__" not in path.parts}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == expected
    for kind in ("py.typed", ".pyi", ".yaml", ".parquet", ".j2"):
        assert any(name.endswith(kind) for name in packed), kind


def test_every_module_imports_from_the_wheel_with_the_core_dependencies_alone(wheel, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    install = [python, "-m", "pip", "install", "-q", "-c", constraints, wheel]
    subprocess.run(install, check=True, timeout=280)
    imported = subprocess.run(
        [python, "-c", IMPORT_ALL], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
    )
    assert int(imported.stdout) > 20
