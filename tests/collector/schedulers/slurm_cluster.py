"""A Slurm of two node daemons on this machine: one controller, nodes n1 and n2 of one processor each."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

NODES = ("n1", "n2")
COMMANDS = ("slurmctld", "slurmd", "munged", "mungekey", "salloc", "srun")
MISSING = [name for name in COMMANDS if not shutil.which(name)]

CONF = """\
ClusterName=test
SlurmctldHost={host}
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdTimeout=5
KillWait=2
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=work Nodes=n1,n2 Default=YES PriorityTier=1
PartitionName=urgent Nodes=n1,n2 PriorityTier=2
"""


class SlurmCluster:
    """Daemons that live in ``folder``; ``environment`` makes Slurm's commands talk to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen] = {}

    def start(self) -> None:
        (self.folder / "state").mkdir()
        ports = free_ports(3)
        text = CONF.format(host=socket.gethostname(), folder=self.folder, ports=ports)
        (self.folder / "slurm.conf").write_text(text)
        files = {
            "key-file": "key",
            "socket": "socket",
            "pid-file": "pid",
            "seed-file": "seed",
            "log-file": "log",
        }
        options = [f"--{option}={self.folder / 'munge'}.{name}" for option, name in files.items()]
        subprocess.run(["mungekey", "--create", "--keyfile", self.folder / "munge.key"], check=True)
        self._run("munged", "--foreground", "--force", *options)
        wait_for(lambda: (self.folder / "munge.socket").exists())
        self._run("slurmctld", "-D", "-c")
        for node in NODES:
            self.start_node(node)
        wait_for(lambda: self.states() == dict.fromkeys(NODES, "idle"))

    def start_node(self, node: str) -> None:
        self._run(node, "-D", "-N", node, command="slurmd")

    def _run(self, name: str, *arguments: object, command: str | None = None) -> None:
        with (self.folder / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [command or name, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
            )

    def ask(self, *command: str) -> str:
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def states(self) -> dict[str, str]:
        """Node -> its state, in Slurm's short words."""
        try:
            lines = self.ask("sinfo", "-h", "-N", "-p", "work", "-o", "%N %t").splitlines()
        except subprocess.CalledProcessError:  # the controller is not up yet
            return {}
        return dict(line.split() for line in lines)

    def jobs(self) -> list[str]:
        return self.ask("squeue", "-h", "-t", "pending,running", "-o", "%A").split()

    def lose_node(self, node: str) -> None:
        """What the others see when the machine goes away: its daemon, its steps and all that they run."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()
        for process in steps_on(node):
            for each in (process, *process.parents()):
                if each.name() == "slurmstepd":
                    kill_tree(each)

    def stop(self) -> None:
        for node in NODES:
            for process in steps_on(node):
                kill_tree(process)
        for daemon in reversed(self._daemons.values()):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def steps_on(node: str) -> list[psutil.Process]:
    """What Slurm's steps run on a node of the tests."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SLURMD_NODENAME") == node:
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill_tree(process: psutil.Process) -> None:
    try:
        tree = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for each in tree:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def wait_for(condition, seconds: float = 30.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise AssertionError(f"Slurm did not come up within {seconds:g} s")
        time.sleep(0.1)
