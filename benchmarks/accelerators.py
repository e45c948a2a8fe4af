"""What vendors state of accelerators, by the names under which published measurements have them.

Dense peaks, without sparsity; null where the vendor gives none. Vendors' "GB" of device memory are
binary: a device of 80 GB reports 80 GiB. Links are one way, per device; between nodes, the network
cards of the vendor's own reference system. ``domain`` is how many devices the fast link joins, where
that is more than a host (NVL72 racks, TPU pods).
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

GIB = 2**30
FIGURES = {  # column of the store -> field of Figures
    "peak_flops_per_s.fp32": "fp32",
    "peak_flops_per_s.tf32": "tf32",
    "peak_flops_per_s.bf16": "bf16",
    "peak_flops_per_s.fp16": "fp16",
    "peak_flops_per_s.fp8": "fp8",
    "accelerator.memory_bytes": "memory",
    "accelerator.memory_bandwidth_bytes_per_s": "bandwidth",
    "intra_node.bandwidth_bytes_per_s": "intra",
    "inter_node.bandwidth_bytes_per_s": "inter",
}


@dataclass(frozen=True)
class Figures:
    """Of one device; FLOP/s, bytes, bytes/s."""

    fp32: float | None = None
    tf32: float | None = None
    bf16: float | None = None
    fp16: float | None = None
    fp8: float | None = None
    memory: float | None = None
    bandwidth: float | None = None
    intra: float | None = None
    inter: float | None = None
    domain: int | None = None


def a100(memory: float | None, bandwidth: float | None, intra: float = 300e9) -> Figures:
    """NVIDIA A100 and A800 data sheets; DGX A100: eight 200 Gb/s cards."""
    return Figures(19.5e12, 156e12, 312e12, 312e12, None, memory, bandwidth, intra, 25e9)


def hopper(memory: float, bandwidth: float | None, intra: float = 450e9) -> Figures:
    """NVIDIA H100, H200 (SXM) and H800 data sheets; DGX H100: eight 400 Gb/s cards."""
    return Figures(67e12, 494.7e12, 989.4e12, 989.4e12, 1978.9e12, memory, bandwidth, intra, 50e9)


def blackwell(half: float, memory: float, bandwidth: float, inter: float, domain: int | None) -> Figures:
    """NVIDIA HGX B200, HGX B300, GB200 NVL72 and GB300 NVL72 data sheets; NVLink 5."""
    return Figures(None, half / 2, half, half, 2 * half, memory, bandwidth, 900e9, inter, domain)


def tpu(bf16: float, fp8: float | None, memory: float, bandwidth: float, ici: float, domain: int) -> Figures:
    """Google Cloud TPU system architecture; ``ici`` is stated both ways, per chip."""
    return Figures(None, None, bf16, None, fp8, memory, bandwidth, ici / 2, None, domain)


# name in a platform's name, by a pattern of the published name: the first that matches
ACCELERATORS: dict[str, tuple[str, Figures]] = {
    # NVIDIA V100 data sheet: fp16 only
    r"^V100-SXM2-16GB": ("V100-16GB", Figures(15.7e12, None, None, 125e12, None, 16 * GIB, 0.9e12, 150e9)),
    r"^A100.*40GB": ("A100-40GB", a100(40 * GIB, 1.555e12)),
    r"^A100.*80GB": ("A100-80GB", a100(80 * GIB, 2.039e12)),
    r"^A100": ("A100", a100(None, None)),  # of which memory is not said
    r"^A800.*80GB": ("A800-80GB", a100(80 * GIB, 2.039e12, 200e9)),
    r"^H100-SXM|^H100-80GB": ("H100-80GB", hopper(80 * GIB, 3.35e12)),
    r"^H100-96GB": ("H100-96GB", hopper(96 * GIB, None)),  # no data sheet: HBM2e, 500 W
    r"^H800": ("H800-80GB", hopper(80 * GIB, 3.35e12, 200e9)),
    # NVIDIA H200 NVL data sheet: PCIe cards, bridged by four
    r"^H200-NVL": (
        "H200-NVL",
        Figures(60e12, 417.5e12, 835.5e12, 835.5e12, 1670.5e12, 141 * GIB, 4.8e12, 450e9),
    ),
    r"^H200": ("H200-141GB", hopper(141 * GIB, 4.8e12)),
    # NVIDIA L40S data sheet: PCIe 4 x16
    r"^L40S": ("L40S", Figures(91.6e12, 183e12, 362.05e12, 362.05e12, 733e12, 48 * GIB, 0.864e12, 32e9)),
    r"^B200": ("B200", blackwell(2.25e15, 180 * GIB, 7.7e12, 50e9, None)),
    r"^B300": ("B300", blackwell(2.25e15, 270 * GIB, 8e12, 100e9, None)),
    r"^GB200": ("GB200", blackwell(2.5e15, 186 * GIB, 8e12, 50e9, 72)),
    r"^GB300": ("GB300", blackwell(2.5e15, 279 * GIB, 8e12, 100e9, 72)),
    # AMD Instinct data sheets: seven Infinity Fabric links; eight 400 Gb/s cards
    r"^MI300X": (
        "MI300X",
        Figures(163.4e12, 653.7e12, 1307.4e12, 1307.4e12, 2614.9e12, 192 * GIB, 5.3e12, 448e9, 50e9),
    ),
    r"^MI325X": (
        "MI325X",
        Figures(163.4e12, 653.7e12, 1307.4e12, 1307.4e12, 2614.9e12, 256 * GIB, 6e12, 448e9, 50e9),
    ),
    r"^MI355X": (
        "MI355X",
        Figures(157.3e12, None, 2516.6e12, 2516.6e12, 5033.2e12, 288 * GIB, 8e12, 537.6e9, 50e9),
    ),
    # Intel Gaudi 2 white paper: 24 ports of 100 GbE, three of them out of the node
    r"^Gaudi2": ("Gaudi2", Figures(None, None, 432e12, None, 865e12, 96 * GIB, 2.45e12, 262.5e9, 37.5e9)),
    r"^TPU-v4": ("TPU-v4", tpu(275e12, None, 32 * GIB, 1.228e12, 600e9, 4096)),
    r"^TPU-v5e": ("TPU-v5e", tpu(197e12, None, 16 * GIB, 0.819e12, 400e9, 256)),
    r"^TPU-v5p": ("TPU-v5p", tpu(459e12, None, 95 * GIB, 2.765e12, 1200e9, 8960)),
    r"^TPU-v6e": ("TPU-v6e", tpu(918e12, None, 32 * GIB, 1.64e12, 800e9, 256)),
    r"^TPU7x": ("TPU7x", tpu(2307e12, 4614e12, 192 * GIB, 7.37e12, 1200e9, 9216)),
    # AWS Trainium 1 architecture, a NeuronCore being half of a chip; trn1.32xlarge: 800 Gb/s for 32
    r"^Trainium1 NeuronCore": (
        "Trainium1-core",
        Figures(23.75e12, None, 95e12, 95e12, None, 16 * GIB, 0.41e12, None, 3.1e9),
    ),
    # Fujitsu A64FX data sheet at 2.0 GHz, one node; Tofu D: six links of 6.8 GB/s
    r"^Fugaku A64FX": (
        "A64FX",
        Figures(6.144e12, None, None, 12.288e12, None, 32 * GIB, 1.024e12, None, 40.8e9),
    ),
    # sold in bins from 280 to 400 TFLOP/s, of which the source does not say one
    r"^Ascend-910B": ("Ascend-910B", Figures()),
}


def first_match(value: dict[str, float | int | str | None], dtype: type[pl.DataType]) -> pl.Expr:
    """The value of the first pattern that the column ``accelerator`` matches; null where none does."""
    found: pl.Expr = pl.lit(None, dtype=dtype)
    for pattern, wanted in reversed(value.items()):
        found = (
            pl.when(pl.col("accelerator").str.contains(pattern))
            .then(pl.lit(wanted, dtype=dtype))
            .otherwise(found)
        )
    return found


def short_name() -> pl.Expr:
    return first_match({pattern: name for pattern, (name, _) in ACCELERATORS.items()}, pl.String)


def figure(field: str) -> pl.Expr:
    """One of :class:`Figures`."""
    return first_match({p: getattr(figures, field) for p, (_, figures) in ACCELERATORS.items()}, pl.Float64)
