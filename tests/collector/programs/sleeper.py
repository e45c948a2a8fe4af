"""A rank program for launcher tests: does what its folder's ``behave.json`` tells its rank to do."""

import json
import os
import signal
import time
from pathlib import Path


def run(folder: Path) -> int:
    rank = os.environ["RANK"]
    (folder / f"started-{rank}").write_text(f"{os.getpid()} {os.environ['WORLD_SIZE']}")
    orders = json.loads((folder / "behave.json").read_text()).get(rank, "leave")
    if orders == "tell":
        (folder / f"environment-{rank}").write_text(json.dumps(dict(os.environ)))
    if orders == "sleep":
        time.sleep(600)
    if orders == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if orders == "break":
        os.kill(os.getpid(), signal.SIGSEGV)
    if orders == "abort":
        return 7
    return 0
