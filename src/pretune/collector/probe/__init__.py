"""What a platform is and does, told by its own ranks in one short run: devices, copies, collectives.

A launcher runs :func:`run` on every rank. The quick probe of a tuning session and the whole one of
``pretune probe`` are one program: a :class:`Plan` says over which sizes, and which collectives.
"""

from pretune.collector.probe.machine import Machine, look
from pretune.collector.probe.plan import QUICK, WHOLE, Plan
from pretune.collector.probe.ranks import run

__all__ = ["QUICK", "WHOLE", "Machine", "Plan", "look", "run"]
