"""How much a probe measures. What takes long is left out on the way: sizes grow until a call is slow."""

from __future__ import annotations

from dataclasses import dataclass

SMALLEST_BYTES = 256  # of a message: its bytes take no time, so its time is the latency
SCOPES = ("intra_node", "inter_node")  # of links: ranks of one node; those of one place on all nodes
OPS = ("all_reduce", "all_gather", "reduce_scatter", "point_to_point")


def _doubled(first: int, last: int) -> tuple[int, ...]:
    """``first`` and its doubles up to ``last``."""
    return tuple(first << shift for shift in range((last // first).bit_length()))


@dataclass(frozen=True)
class Plan:
    """Per kind of device, ``cpu`` or ``cuda``: edges of square matrices, and bytes of messages, ascending.

    ``precisions``: of the matrix products. ``ops``: of :data:`OPS`, what the links are measured with.
    """

    matrix_sizes: dict[str, tuple[int, ...]]
    message_bytes: dict[str, tuple[int, ...]]
    precisions: dict[str, tuple[str, ...]]
    ops: tuple[str, ...]


# seconds, at the start of a tuning session
QUICK = Plan(
    matrix_sizes={"cpu": (512,), "cuda": (8192,)},
    message_bytes={"cpu": (SMALLEST_BYTES, 4 << 20), "cuda": (SMALLEST_BYTES, 256 << 20)},
    precisions={"cpu": ("fp32", "bf16"), "cuda": ("fp32", "bf16")},
    ops=("all_reduce", "point_to_point"),
)
# a minute or two
WHOLE = Plan(
    matrix_sizes={"cpu": _doubled(128, 2048), "cuda": _doubled(1024, 16384)},
    message_bytes={
        "cpu": (SMALLEST_BYTES, *_doubled(4 << 10, 16 << 20)),
        "cuda": (SMALLEST_BYTES, *_doubled(4 << 10, 256 << 20)),
    },
    precisions={"cpu": ("fp32", "bf16", "fp16"), "cuda": ("fp32", "tf32", "bf16", "fp16")},
    ops=OPS,
)
