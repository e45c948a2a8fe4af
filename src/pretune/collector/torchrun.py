"""A cold trial on one host: torchrun's own library call, with the exit code of every rank kept.

``torchrun`` prints which rank failed and how; this asks the same code for the structured
answer, so that nothing has to be read out of a log.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pretune.collector.evidence import write_json
from pretune.collector.process import PARENT, die_with_parent


def main() -> int:
    command, parent = json.loads(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    os.environ[PARENT] = str(os.getpid())
    returncodes = launch(command)
    write_json(Path(command["folder"]) / f"node-{command['env']['GROUP_RANK']}.json", returncodes)
    return 1 if any(returncodes.values()) else 0


def launch(command: dict[str, Any]) -> dict[int, int]:
    """Run ``MODULE.run(FOLDER)`` on every local rank; returns global rank -> exit code (-signal)."""
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
        shutdown_timeout=3,
        logs_specs=DefaultLogsSpecs(log_dir=str(Path(folder) / f"node-{node}"), redirects=Std.ALL),
    )
    first = node * ranks
    codes = dict.fromkeys(range(first, first + ranks), 0)
    try:
        elastic_launch(config, sys.executable)(
            "-u", "-m", "pretune.collector.rank", command["module"], folder
        )
    except ChildFailedError as error:
        codes.update({rank: failure.exitcode for rank, failure in error.failures.items()})
    return codes


if __name__ == "__main__":
    sys.exit(main())
