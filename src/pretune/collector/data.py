"""Where tokens come from: synthetic ones that can be learned, or a file of token ids.

Sequences are numbered over the whole job, so that every layout of ranks, micro batches
and accumulation trains on the same sequences in the same optimizer step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pretune.errors import InputError

Ids = npt.NDArray[np.int64]


class TokenSource(ABC):
    """An endless, numbered supply of sequences."""

    @abstractmethod
    def sequences(self, first: int, count: int) -> Ids:
        """Sequences ``first`` to ``first + count``: (count, length + 1) token ids, inputs and last target."""


class SyntheticTokens(TokenSource):
    """Independent draws from a Zipf distribution over the vocabulary.

    A model learns the frequencies within a few steps, so that the loss falls from
    log(vocabulary) towards the distribution's entropy, as it would on text.
    """

    def __init__(self, vocabulary: int, length: int, seed: int) -> None:
        self.length, self.seed = length, seed
        frequencies = 1.0 / np.arange(1, vocabulary + 1)
        self.cumulative = np.cumsum(frequencies / frequencies.sum())
        self.cumulative[-1] = 1.0

    def sequences(self, first: int, count: int) -> Ids:
        draws = np.stack([self._uniform(index) for index in range(first, first + count)])
        return np.searchsorted(self.cumulative, draws, side="right").astype(np.int64)

    def _uniform(self, index: int) -> npt.NDArray[np.float64]:
        return np.random.Generator(np.random.Philox(key=[self.seed, index])).random(self.length + 1)


class TokenFile(TokenSource):
    """Consecutive sequences of a memory-mapped file, from its start again when it ends.

    ``.npy`` holds a flat array of unsigned integers; any other suffix is raw ``uint16``, or
    ``uint32`` when the name ends in ``.u32.bin``. Raises :class:`InputError` when the file
    cannot be read, is shorter than one sequence, or holds ids outside the vocabulary.
    """

    def __init__(self, path: str | Path, vocabulary: int, length: int) -> None:
        self.path, self.vocabulary, self.length = Path(path), vocabulary, length
        try:
            self.ids = self._open()
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read as token ids ({error}); check the path") from None
        if self.ids.ndim != 1 or self.ids.dtype.kind != "u" or len(self.ids) <= length:
            raise InputError(
                f"{path}: is {self.ids.dtype} of shape {self.ids.shape}; "
                f"needs a flat array of over {length} unsigned ids"
            )

    def _open(self) -> np.ndarray:
        if self.path.suffix == ".npy":
            return np.load(self.path, mmap_mode="r")  # type: ignore[no-any-return]
        dtype = np.uint32 if self.path.name.endswith(".u32.bin") else np.uint16
        return np.memmap(self.path, dtype=dtype, mode="r")

    def sequences(self, first: int, count: int) -> Ids:
        whole = (len(self.ids) - 1) // self.length
        starts = [(index % whole) * self.length for index in range(first, first + count)]
        rows = np.stack([self.ids[start : start + self.length + 1] for start in starts]).astype(np.int64)
        if rows.max() >= self.vocabulary:
            raise InputError(f"{self.path}: id {rows.max()} is outside the vocabulary of {self.vocabulary}")
        return rows


@dataclass(frozen=True)
class Layout:
    """How one optimizer step's sequences are shared out: each rank takes ``micro_batch`` at a time."""

    micro_batch: int
    accumulation: int
    dp: int
    dp_rank: int = 0

    @property
    def sequences_per_window(self) -> int:
        return self.micro_batch * self.accumulation * self.dp


def micro_batches(source: TokenSource, layout: Layout) -> Iterator[Ids]:
    """This rank's micro batches, one window after another, without end."""
    window = 0
    while True:
        for micro in range(layout.accumulation):
            share = micro * layout.dp + layout.dp_rank
            first = window * layout.sequences_per_window + share * layout.micro_batch
            yield source.sequences(first, layout.micro_batch)
        window += 1
