import importlib.util
import re
from pathlib import Path

from pretune.datasets import Status
from pretune.datasets.importers import FORMATS
from pretune.datasets.importers.complete import Given, complete
from pretune.datasets.importers.mapping import Mapping
from pretune.datasets.importers.table import Table
from pretune.datasets.spec import read_yaml

DOCS = Path(__file__).parents[3] / "docs"


def test_the_tables_of_formats_are_what_the_importers_fill():
    spec = importlib.util.spec_from_file_location("formats", DOCS / "formats.py")
    formats = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(formats)
    for path, text in formats.pages().items():
        assert text == path.read_text(encoding="utf-8"), "run python docs/formats.py"
        assert all(f"| `{name}` |" in text for name in FORMATS)
    assert "| `megatron-bridge` | the tables" in formats.summary()
    (megatron,) = [row for row in formats.summary().splitlines() if row.startswith("| `megatron` |")]
    assert megatron.count("✓") == len(formats.KINDS)


def test_the_map_that_the_page_shows_reads_a_table(tmp_path):
    blocks = re.findall(r"```yaml\n(.*?)```", (DOCS / "import.md").read_text(encoding="utf-8"), re.DOTALL)
    (shown,) = [block for block in blocks if "columns:" in block]
    (tmp_path / "map.yaml").write_text(shown)
    mapping = Mapping.from_mapping(read_yaml(tmp_path / "map.yaml"), "map.yaml")
    (tmp_path / "runs.csv").write_text(
        "job,iteration (ms),mbs,gpus,outcome\na,8000,2,64,finished\nb,,4,64,killed\n"
    )
    runs = Table(mapping).read(tmp_path / "runs.csv")
    ran, killed = [complete(run, tmp_path, "csv", Given(None, dict(mapping.constants))) for run in runs]
    assert (ran.step_time_s, ran.knobs.accumulation, ran.status) == (8.0, 4, Status.OK)
    assert (killed.status, killed.knobs.micro_batch) == (Status.OOM, 4)
