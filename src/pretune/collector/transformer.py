"""The decoder-only transformer that trials train: GPT and Llama shapes, from a ModelSpec.

No linear layer has a bias, so that the weights are exactly ``ModelSpec.parameters``.
Shapes: B sequences, L positions, H hidden size, N heads, K key/value heads, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from pretune.datasets.workload import ModelSpec
from pretune.errors import InputError

Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]

_INITIAL_STD = 0.02  # GPT-2's


@dataclass(frozen=True)
class Execution:
    """How the same model is computed: none of these fields changes a weight.

    ``checkpointing``: "selective" recomputes the attention core alone (Korthikanti et
    al. 2022, arXiv:2205.05198, sec. 5), "full" recomputes whole layers, each ``every``-th. ``reentrant``
    picks torch's older checkpoint, which ZeRO-3 needs: its weights change shape in between.
    """

    attention: str = "sdpa"
    checkpointing: Literal["none", "selective", "full"] = "none"
    reentrant: bool = False
    every: int = 1


class Linear(nn.Linear):
    """Without bias, and initialised as it is made: ZeRO-3 takes the weight away right after."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=_INITIAL_STD)


class Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=_INITIAL_STD)


def eager_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax(q k^T / sqrt(D)) v, scores written out; (B, N|K, L, D) -> (B, N, L, D)."""
    groups = q.size(1) // k.size(1)
    k, v = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1, dtype=torch.float32)
    return weights.to(q.dtype) @ v


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same through torch's fused kernel, whichever it picks for the device."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.size(1) != k.size(1))


def flash_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same through the flash kernel or not at all: torch raises where it cannot run."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return sdpa_attention(q, k, v)


KERNELS: dict[str, Kernel] = {"sdpa": sdpa_attention, "eager": eager_attention, "flash": flash_attention}


class Attention(nn.Module):
    def __init__(self, spec: ModelSpec, run: Execution) -> None:
        super().__init__()
        self.kernel = KERNELS[run.attention]
        self.recompute = run.checkpointing == "selective"
        self.sizes = [spec.heads // spec.kv_heads, 1, 1]
        self.head_size = spec.head_size
        # rows by key/value head, each after its queries: tensor parallelism cuts them between heads
        self.qkv = Linear(spec.hidden_size, spec.kv_heads * sum(self.sizes) * spec.head_size)
        self.out = Linear(spec.hidden_size, spec.hidden_size)

    def forward(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(x).view(batch, length, -1, sum(self.sizes), self.head_size)
        q, k, v = (each.flatten(2, 3).transpose(1, 2) for each in heads.split(self.sizes, dim=3))
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        if self.recompute and self.training:
            y = cast(Tensor, checkpoint(self.kernel, q, k, v, use_reentrant=False))
        else:
            y = self.kernel(q, k, v)
        return cast(Tensor, self.out(y.transpose(1, 2).reshape(batch, length, -1)))


class FeedForward(nn.Module):
    """GELU, or the SiLU-gated form of Llama (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.up = Linear(spec.hidden_size, spec.ffn_size)
        self.gate = Linear(spec.hidden_size, spec.ffn_size) if spec.gated_mlp else None
        self.down = Linear(spec.ffn_size, spec.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        inner = F.gelu(up) if self.gate is None else F.silu(self.gate(x)) * up
        return cast(Tensor, self.down(inner))


class Layer(nn.Module):
    """Pre-norm: attention and feed-forward, each added to the stream."""

    def __init__(self, spec: ModelSpec, run: Execution) -> None:
        super().__init__()
        self.attention_norm = make_norm(spec)
        self.attention = Attention(spec, run)
        self.mlp_norm = make_norm(spec)
        self.mlp = FeedForward(spec)

    def forward(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        return x + cast(Tensor, self.mlp(self.mlp_norm(x)))


class Transformer(nn.Module):
    """``forward(tokens, targets)``: (B, L) each -> mean cross entropy in nats; without targets, logits.

    As number ``stage`` of the ``stages`` of a pipeline it has its share of the layers, and hands the
    stream (B, L, H) on: tokens enter the first stage, logits or loss leave the last. Where a weight lies in
    the model and torch's seed decide its first value, so that all layouts start from the same model.

    Raises :class:`InputError` for an unknown attention kernel and for experts, which it does not build.
    """

    def __init__(
        self, spec: ModelSpec, run: Execution = Execution(), stage: int = 0, stages: int = 1
    ) -> None:
        super().__init__()
        check(spec, run)
        self.spec, self.run = spec, run
        self.first, self.last = stage == 0, stage == stages - 1
        seed, share = torch.initial_seed(), spec.layers // stages
        _seed(seed, 0)
        if self.first or (self.last and spec.tied_embeddings):
            self.tokens = Embedding(spec.vocabulary, spec.hidden_size)
        learned = self.first and spec.positions == "learned"
        self.positions = Embedding(spec.max_positions, spec.hidden_size) if learned else None
        self.layers = nn.ModuleList()
        for layer in range(stage * share, (stage + 1) * share):
            _seed(seed, 1 + layer)
            self.layers.append(Layer(spec, run))
        _seed(seed, 1 + spec.layers)
        if self.last:
            self.norm = make_norm(spec)
            self.head = Linear(spec.hidden_size, spec.vocabulary)
            if spec.tied_embeddings:
                self.head.weight = self.tokens.weight
        torch.manual_seed(seed)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        length, rotation = x.size(1), None
        if self.spec.positions == "rotary":
            rotation = rotary_angles(length, self.spec.head_size, x.device)
        if self.first:
            x = self.tokens(x)
        if self.positions is not None:
            x = x + self.positions(torch.arange(length, device=x.device))
        for number, layer in enumerate(self.layers, 1):
            if self.run.checkpointing == "full" and self.training and number % self.run.every == 0:
                x = checkpoint(layer, x, rotation, use_reentrant=self.run.reentrant)
            else:
                x = layer(x, rotation)
        if not self.last:
            return x
        logits = cast(Tensor, self.head(self.norm(x)))
        return logits if targets is None else cross_entropy(logits, targets)


def _seed(seed: int, place: int) -> None:
    """Have torch draw from a stream of its own for each place in the model."""
    torch.manual_seed(int(np.random.SeedSequence((seed, place)).generate_state(1, np.uint64)[0]))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all positions, in nats and fp32; (B, L, vocabulary) and (B, L) -> ()."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def check(spec: ModelSpec, run: Execution) -> None:
    """Raises :class:`InputError` when this program cannot build the model."""
    if spec.experts:
        raise InputError(
            f"workload.model.experts: {spec.experts}, but trials train dense models; set it to 0"
        )
    if run.attention not in KERNELS:
        raise InputError(f"knobs.attention: {run.attention!r} is no kernel; choose {', '.join(KERNELS)}")
    if spec.positions == "rotary" and spec.head_size % 2:
        raise InputError(f"workload.model: rotary positions need an even head size, not {spec.head_size}")


def make_norm(spec: ModelSpec) -> nn.Module:
    return nn.LayerNorm(spec.hidden_size) if spec.norm == "layernorm" else nn.RMSNorm(spec.hidden_size)


def rotary_angles(length: int, head_size: int, device: torch.device) -> Tensor:
    """Cosines and sines (2, L, D/2), always fp32 (Su et al. 2021, arXiv:2104.09864, sec. 3.4.2)."""
    frequencies = 10_000.0 ** (-torch.arange(0, head_size, 2, device=device) / head_size)
    angles = torch.arange(length, device=device).outer(frequencies)
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn the pairs (i, i + D/2) of each head by their position's angle; x: (B, N, L, D)."""
    cos, sin = rotation
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
