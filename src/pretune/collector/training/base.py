"""What the engines of all frameworks have in common: their batches, and what they read of a TrialSpec."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, distributed

from pretune.collector.data import Layout, SyntheticTokens, TokenFile, TokenSource, micro_batches
from pretune.collector.process import TOKENS
from pretune.collector.transformer import Execution
from pretune.datasets.frameworks import framework
from pretune.datasets.knobs import Knobs
from pretune.datasets.trial import TrialSpec

Batches = Iterator[tuple[Tensor, Tensor]]

CLIP_NORM = 1.0  # DeepSpeed clips to this unless told otherwise; the frameworks train alike


class Training(ABC):
    """An engine that is ready to train: ``window`` runs one accumulation window, optimizer step included."""

    def __init__(self, spec: TrialSpec, device: torch.device) -> None:
        self.spec, self.device = spec, device
        self.accumulation = spec.knobs.accumulation or 1

    @abstractmethod
    def window(self, batches: Batches) -> Tensor:
        """Train on the next ``accumulation`` micro batches; returns their mean loss, on the device."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write a checkpoint, every rank its share; returns when all have."""

    def batches(self) -> Batches:
        """(tokens, targets) of this rank, each (micro_batch, sequence_length), on the device.

        The ranks that share a replica read the same.
        """
        knobs = self.spec.knobs
        layout = Layout(knobs.micro_batch or 1, self.accumulation, knobs.dp or 1, dp_rank(knobs))
        for ids in micro_batches(token_source(self.spec), layout):
            rows = torch.from_numpy(ids).to(self.device, non_blocking=True)
            yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def dp_rank(knobs: Knobs) -> int:
    """Which replica this rank has a share of. Ranks count tp first, then dp, then pp.

    So does DeepSpeed's PipeModelDataParallelTopology: the ranks that talk most are neighbours.
    """
    return distributed.get_rank() // (knobs.tp or 1) % (knobs.dp or 1)


def token_source(spec: TrialSpec) -> TokenSource:
    """The file that ``PRETUNE_TOKENS`` names, or synthetic tokens."""
    vocabulary, length = spec.workload.model.vocabulary, spec.workload.sequence_length
    path = os.environ.get(TOKENS)
    return TokenFile(path, vocabulary, length) if path else SyntheticTokens(vocabulary, length, spec.seed)


def execution(knobs: Knobs) -> Execution:
    """How the knobs have the transformer computed."""
    return Execution(
        attention=knobs.attention or "sdpa",
        checkpointing=knobs.activation_checkpointing or "none",
        reentrant=knobs.zero_stage == 3,
    )


def files(spec: TrialSpec) -> dict[str, str]:
    """What the framework reads, by file name."""
    return framework(spec.framework).files(spec.workload, spec.platform, spec.knobs)
