"""A cold trial on one host: torchrun's own library call, with the exit code of every rank kept.

``torchrun`` prints which rank failed and how; this asks the same code for the structured
answer, so that nothing has to be read out of a log.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretune.collector.evidence import write_json
from pretune.collector.process import PARENT, die_with_parent

_SHUTDOWN_S = 3  # from SIGTERM to SIGKILL


def main() -> int:
    command, parent = json.loads(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    os.environ[PARENT] = str(os.getpid())
    returncodes, killed = launch(command)
    ended = {"returncodes": returncodes, "killed": killed}
    write_json(Path(command["folder"]) / f"node-{command['env']['GROUP_RANK']}.json", ended)
    return 1 if any(returncodes.values()) else 0


def launch(command: dict[str, Any]) -> tuple[dict[int, int], list[int]]:
    """Run ``MODULE.run(FOLDER)`` on every local rank.

    Returns global rank -> exit code (-signal), and the ranks that torchrun itself ended.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    environment, folder, ranks = command["env"], command["folder"], command["ranks"]
    node, nodes = int(environment["GROUP_RANK"]), int(environment["GROUP_WORLD_SIZE"])
    config = LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=ranks,
        run_id=command["run"],
        rdzv_backend="static",
        rdzv_endpoint=f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}",
        rdzv_configs={"rank": node, "timeout": 120},
        max_restarts=0,
        monitor_interval=0.1,
        shutdown_timeout=_SHUTDOWN_S,
        logs_specs=DefaultLogsSpecs(log_dir=str(Path(folder) / f"node-{node}"), redirects=Std.ALL),
    )
    first = node * ranks
    codes = dict.fromkeys(range(first, first + ranks), 0)
    killed: list[int] = []
    try:
        elastic_launch(config, sys.executable)(
            "-u", "-m", "pretune.collector.rank", command["module"], folder
        )
    except ChildFailedError as error:
        codes.update({rank: failure.exitcode for rank, failure in error.failures.items()})
        killed = _closed(error.failures)
    return codes, killed


def _closed(failures: Mapping[int, Any]) -> list[int]:
    """The ranks that torchrun ended because another had failed.

    It captures those that failed by themselves first, then sends the others SIGTERM, and SIGKILL to
    who is still there after the shutdown timeout. Timestamps are whole seconds.
    """
    first = min(failures, key=lambda rank: failures[rank].timestamp)
    late = failures[first].timestamp + _SHUTDOWN_S
    return [
        rank
        for rank, failure in failures.items()
        if rank != first and (failure.exitcode == -signal.SIGTERM or failure.timestamp >= late)
    ]


if __name__ == "__main__":
    sys.exit(main())
