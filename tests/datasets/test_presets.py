"""Presets: every name resolves, every number has a document and a believable size."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from pretune.datasets import StatedModel, presets
from pretune.errors import InputError

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("PRETUNE_SHARED", ROOT.parent / "shared"))


@pytest.mark.parametrize("name", presets.model_names())
def test_every_model_can_be_built_and_has_a_source(name: str) -> None:
    spec = presets.model(name)
    assert spec.name == name
    assert spec.parameters > 1e6
    assert presets._entries("models.yaml")[name]["source"]


@pytest.mark.parametrize("name", presets.accelerator_names())
def test_every_accelerator_has_documents_and_consistent_figures(name: str) -> None:
    preset = presets.accelerator(name)
    assert preset.accelerator.name == name
    assert all(len(document) > 20 for document in preset.sources.values())
    peak = {k: v for k, v in preset.accelerator.peak_flops_per_s.model_dump().items() if v is not None}
    in_order = [peak[precision] for precision in ("fp32", "tf32", "bf16", "fp8") if precision in peak]
    assert in_order == sorted(in_order)
    inside, between = preset.intra_node.bandwidth_bytes_per_s, preset.inter_node.bandwidth_bytes_per_s
    assert inside is None or between is None or inside >= between
    complete = peak and preset.accelerator.memory_bytes and inside and between
    assert complete or preset.note, "what is missing is said in the note"


def test_figures_that_are_known_by_heart() -> None:
    h100 = presets.accelerator("H100-SXM-80GB")
    assert h100.accelerator.peak_flops_per_s.bf16 == pytest.approx(989.4e12)
    assert h100.accelerator.memory_bytes == 80 * 2**30
    assert h100.accelerator.memory_bandwidth_bytes_per_s == pytest.approx(3.35e12)
    assert h100.intra_node.bandwidth_bytes_per_s == pytest.approx(450e9)
    assert h100.inter_node.bandwidth_bytes_per_s == pytest.approx(50e9)
    assert h100.devices_per_node == 8


@pytest.mark.parametrize(
    "spelling",
    ["h100-sxm-80gb", "H100 SXM 80GB", "h100_sxm", "NVIDIA H100 80GB HBM3"],
)
def test_names_are_found_however_they_are_spelled(spelling: str) -> None:
    assert presets.accelerator(spelling).accelerator.name == "h100-sxm-80gb"


def test_no_name_or_alias_means_two_things() -> None:
    for file in ("models.yaml", "accelerators.yaml"):
        entries = presets._entries(file)
        spellings = [
            presets._normal(alias)
            for name, entry in entries.items()
            for alias in (name, *entry.get("aliases", ()))
        ]
        assert len(spellings) - len(set(spellings)) == 0


def test_an_unknown_name_brings_close_ones() -> None:
    with pytest.raises(InputError, match=r"no preset named 'lama-2-7b'; did you mean llama-2-7b"):
        presets.model("lama-2-7b")
    with pytest.raises(InputError, match=r"no preset named 'h100-smx-80gb'; did you mean h100-sxm-80gb"):
        presets.accelerator("h100-smx-80gb")
    with pytest.raises(InputError, match=r"no preset named '\?'; known: gpt-tiny"):
        presets.model("?")


@pytest.mark.shared
def test_every_accelerator_of_the_published_measurements_resolves() -> None:
    folder = SHARED / "data" / "llm_pretraining"
    if not folder.is_dir():
        message = f"{folder} is not here; set PRETUNE_SHARED to the folder that holds data/"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    names: set[str] = set()
    for path in folder.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            names |= {row["accelerator"] for row in csv.DictReader(file)}
    names.discard("")  # one source does not state it
    assert len(names) > 20
    for name in names:
        assert presets.accelerator(name)


def test_somebodys_own_names_are_known_or_none() -> None:
    found = presets.known_accelerator("NVIDIA A100-SXM4-80GB")
    assert found
    assert (found.accelerator.name, found.backend) == ("a100-sxm-80gb", "nccl")
    assert presets.known_accelerator("our own chip") is None
    assert presets.known_model(StatedModel(name="GPT2", layers=12)) == presets.model("gpt2-small")
    assert presets.known_model(StatedModel(name="GPT2", layers=13)) is None
    assert presets.known_model(StatedModel(name="our own model")) is None
