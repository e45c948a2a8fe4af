"""What `pretune probe` finds of links whose rate is known: two namespaces joined at three rates.

    sudo python benchmarks/probe_links.py [--rates 1gbit 200mbit 50mbit]

Kept in benchmarks/results/probe.json: the fits, each bandwidth over the rate that was set, and the times. The
rate counts Ethernet, IP and TCP headers too: 1448 of 1514 bytes are payload, so 0.956 is all that can be had.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from pretune.collector.evidence import read_json, write_json

sys.path.insert(0, str(Path(__file__).resolve().parent / "clusters"))
from record import TWO_HOSTS, cluster

RESULT = Path(__file__).resolve().parent / "results" / "probe.json"
BYTES_PER_S = {"1gbit": 125e6, "200mbit": 25e6, "50mbit": 6.25e6}


def probed(rate: str, folder: Path) -> dict[str, Any]:
    """What the command says of the link at that rate."""
    cluster("up", rate)
    (folder / "hosts.yaml").write_text(yaml.safe_dump({"hosts": TWO_HOSTS, "warm": True}))
    files = ["--hosts", str(folder / "hosts.yaml"), "--out", str(folder / "platform.yaml")]
    command = [sys.executable, "-m", "pretune.cli", "probe", *files, "--json"]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def compared(rate: str, found: dict[str, Any]) -> dict[str, Any]:
    """Per collective the fit, its bandwidth over the rate, and [bytes, seconds] that it rests on."""
    links = {}
    for op in sorted({row["op"] for row in found["collectives"]}):
        fit = found["platform"]["fingerprint"][f"inter_node_{op}"]
        rows = [row for row in found["collectives"] if row["op"] == op]
        bandwidth = fit["bandwidth_bytes_per_s"] or 0.0
        times = [[row["bytes"], float(f"{row['seconds']:.4g}")] for row in rows]
        links[op] = {**fit, "over_rate": round(bandwidth / BYTES_PER_S[rate], 3), "times": times}
    return {"rate": rate, "rate_bytes_per_s": BYTES_PER_S[rate], "load_1min": os.getloadavg()[0], **links}


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--rates", nargs="+", choices=list(BYTES_PER_S), default=list(BYTES_PER_S))
    known = {row["rate"]: row for row in read_json(RESULT) or []}
    for rate in parser.parse_args().rates:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                known[rate] = compared(rate, probed(rate, Path(folder)))
            finally:
                cluster("down")
        known[rate]["wall_s"] = round(time.monotonic() - begun, 1)
        shares = {op: each["over_rate"] for op, each in known[rate].items() if isinstance(each, dict)}
        print(rate, json.dumps(shares), f"{known[rate]['wall_s']:.0f} s", flush=True)
        write_json(RESULT, [known[each] for each in BYTES_PER_S if each in known])
    return 0


if __name__ == "__main__":
    sys.exit(main())
