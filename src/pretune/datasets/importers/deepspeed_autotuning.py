"""The results of DeepSpeed's autotuner: a folder of experiments, with what each ran and measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pretune.datasets.importers import deepspeed_config
from pretune.datasets.importers.base import Importer, Run, SetAside, digest
from pretune.datasets.importers.lines import json_object, numbered, positive, whole
from pretune.datasets.importers.runlog import Failures
from pretune.datasets.trial import Status
from pretune.errors import InputError

_LOGS = ("stderr.log", "stdout.log")
_PROFILE = "profile_model_info"  # the run that only counts parameters


class DeepSpeedAutotuning(Importer):
    """Reads ``autotuning_results`` (or one ``exp.json`` in it). An experiment without metrics failed, for the
    reason that its ``stderr.log`` names; where none is named, it is set aside, since it may still run.

    ``throughput`` is samples per second, from the timers of forward, backward and step
    (``DeepSpeedEngine._autotuning_exit``): what lies between them is not in it.
    """

    name: ClassVar[str] = "deepspeed-autotuning"
    reads: ClassVar[str] = "a folder of the results of DeepSpeed's autotuner"
    pattern = "exp.json"
    fills: ClassVar[tuple[str, ...]] = (
        *deepspeed_config.FILLS,
        *("platform.nodes", "platform.devices_per_node", "platform.devices", "step_time_s", "status"),
        *("cause", "knob.dp", "counter.model_flops_per_s_per_device"),
    )

    def read(self, path: Path) -> Iterator[Run | SetAside]:
        experiments = sorted(path.rglob("exp.json")) if path.is_dir() else [path]
        if not experiments:
            raise InputError(f"{path}: has no exp.json; give the autotuner's results_dir")
        for file in experiments:
            experiment = _json(file)
            if experiment is None or not isinstance(experiment.get("ds_config"), dict):
                yield SetAside(str(file), None, "is no experiment of the autotuner (no ds_config in it)")
            elif experiment.get("name") == _PROFILE:
                yield SetAside(str(file), None, "only profiles the model; no throughput is measured in it")
            else:
                yield self._run(file, experiment)

    def _run(self, file: Path, experiment: dict[str, Any]) -> Run | SetAside:
        values = _stated(experiment, _json(file.parent / "ds_config.json") or experiment["ds_config"])
        told = json.dumps([experiment.get("name"), experiment["ds_config"]], sort_keys=True)
        key = f"{self.name}-{digest(told)}"
        written = file.parent / "metrics.json"
        if written.exists():
            metrics = _json(written)
            measured = "is no whole JSON object (cut off?)" if metrics is None else _measured(metrics, values)
            if isinstance(measured, str):
                return SetAside(str(written), None, measured)
            return Run(None, key, values | measured)
        if not any((file.parent / log).exists() for log in _LOGS):
            return SetAside(str(file), None, "has neither metrics.json nor logs; it was not run")
        failed = _failed(file.parent)
        if failed is None:
            return SetAside(
                str(file), None, "has no metrics.json, and its logs name no error; it may still run"
            )
        return Run(None, key, values | failed)


def _stated(experiment: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    values = deepspeed_config.from_config(config)
    per_node, nodes = whole(str(experiment.get("num_gpus"))), whole(str(experiment.get("num_nodes")))
    if per_node and nodes:
        counts = {"platform.devices_per_node": per_node, "platform.nodes": nodes}
        values |= counts | {"platform.devices": per_node * nodes}
    return values


def _measured(metrics: dict[str, Any], values: dict[str, Any]) -> dict[str, Any] | str:
    """The columns of a metrics.json; or why it has none."""
    throughput = positive(str(metrics.get("throughput")))
    if throughput is None:
        return f"throughput: {metrics.get('throughput')!r} is no number of samples per second"
    sequences = values.get("workload.global_batch_sequences")
    if sequences is None:
        return "states samples per second, and its ds_config no train_batch_size to tell a step's time by"
    latency = positive(str(metrics.get("latency")))
    if latency and not 0.98 < throughput * latency / (sequences * 1e6) < 1.02:  # by DeepSpeed's definition
        return f"throughput {throughput:g} is not {sequences} samples in the latency, {latency:g} us"
    flops = positive(str(metrics.get("FLOPS_per_gpu")))
    counters = {"counter.model_flops_per_s_per_device": flops} if flops else {}
    return {"step_time_s": sequences / throughput, "status": str(Status.OK), **counters}


def _failed(folder: Path) -> dict[str, str] | None:
    """Status and cause by the first of its logs that names an error; None where none does."""
    for log in _LOGS:
        failures = Failures()
        if (folder / log).exists():
            for _, line in numbered(folder / log):
                failures.read(line)
        if failures.found:
            return {"status": str(failures.found.status), "cause": failures.found.cause}
    return None


def _json(file: Path) -> dict[str, Any] | None:
    """The object in a file; None when there is none, or it is cut off."""
    try:
        return json_object(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
