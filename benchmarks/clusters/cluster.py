"""Small real clusters on one Linux machine: hosts with a slow link, capped memory, half a CPU.

    sudo python benchmarks/clusters/cluster.py up 200mbit     two namespaces, one slow link
    sudo python benchmarks/clusters/cluster.py up memory      control groups that cap each rank's memory
    sudo python benchmarks/clusters/cluster.py up half-cpu    control groups with half a core for each rank
    sudo python benchmarks/clusters/cluster.py down           take all of them away

Two network namespaces joined by a veth pair, with `tc tbf` at both ends, are two hosts with
a network of that rate. Control groups of version 1 are expected under /sys/fs/cgroup.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HOSTS = ("pretune-a", "pretune-b")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
RATES = ("1gbit", "200mbit", "50mbit")
MEMORY, CPU = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup/cpu")
RANKS = 2
CFS_PERIOD_US = 20_000  # short, so that a throttled rank stops and goes many times in a step


def run(*command: str, check: bool = True) -> None:
    subprocess.run(command, check=check, stderr=None if check else subprocess.DEVNULL)


def link_up(rate: str) -> None:
    for host in HOSTS:
        run("ip", "netns", "add", host)
        run("ip", "-n", host, "link", "set", "lo", "up")
    run("ip", "link", "add", "veth-a", "netns", HOSTS[0], "type", "veth", "peer", "veth-b", "netns", HOSTS[1])
    for host, device, address in zip(HOSTS, ("veth-a", "veth-b"), ADDRESSES, strict=True):
        run("ip", "-n", host, "address", "add", f"{address}/24", "dev", device)
        run("ip", "-n", host, "link", "set", device, "up")
        shape = ("root", "tbf", "rate", rate, "burst", "128kb", "latency", "100ms")
        run("tc", "-n", host, "qdisc", "add", "dev", device, *shape)


def memory_up(limit_bytes: int) -> None:
    for rank in range(RANKS):
        group = MEMORY / f"pretune-{rank}"
        group.mkdir(exist_ok=True)
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))


def half_cpu_up() -> None:
    for rank in range(RANKS):
        group = CPU / f"pretune-{rank}"
        group.mkdir(exist_ok=True)
        (group / "cpu.cfs_period_us").write_text(str(CFS_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(CFS_PERIOD_US // 2))


def down() -> None:
    for host in HOSTS:
        run("ip", "netns", "delete", host, check=False)
    for rank in range(RANKS):
        for root in (MEMORY, CPU):
            if (root / f"pretune-{rank}").exists():
                (root / f"pretune-{rank}").rmdir()


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up")
    up.add_argument("kind", choices=[*RATES, "memory", "half-cpu"])
    up.add_argument("--limit-mib", type=int, default=160, help="memory of each rank beyond its libraries")
    commands.add_parser("down")
    arguments = parser.parse_args()
    down()
    if arguments.command == "down":
        return 0
    if arguments.kind in RATES:
        link_up(arguments.kind)
    elif arguments.kind == "memory":
        memory_up(arguments.limit_mib << 20)
    else:
        half_cpu_up()
    return 0


if __name__ == "__main__":
    sys.exit(main())
