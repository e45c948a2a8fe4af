"""From times to figures: times over message sizes become latency + bytes / bandwidth.

The model is Hockney's (1994, doi 10.1016/S0167-8191(06)80021-9). The latency is what the smallest message
takes. The bandwidth is the slope where bytes rule, with an intercept of its own: a shaped link sends its
bucket at once, so that large messages lie on a line which meets zero bytes below zero seconds, and small
ones say nothing of its rate. Theil and Sen's slope, the median over all pairs, bears one disturbed size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretune.collector.probe.plan import SCOPES
from pretune.datasets.platform import Fingerprint, LinkFit

_RULED_BY_BYTES = 1 / 50  # of the longest time: messages that take less are left to the latency


def fingerprint_of(found: dict[str, Any], backend: str) -> Fingerprint:
    """The figures that the times of a probe give."""
    figures: dict[str, Any] = {}
    for row in found["products"]:
        name, rate = f"matmul_{row['precision']}_flops_per_s", 2.0 * row["size"] ** 3 / row["seconds"]
        figures[name] = max(rate, figures.get(name, 0.0))
    for kind, rate in found["copies"].items():
        figures["copy_bytes_per_s" if kind == "device" else f"{kind}_bytes_per_s"] = rate
    fits = {name: fitted(times) for name, times in wire_times(found, backend).items()}
    # where there is but one kind of link, its all-reduce is that of all devices
    widest = next((fits[n] for s in ("all_devices", *SCOPES) if (n := f"{s}_all_reduce") in fits), LinkFit())
    fits.pop("all_devices_all_reduce", None)
    return Fingerprint(
        **figures,
        **fits,
        allreduce_busbw_bytes_per_s=widest.bandwidth_bytes_per_s,
        allreduce_latency_s=widest.latency_s,
    )


def wire_times(found: dict[str, Any], backend: str) -> dict[str, dict[float, float]]:
    """Seconds by bytes on the wire, of each "scope_op"."""
    times: dict[str, dict[float, float]] = {}
    for row in found["collectives"]:
        sent = wire_bytes(row["op"], backend, row["ranks"], row["bytes"])
        times.setdefault(f"{row['scope']}_{row['op']}", {})[sent] = row["seconds"]
    return times


def wire_bytes(op: str, backend: str, ranks: int, size_bytes: float) -> float:
    """What each of ``ranks`` sends for a tensor of ``size_bytes`` over the whole group.

    Rings: 2 (n - 1) / n of it to all-reduce, (n - 1) / n to all-gather or reduce-scatter (Thakur et al. 2005,
    doi 10.1177/1094342005051521). A reduce-scatter over gloo is an all-reduce of which the rest is dropped
    (torch 2.13, by the bytes that its interface sent).
    """
    ring = (ranks - 1) / ranks
    whole = op == "all_reduce" or (op == "reduce_scatter" and backend == "gloo")
    return size_bytes * (1.0 if op == "point_to_point" else 2 * ring if whole else ring)


def fitted(seconds: Mapping[float, float]) -> LinkFit:
    """The fit of seconds by bytes on the wire; with its median relative error from three sizes on.

    No bandwidth where large messages take no longer than small ones; nothing is known without two sizes.
    """
    if len(seconds) < 2:
        return LinkFit()
    from scipy.stats import theilslopes

    sent, took = (np.array(each) for each in zip(*sorted(seconds.items()), strict=True))
    ruled = took - took[0] >= _RULED_BY_BYTES * took[-1]
    ruled[-2:] = True
    slope, latency = float(theilslopes(took[ruled], sent[ruled]).slope), float(took[0])
    if slope <= 0:
        return LinkFit(latency_s=latency)
    fit = LinkFit(latency_s=latency, bandwidth_bytes_per_s=1 / slope)
    if len(seconds) == 2:  # two points are always met
        return fit
    return fit.model_copy(update={"relative_error": float(np.median(np.abs(misfits(fit, seconds))))})


def misfits(fit: LinkFit, seconds: Mapping[float, float]) -> NDArray[np.float64]:
    """(n,) by how much of each time the fit is above it, by ascending size."""
    assert fit.latency_s is not None
    assert fit.bandwidth_bytes_per_s is not None
    sent, took = (np.array(each) for each in zip(*sorted(seconds.items()), strict=True))
    above: NDArray[np.float64] = (fit.latency_s + sent / fit.bandwidth_bytes_per_s) / took - 1
    return above
