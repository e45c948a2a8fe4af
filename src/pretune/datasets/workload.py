"""What is trained: the shape of a transformer, and the batch and numerics it is trained with."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from pretune.datasets.stated import Precision, StatedModel, StatedWorkload
from pretune.errors import InputError


class ModelSpec(StatedModel):
    """The whole shape of a decoder-only transformer.

    ``kv_heads`` and ``ffn_size`` default to the GPT shape (as many as ``heads``;
    4 x ``hidden_size``). ``experts`` = 0 means a dense model.
    """

    layers: PositiveInt
    hidden_size: PositiveInt
    heads: PositiveInt
    vocabulary: PositiveInt
    kv_heads: PositiveInt = Field(default=0, validate_default=False)
    ffn_size: PositiveInt = Field(default=0, validate_default=False)
    gated_mlp: bool = False
    tied_embeddings: bool = True
    positions: Literal["learned", "rotary"] = "learned"
    max_positions: PositiveInt = 2048
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    experts: int = Field(default=0, ge=0)
    experts_per_token: int = Field(default=0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _gpt_defaults(cls, data: Any) -> Any:
        if isinstance(data, dict):
            data = dict(data)
            if data.get("kv_heads") is None:
                data["kv_heads"] = data.get("heads")
            if data.get("ffn_size") is None:
                with contextlib.suppress(TypeError, ValueError):  # which the field itself will report
                    data["ffn_size"] = 4 * int(data.get("hidden_size"))
        return data

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.heads

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer's matrices: Q and O, K and V, MLP (all experts), router."""
        attention = 2 * self.hidden_size**2 + 2 * self.hidden_size * self.kv_heads * self.head_size
        mlp = (3 if self.gated_mlp else 2) * self.hidden_size * self.ffn_size
        return attention + mlp * max(self.experts, 1) + self.hidden_size * self.experts

    @property
    def active_layer_parameters(self) -> int:
        """Matrix weights of one layer that one token passes through."""
        idle = self.experts - self.experts_per_token
        mlp = (3 if self.gated_mlp else 2) * self.hidden_size * self.ffn_size
        return self.layer_parameters - mlp * idle

    @property
    def parameters(self) -> int:
        """All weights: matrices, embeddings, norms; no linear biases (as the trial program builds it)."""
        return sum(self.weight_sizes)

    @property
    def weight_sizes(self) -> list[int]:
        """Elements of each weight in forward order, as the trial program builds it: Q, K and V are one."""
        return self.weight_sizes_of_rank()

    def weight_sizes_of_rank(self, tp: int = 1, pp: int = 1) -> list[int]:
        """The same of one rank of the first of ``pp`` pipeline stages.

        Each of ``tp`` ranks has a share of each layer's matrices and of a head that is not tied.
        """
        embedding = self.vocabulary * self.hidden_size
        qkv = self.hidden_size * (self.heads + 2 * self.kv_heads) * self.head_size
        norm = [self.hidden_size] * (2 if self.norm == "layernorm" else 1)
        router = [self.hidden_size * self.experts] if self.experts else []
        mlp = [self.hidden_size * self.ffn_size // tp] * (3 if self.gated_mlp else 2) * max(self.experts, 1)
        layer = [*norm, qkv // tp, self.hidden_size**2 // tp, *norm, *router, *mlp]
        positions = [self.max_positions * self.hidden_size] if self.positions == "learned" else []
        first = [embedding, *positions, *(layer * (self.layers // pp))]
        head = [] if self.tied_embeddings else [embedding // tp]
        return first if pp > 1 else [*first, *norm, *head]

    def flops_per_token(self, sequence_length: int, causal: bool = True) -> float:
        """Model FLOPs of forward and backward for one token, logits included, no recomputation.

        6 FLOPs per matrix weight (Kaplan et al. 2020, arXiv:2001.08361, sec. 2.1) and
        12 x layers x hidden x sequence for attention scores and values (PaLM,
        arXiv:2204.02311, appendix B), halved when only the causal half is counted.
        """
        matrices = self.layers * self.active_layer_parameters + self.vocabulary * self.hidden_size
        attention = 12.0 * self.layers * self.hidden_size * sequence_length
        return 6.0 * matrices + attention * (0.5 if causal else 1.0)

    @classmethod
    def from_huggingface(cls, path: str | Path) -> Self:
        """Read a Hugging Face ``config.json`` of a GPT-2, GPT-NeoX, Llama, Gemma or Mixtral kind of model.

        Raises :class:`InputError` naming the file and the key that is missing, or that says what a
        ModelSpec cannot.
        """
        try:
            config = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{path}: is not a readable config.json ({error})") from None
        if not isinstance(config, dict):
            raise InputError(f"{path}: is not a readable config.json (it holds no object)")
        return cls.from_config(config, str(path))

    @classmethod
    def from_config(cls, config: dict[str, Any], where: str) -> Self:
        """The same from what a config.json holds; ``where`` names it in an :class:`InputError`."""
        return cls.from_mapping(_from_config(config, where), where)


# field of ModelSpec -> the keys under which config.json files have it; the first four must be there
_CONFIG_KEYS = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden_size": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "vocabulary": ("vocab_size",),
    "kv_heads": ("num_key_value_heads",),
    "ffn_size": ("moe_intermediate_size", "intermediate_size", "n_inner"),
    "max_positions": ("max_position_embeddings", "n_positions"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok",),
}
# what these say has no field here, unless they are absent, null, 0, false or empty
_BEYOND_KEYS = (
    "n_shared_experts",
    "shared_expert_intermediate_size",
    "first_k_dense_replace",
    "mlp_only_layers",
    "q_lora_rank",
    "kv_lora_rank",
)
_ROTARY_KEYS = {"rope_theta", "rope_scaling", "rope_parameters", "rotary_pct", "rms_norm_eps"}


def _from_config(config: dict[str, Any], where: str) -> dict[str, Any]:
    """ModelSpec's fields from the keys of a config.json."""
    data: dict[str, Any] = {}
    for field, keys in _CONFIG_KEYS.items():
        value = next((config[key] for key in keys if config.get(key) is not None), None)
        if value is not None:
            data[field] = value
        elif field in ("layers", "hidden_size", "heads", "vocabulary"):
            raise InputError(f"{where}: has no {' or '.join(keys)}; it is no config.json of a language model")
    for field, value in data.items():
        if not isinstance(value, int):
            raise InputError(f"{where}: {'/'.join(_CONFIG_KEYS[field])}: {value!r} is no whole number")
    for key in _BEYOND_KEYS:
        if config.get(key):
            raise InputError(f"{where}: {key}: {config[key]!r} is a shape that pretune cannot describe")
    head_size = config.get("head_dim")
    if head_size and head_size * data["heads"] != data["hidden_size"]:
        raise InputError(
            f"{where}: head_dim: {head_size} x {data['heads']} heads is not hidden_size "
            f"{data['hidden_size']}, a shape that pretune cannot describe"
        )
    rotary = bool(_ROTARY_KEYS & config.keys())
    # gates with GELU, ties unless told otherwise
    gemma = str(config.get("model_type", "")).startswith("gemma")
    activation = config.get("hidden_act") or config.get("activation_function")
    tied = config.get("tie_word_embeddings")
    return data | {
        "name": config.get("_name_or_path") or config.get("model_type") or "model",
        "gated_mlp": gemma or activation in ("silu", "swiglu"),
        "tied_embeddings": gemma or not rotary if tied is None else tied,
        "positions": "rotary" if rotary else "learned",
        "norm": "rmsnorm" if "rms_norm_eps" in config else "layernorm",
    }


class Workload(StatedWorkload):
    """A model with the batch and the numerics it trains with: configurations compare only inside one."""

    model: ModelSpec
    sequence_length: PositiveInt
    global_batch_tokens: PositiveInt
    precision: Precision = "bf16"
    optimizer: Literal["adamw", "sgd"] = "adamw"

    @model_validator(mode="after")
    def _positions_suffice(self) -> Self:
        if self.model.positions == "learned" and self.sequence_length > self.model.max_positions:
            raise ValueError(
                f"sequence_length {self.sequence_length} exceeds the model's max_positions "
                f"{self.model.max_positions}"
            )
        return self

    @property
    def global_batch_sequences(self) -> int:
        return self.global_batch_tokens // self.sequence_length
