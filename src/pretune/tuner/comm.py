"""What a configuration sends: each collective of one optimizer step, its messages, and how long they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from pretune.collector.probe.fit import wire_bytes
from pretune.datasets.frameworks import Collective
from pretune.datasets.frameworks import framework as find_framework
from pretune.datasets.knobs import Knobs
from pretune.model.physics.setup import Setup, read_setup
from pretune.model.physics.step import data_parallel_exposed_s
from pretune.tuner.space import Candidates
from pretune.tuner.tuner import Tuner

# the collective whose measured link stands for another's, where a probe measures no such
_MEASURED_AS = {"reduce": "reduce_scatter", "broadcast": "all_gather"}


@dataclass(frozen=True)
class Sent:
    """Collectives of one kind in one step of one rank, among the ranks of its ``group``.

    ``bytes``: of the whole tensors, all ``calls`` together; ``seconds``: of them all, one after the other, as
    the platform's links say, whether something hides them or not.
    """

    op: str
    group: str
    calls: int
    bytes: int
    seconds: float

    def asdict(self) -> dict[str, Any]:
        each = {"message_bytes": self.bytes / self.calls, "message_s": self.seconds / self.calls}
        return asdict(self) | (each if self.calls else {})


@dataclass(frozen=True)
class Communication:
    """One configuration: its collectives, seconds of them that nothing hides, and of the whole step.

    ``step_s`` is None where nothing is known of the model's shape.
    """

    name: str
    knobs: Mapping[str, Any]
    sent: tuple[Sent, ...]
    exposed_s: float
    step_s: float | None

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.sent)

    def asdict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "knobs": dict(self.knobs),
            "collectives": [each.asdict() for each in self.sent],
            "seconds": self.seconds,
            "exposed_s": self.exposed_s,
            "step_s": self.step_s,
        }


def communication(
    configurations: Mapping[str, Knobs], of: Candidates, history: pl.DataFrame, seed: int = 0
) -> list[Communication]:
    """What each of the named, resolved ``configurations`` sends in one step, on the platform of which
    they are candidates.

    Calls and bytes are the framework's own (:meth:`Framework.collectives`). A message takes latency plus
    wire bytes over bandwidth: as ``pretune probe`` fitted them for that collective, else as the platform's
    links are stated. What compute hides is the physics' estimate, and the step's time the surrogate's.
    """
    listed = Candidates(of.workload, of.platform, of.framework, list(configurations.values()))
    setup = read_setup(listed.frame)
    believed = Tuner.over(listed, history, seed=seed).strategy.predict()
    tokens = of.workload.global_batch_tokens / of.platform.devices
    wire_s, exposed_s = data_parallel_exposed_s(setup)
    shown = np.divide(exposed_s, wire_s, out=np.ones_like(wire_s), where=wire_s > 0)
    found = []
    for i, (name, knobs) in enumerate(configurations.items()):
        issued = find_framework(of.framework).collectives(of.workload, of.platform, knobs)
        sent = tuple(_sent(each, i, of, setup) for each in issued)
        step_s = float(tokens / believed.mean[i]) if believed is not None else None
        exposed = sum(each.seconds * (float(shown[i]) if each.group == "dp" else 1.0) for each in sent)
        found.append(Communication(name, knobs.settings(), sent, exposed, step_s))
    return found


def _sent(issued: Collective, row: int, of: Candidates, setup: Setup) -> Sent:
    tp, dp, pp = (int(each[row]) for each in (setup.tp, setup.dp, setup.pp))
    ranks, stride = {"tp": (tp, 1), "dp": (dp, tp), "pp": (pp, tp * dp)}[issued.group]
    bandwidth, latency = _link(_MEASURED_AS.get(issued.op, issued.op), row, of, setup, ranks, stride)
    op = "all_gather" if issued.op in ("reduce", "broadcast") else issued.op  # a ring passes each byte once
    moved = wire_bytes(op, of.platform.backend, ranks, issued.bytes)
    return Sent(
        issued.op, issued.group, issued.calls, issued.bytes, issued.calls * latency + moved / bandwidth
    )


def _link(op: str, row: int, of: Candidates, setup: Setup, ranks: int, stride: int) -> tuple[float, float]:
    """Bytes per second and latency of one collective among ``ranks`` ranks, each ``stride`` from the next.

    A ring that leaves its node uses the links of all its members there, and is never faster than
    those inside (as :func:`~pretune.model.physics.communication.group_bandwidth`).
    """
    local = of.platform.devices_per_node
    members = max(min(local // stride, ranks), 1)
    leaves = ranks * stride > local and of.platform.nodes > 1
    fits = {
        scope: getattr(of.platform.fingerprint, f"{scope}_{op}") for scope in ("intra_node", "inter_node")
    }
    inside = fits["intra_node"].bandwidth_bytes_per_s or float(setup.intra_bytes_per_s[row])
    across = fits["inter_node"].bandwidth_bytes_per_s or float(setup.inter_bytes_per_s[row])
    latency = fits["inter_node" if leaves else "intra_node"].latency_s
    bandwidth = min(inside if members > 1 else np.inf, across * members) if leaves else inside
    return bandwidth, float(setup.latency_s[row]) if latency is None else latency
