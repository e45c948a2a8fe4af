"""What DeepSpeed's communication logger saw: calls, bytes and time of each collective."""

from __future__ import annotations

import sys
from typing import Any

from pretune.collector.counters.base import CounterProvider, Readings, grown

MILLI = 1e-3


class DeepSpeedCommCounters(CounterProvider):
    """``comm_calls.OP``, ``comm_bytes.OP`` and ``comm_time_s.OP``, where the run has the logger on.

    The logger waits for the device at each call, which takes away what overlap there is: pretune never turns
    it on where it measures throughput, and a trial in which it is on is a diagnostic one
    (``TrialSpec.purpose``), of which nobody learns. Bytes are as DeepSpeed counts them: of an all-gather,
    the shard that one rank gives.
    """

    name = "deepspeed_comm"

    @property
    def intrusive(self) -> bool:
        return self._logger() is not None

    def start(self) -> None:
        if not self.intrusive:
            self.missing[self.name] = "DeepSpeed's communication logger is off: it slows what is measured"
        self._before = self._absolute()

    def stop(self) -> Readings:
        after = self._absolute()
        return Readings(grown(dict.fromkeys(after, 0.0) | self._before, after))

    def _logger(self) -> Any:
        module: Any = sys.modules.get("deepspeed.comm.comm")
        logger = getattr(module, "comms_logger", None)
        return logger if logger is not None and logger.enabled else None

    def _absolute(self) -> dict[str, float]:
        logger = self._logger()
        found: dict[str, float] = {}
        for operation, by_size in logger.comms_dict.items() if logger is not None else ():
            # a record's name may carry its caller after a bar
            op = str(operation).split("|")[0].strip()
            for size, (calls, latencies_ms, *_) in by_size.items():
                for name, amount in (
                    (f"comm_calls.{op}", float(calls)),
                    (f"comm_bytes.{op}", float(calls) * size),
                    (f"comm_time_s.{op}", sum(latencies_ms) * MILLI),
                ):
                    found[name] = found.get(name, 0.0) + amount
        return found
