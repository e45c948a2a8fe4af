"""Where it is trained: accelerator, links, nodes, and what a probe measured there."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from pretune.datasets.spec import Spec

# what carries the collectives, as torch.distributed names it: AMD's RCCL is its nccl
Backend = Literal["nccl", "gloo", "mpi", "ccl", "hccl", "xla"]


class PeakFlops(Spec):
    """Dense peak FLOP/s of one device per precision, without sparsity; None where the vendor gives none.

    Formats of one width share their units: ``fp8`` is the peak of mxfp8 too, ``fp4`` that of mxfp4 and nvfp4.
    """

    fp32: PositiveFloat | None = None
    tf32: PositiveFloat | None = None
    bf16: PositiveFloat | None = None
    fp16: PositiveFloat | None = None
    fp8: PositiveFloat | None = None
    fp4: PositiveFloat | None = None


class Accelerator(Spec):
    """One device: a GPU, an NPU, a TPU chip or, on a CPU, what one rank may use."""

    name: str
    peak_flops_per_s: PeakFlops = PeakFlops()
    memory_bytes: PositiveInt | None = None
    memory_bandwidth_bytes_per_s: PositiveFloat | None = None


class Link(Spec):
    """Bytes per second that one device can send (one direction), and the latency of a message."""

    bandwidth_bytes_per_s: PositiveFloat | None = None
    latency_s: NonNegativeFloat | None = None


class LinkFit(Link):
    """Latency and bandwidth on the wire as one collective has them, and the fit's median relative error."""

    relative_error: NonNegativeFloat | None = None


class Fingerprint(Spec):
    """What a probe measured on the platform itself; None where it was not measured.

    All devices work at the same time, and the slowest counts. ``matmul``: the best of the sizes.
    ``copy``: within the device's memory, bytes read and written. ``allreduce``: over all devices.
    ``intra_node`` and ``inter_node``: each device with the others of its node, and with those of its own
    place on the other nodes; wire bytes as :func:`pretune.collector.probe.fit.wire_bytes` counts them.
    """

    matmul_fp32_flops_per_s: PositiveFloat | None = None
    matmul_tf32_flops_per_s: PositiveFloat | None = None
    matmul_bf16_flops_per_s: PositiveFloat | None = None
    matmul_fp16_flops_per_s: PositiveFloat | None = None
    copy_bytes_per_s: PositiveFloat | None = None
    host_to_device_bytes_per_s: PositiveFloat | None = None
    device_to_host_bytes_per_s: PositiveFloat | None = None
    allreduce_busbw_bytes_per_s: PositiveFloat | None = None
    allreduce_latency_s: NonNegativeFloat | None = None
    intra_node_all_reduce: LinkFit = LinkFit()
    intra_node_all_gather: LinkFit = LinkFit()
    intra_node_reduce_scatter: LinkFit = LinkFit()
    intra_node_point_to_point: LinkFit = LinkFit()
    inter_node_all_reduce: LinkFit = LinkFit()
    inter_node_all_gather: LinkFit = LinkFit()
    inter_node_reduce_scatter: LinkFit = LinkFit()
    inter_node_point_to_point: LinkFit = LinkFit()


class StatedPlatform(Spec):
    """A cluster as one job saw it, as far as it is known. Another number of nodes is another platform of one
    family.
    """

    name: str
    accelerator: Accelerator
    devices_per_node: PositiveInt
    nodes: PositiveInt = 1
    intra_node: Link = Link()
    inter_node: Link = Link()
    backend: Backend | None = None
    fingerprint: Fingerprint = Fingerprint()

    @model_validator(mode="after")
    def _plain_name(self) -> Self:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name):
            raise ValueError(
                f"name {self.name!r} must be letters, digits, '.', '_' and '-' (it names a folder)"
            )
        return self

    @property
    def devices(self) -> int:
        return self.devices_per_node * self.nodes

    @property
    def family(self) -> str:
        """The kind of hardware: the same for every node count."""
        return f"{self.accelerator.name}x{self.devices_per_node}"


class Platform(StatedPlatform):
    """A cluster on which pretune runs trials itself."""

    backend: Literal["nccl", "gloo"] = "nccl"
