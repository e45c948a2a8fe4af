"""Shapes, parameters and FLOPs of models; batches; and what is said when they do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pretune.datasets import Accelerator, ModelSpec, Platform, Workload
from pretune.datasets.presets import model
from pretune.datasets.spec import Spec
from pretune.datasets.stated import nearest_divisors
from pretune.errors import InputError

CONFIGS = Path(__file__).with_name("golden") / "huggingface"


# Published counts; GPT-2's, Pythia's, MPT's and Qwen's include biases or leave some out, hence the tolerance.
@pytest.mark.parametrize(
    ("name", "published", "tolerance"),
    [
        ("gpt2-small", 124_439_808, 1e-3),
        ("gpt2-xl", 1_557_611_200, 1e-3),
        ("gpt3-175b", 174.6e9, 1e-3),
        ("llama-2-7b", 6_738_415_616, 0),
        ("llama-2-13b", 13_015_864_320, 0),
        ("llama-2-70b", 68_976_648_192, 0),
        ("llama-3-8b", 8_030_261_248, 0),
        ("llama-3-70b", 70_553_706_496, 0),
        ("llama-3.1-405b", 405_853_388_800, 0),
        ("mistral-7b", 7_241_732_096, 0),
        ("mixtral-8x7b", 46_702_792_704, 0),
        ("qwen2.5-7b", 7_615_616_512, 1e-4),
        ("mpt-7b", 6_649_286_656, 1e-4),
        ("pythia-6.9b", 6_857_302_016, 1e-3),
    ],
)
def test_parameters_are_the_published_ones(name: str, published: float, tolerance: float) -> None:
    assert model(name).parameters == pytest.approx(published, rel=tolerance, abs=0)


def test_gpt2_without_its_linear_biases() -> None:
    """12 layers x (3 x 768 + 768 + 3072 + 768) biases are what our count lacks: 82,944."""
    assert 124_439_808 - model("gpt2-small").parameters == 12 * (3 * 768 + 768 + 4 * 768 + 768)


def test_mixtral_uses_a_quarter_of_its_experts() -> None:
    spec = model("mixtral-8x7b")
    idle = 6 * 3 * spec.hidden_size * spec.ffn_size
    assert spec.layer_parameters - spec.active_layer_parameters == idle


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt-tiny", "llama-mini"])
def test_the_trial_program_builds_exactly_these_weights(name: str) -> None:
    from pretune.collector.transformer import Transformer

    spec = model(name)
    assert [weight.numel() for weight in Transformer(spec).parameters()] == spec.weight_sizes


def test_flops_of_gpt3_are_six_per_weight_and_the_attention() -> None:
    """Brown et al. 2020, arXiv:2005.14165, table D.1: 3.14e23 FLOPs for 300e9 tokens, attention left out."""
    spec = model("gpt3-175b")
    without_attention = spec.flops_per_token(1)
    assert without_attention * 300e9 == pytest.approx(3.14e23, rel=0.01)
    whole = spec.flops_per_token(2048, causal=False) - without_attention
    assert spec.flops_per_token(2048) - without_attention == pytest.approx(whole / 2, rel=1e-2)


# -- config.json --------------------------------------------------------------------
def test_config_json_of_gpt2() -> None:
    spec = ModelSpec.from_huggingface(CONFIGS / "gpt2.json")
    assert spec.model_copy(update={"name": "gpt2-small"}) == model("gpt2-small")


def test_config_json_of_llama_3() -> None:
    spec = ModelSpec.from_huggingface(CONFIGS / "llama-3-8b.json")
    assert spec.model_copy(update={"name": "llama-3-8b"}) == model("llama-3-8b")


def test_config_json_of_mixtral() -> None:
    spec = ModelSpec.from_huggingface(CONFIGS / "mixtral-8x7b.json")
    assert spec.model_copy(update={"name": "mixtral-8x7b"}) == model("mixtral-8x7b")


def test_config_json_of_llama_2_without_newer_keys() -> None:
    """Its config has no num_key_value_heads in early files and no rope_theta: rms_norm_eps gives it away."""
    spec = ModelSpec.from_huggingface(CONFIGS / "llama-2-7b.json")
    assert spec.model_copy(update={"name": "llama-2-7b"}) == model("llama-2-7b")


def test_config_json_of_pythia() -> None:
    spec = ModelSpec.from_huggingface(CONFIGS / "pythia-1.4b.json")
    assert spec.model_copy(update={"name": "pythia-1.4b"}) == model("pythia-1.4b")


# google/gemma-2b, as its documentation gives the shape; the parameters are the published count
GEMMA = {
    "model_type": "gemma",
    "num_hidden_layers": 18,
    "hidden_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "intermediate_size": 16384,
    "hidden_act": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "vocab_size": 256000,
}


def test_config_json_of_gemma_whose_mlp_is_gated_by_gelu(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GEMMA))
    spec = ModelSpec.from_huggingface(path)
    assert spec.gated_mlp
    assert spec.parameters == 2_506_172_416


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"head_dim": 512}, "head_dim: 512 x 8 heads is not hidden_size 2048"),
        ({"n_shared_experts": 2}, "n_shared_experts: 2 is a shape"),
        ({"q_lora_rank": 1536}, "q_lora_rank: 1536 is a shape"),
        ({"mlp_only_layers": [0]}, r"mlp_only_layers: \[0\] is a shape"),
    ],
)
def test_a_shape_that_no_field_holds_is_refused_by_its_key(tmp_path: Path, change: dict, said: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GEMMA | change))
    with pytest.raises(InputError, match=said):
        ModelSpec.from_huggingface(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not a readable config.json"),
        ("[1]", "is not a readable config.json"),
        ('{"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 9}', "num_hidden_layers"),
        (
            '{"num_hidden_layers": "x", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 9}',
            "layers",
        ),
    ],
)
def test_a_config_json_that_is_none_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        ModelSpec.from_huggingface(path)
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_config_json_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.json: is not a readable"):
        ModelSpec.from_huggingface(tmp_path / "nowhere.json")


# -- what is wrong, with the numbers and the nearest legal values --------------------
SHAPE = {"name": "m", "layers": 2, "hidden_size": 64, "heads": 4, "vocabulary": 100}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"heads": 5}, "hidden_size 64 is not divisible by heads 5; nearest legal heads: 4 or 8"),
        ({"kv_heads": 3}, "heads 4 is not divisible by kv_heads 3; nearest legal kv_heads: 2 or 4"),
        ({"experts": 4}, "experts and experts_per_token are given together"),
        ({"experts": 2, "experts_per_token": 3}, "experts_per_token 3 exceeds experts 2"),
        ({"layers": 0}, "layers: Input should be greater than 0, got 0"),
        ({"kv_heads": 0}, "kv_heads: Input should be greater than 0, got 0"),
        ({"hiden_size": 3}, "hiden_size: is no field here"),
    ],
)
def test_a_shape_that_cannot_be_is_explained(change: dict, said: str) -> None:
    with pytest.raises(InputError) as caught:
        ModelSpec.from_mapping(SHAPE | change, "job.yaml")
    assert str(caught.value).startswith("job.yaml: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"global_batch_tokens": 100}, "100 is no whole number of sequences of 32; nearest: 96 or 128"),
        ({"global_batch_tokens": 20}, "20 is no whole number of sequences of 32; nearest: 32"),
        (
            {"sequence_length": 4096, "global_batch_tokens": 4096},
            "4096 exceeds the model's max_positions 2048",
        ),
        ({"precision": "int8"}, "precision: Input should be 'fp32'"),
    ],
)
def test_a_batch_that_cannot_be_is_explained(change: dict, said: str) -> None:
    job = {"model": SHAPE, "sequence_length": 32, "global_batch_tokens": 64}
    with pytest.raises(InputError) as caught:
        Workload.from_mapping(job | change, "job.yaml")
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["two ranks", "../up", "", ".hidden", "a/b"])
def test_a_platform_name_must_make_a_folder(name: str) -> None:
    data = {"name": name, "accelerator": {"name": "cpu"}, "devices_per_node": 2}
    with pytest.raises(InputError, match="it names a folder"):
        Platform.from_mapping(data, "platform.yaml")


def test_node_counts_of_one_kind_of_hardware_are_a_family() -> None:
    one = Platform(name="one", accelerator=Accelerator(name="h100"), devices_per_node=8)
    four = one.model_copy(update={"name": "four", "nodes": 4})
    assert (one.devices, four.devices) == (8, 32)
    assert one.family == four.family


@pytest.mark.parametrize(
    ("number", "wanted", "near"),
    [(12, 5, [4, 6]), (12, 12, [12]), (12, 20, [12]), (7, 3, [1, 7]), (1, 1, [1])],
)
def test_nearest_divisors(number: int, wanted: int, near: list[int]) -> None:
    assert nearest_divisors(number, wanted) == near


# -- YAML -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("layers: [", "is not valid YAML"),
        ("\x00", "is not valid YAML"),
        ("", "valid dictionary"),
        ("- 1", "valid dictionary"),
    ],
)
def test_a_file_that_is_no_model_is_named_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        ModelSpec.from_yaml(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_survives_json() -> None:
    spec: Spec = model("mixtral-8x7b")
    again: Any = json.loads(spec.model_dump_json())
    assert ModelSpec.model_validate(again) == spec
