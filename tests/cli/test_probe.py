from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pretune.cli import app
from pretune.collector import probe
from pretune.datasets import Platform, TrialStore

GOLDEN = Path(__file__).parents[1] / "datasets" / "importers" / "golden" / "megatron"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--hosts", "nosuch.yaml", "--out", "p.yaml"], "nosuch.yaml: cannot be read"),
        (["--out", "."], "--out .: is a folder; name the platform file to write"),
        (["--out", "p.yaml", "--name", "a/b"], "platform: name 'a/b' must be letters"),
    ],
)
def test_wrong_input_is_one_line_and_starts_nothing(pretune, tmp_path, arguments, problem):
    done = pretune("probe", *arguments)
    assert done.returncode == 2
    assert problem in done.stderr
    assert done.stderr.count("pretune: ") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_what_it_writes_is_a_platform_for_the_other_commands(pretune, write_job, tmp_path, monkeypatch):
    tiny = probe.Plan(
        matrix_sizes={"cpu": (64, 128)},
        message_bytes={"cpu": (256, 1 << 16, 1 << 20)},
        precisions={"cpu": ("fp32",)},
        ops=probe.WHOLE.ops,
    )
    monkeypatch.setattr(probe, "WHOLE", tiny)  # the whole takes minutes
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    hosts = {"hosts": [{"interface": "lo", "ranks": 2}], "warm": False}
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(hosts))
    out = tmp_path / "made" / "platform.yaml"
    given: list[Any] = ["probe", "--hosts", tmp_path / "hosts.yaml", "--out", out, "--name", "here"]
    done = CliRunner().invoke(app, [str(each) for each in given])
    assert done.exit_code == 0, done.output
    for shown in ("here: 1 nodes of 2 devices", "fp32", "intra node all gather", f"platform: {out}"):
        assert shown in done.output
    assert "measuring intra_node point_to_point" in done.stderr
    assert Platform.from_yaml(out).intra_node.latency_s > 0
    assert json.loads((out.with_suffix(".probe") / "probe" / "probe.json").read_text())["collectives"]

    ranked = pretune("predict", write_job(platform=str(out), history=None), "--json")
    assert json.loads(ranked.stdout)["platform"] == "here"
    log = str(GOLDEN / "core_0.12.log")
    pretune("import", "megatron", log, "--store", tmp_path / "trials", "--platform", out)
    (trial,) = TrialStore(tmp_path / "trials").trials()
    assert trial.platform.fingerprint == Platform.from_yaml(out).fingerprint
