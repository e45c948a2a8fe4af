"""What a source says was trained; None where it says nothing, and nothing is filled in.

A :class:`~pretune.datasets.Trial` holds these, since somebody else may have run it. What pretune itself is to
run is whole: :class:`~pretune.datasets.ModelSpec` and :class:`~pretune.datasets.Workload` narrow them, and
have defaults for what the user leaves out.
"""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from pretune.datasets.spec import Spec

# fp8: scaled by tensor or block; mxfp8 and mxfp4: OCP's microscaling formats, a scale for 32 elements;
# nvfp4: NVIDIA's, a scale for 16; fp4: four bits, of which the source does not say the format
Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "mxfp8", "fp4", "mxfp4", "nvfp4"]


class StatedModel(Spec):
    """The shape of a decoder-only transformer, as far as it is known. ``experts`` = 0 means a dense model."""

    name: str
    layers: PositiveInt | None = None
    hidden_size: PositiveInt | None = None
    heads: PositiveInt | None = None
    vocabulary: PositiveInt | None = None
    kv_heads: PositiveInt | None = None
    ffn_size: PositiveInt | None = None
    gated_mlp: bool | None = None
    tied_embeddings: bool | None = None
    positions: Literal["learned", "rotary"] | None = None
    max_positions: PositiveInt | None = None
    norm: Literal["layernorm", "rmsnorm"] | None = None
    experts: int | None = Field(default=None, ge=0)
    experts_per_token: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        for whole, part in (("hidden_size", "heads"), ("heads", "kv_heads")):
            size, count = getattr(self, whole), getattr(self, part)
            if size and count and size % count:
                raise ValueError(
                    f"{whole} {size} is not divisible by {part} {count}; "
                    f"nearest legal {part}: {either(nearest_divisors(size, count))}"
                )
        return self

    @model_validator(mode="after")
    def _experts_agree(self) -> Self:
        if self.experts is None or self.experts_per_token is None:
            return self
        if bool(self.experts) != bool(self.experts_per_token):
            raise ValueError("experts and experts_per_token are given together or not at all")
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token {self.experts_per_token} exceeds experts {self.experts}")
        return self


class StatedWorkload(Spec):
    """A model with the batch and the numerics it trained with, as far as they are known."""

    model: StatedModel
    sequence_length: PositiveInt | None = None
    global_batch_tokens: PositiveInt | None = None
    precision: Precision | None = None
    optimizer: Literal["adamw", "sgd"] | None = None

    @model_validator(mode="after")
    def _whole_sequences(self) -> Self:
        tokens, length = self.global_batch_tokens, self.sequence_length
        if tokens and length and tokens % length:
            below = tokens // length * length
            near = [n for n in (below, below + length) if n]
            raise ValueError(
                f"global_batch_tokens {tokens} is no whole number of sequences of {length}; "
                f"nearest: {either(near)}"
            )
        return self

    @property
    def global_batch_sequences(self) -> int | None:
        tokens, length = self.global_batch_tokens, self.sequence_length
        return tokens // length if tokens and length else None

    @property
    def name(self) -> str:
        """Such as ``llama-2-7b-4096x512-bf16``; "?" for what is unknown."""
        length, sequences = self.sequence_length, self.global_batch_sequences
        return f"{self.model.name}-{length or '?'}x{sequences or '?'}-{self.precision or '?'}"


def nearest_divisors(number: int, wanted: int) -> list[int]:
    """The divisors of ``number`` next to ``wanted``: the largest below and the smallest above."""
    every = divisors(number)
    return [d for d in every if d <= wanted][-1:] + [d for d in every if d > wanted][:1]


def divisors(number: int) -> list[int]:
    """All divisors of ``number``, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def either(values: list[int]) -> str:
    return " or ".join(map(str, values))
