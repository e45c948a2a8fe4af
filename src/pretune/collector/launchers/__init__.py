"""Launchers: where trials run. ``launcher_for`` builds one from a job's ``launcher:`` mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pretune.collector.launchers.base import Handle, Launcher
from pretune.errors import InputError

__all__ = ["Handle", "Launcher", "launcher_for"]

_KINDS = ("local", "hosts", "replay")


def launcher_for(settings: dict[str, Any], folder: str | Path, backend: str = "gloo") -> Launcher:
    """The launcher that ``settings`` asks for, keeping each trial's files under ``folder``.

    ``{local: {devices: 2}}``, ``{hosts: [{address: ..., prefix: [...]}, ...]}`` or
    ``{replay: STORE}``; ``warm`` and ``stall_s`` beside ``local`` and ``hosts``. Raises
    :class:`InputError` naming the field.
    """
    kinds = [kind for kind in _KINDS if kind in settings]
    if len(kinds) != 1:
        raise InputError(
            f"launcher: give exactly one of {', '.join(_KINDS)}, got {sorted(settings) or 'none'}"
        )
    options = {key: value for key, value in settings.items() if key != kinds[0]}
    unknown = sorted(set(options) - {"warm", "stall_s"})
    if unknown:
        raise InputError(f"launcher: unknown field {unknown[0]!r}; known: {', '.join(_KINDS)}, warm, stall_s")
    options.setdefault("warm", backend == "gloo")
    return _BUILD[kinds[0]](settings[kinds[0]], Path(folder), backend, options)


def _local(value: Any, folder: Path, backend: str, options: dict[str, Any]) -> Launcher:
    from pretune.collector.launchers.hosts import LocalLauncher

    devices = value.get("devices") if isinstance(value, dict) else value
    if not isinstance(devices, int) or isinstance(devices, bool) or devices < 1:
        raise InputError(f"launcher.local.devices: needs a number of ranks of at least 1, got {devices!r}")
    return LocalLauncher(devices, folder, backend=backend, **options)


def _hosts(value: Any, folder: Path, backend: str, options: dict[str, Any]) -> Launcher:
    from pretune.collector.launchers.hosts import Host, HostsLauncher

    if not isinstance(value, list) or not value:
        raise InputError("launcher.hosts: needs a list of hosts, each with address, interface and prefix")
    hosts = [Host.from_mapping(entry, f"launcher.hosts.{index}") for index, entry in enumerate(value)]
    return HostsLauncher(hosts, folder, backend=backend, **options)


def _replay(value: Any, folder: Path, _backend: str, _options: dict[str, Any]) -> Launcher:
    from pretune.collector.launchers.replay import ReplayLauncher
    from pretune.datasets.store import TrialStore

    return ReplayLauncher(TrialStore(value), folder)


_BUILD = {"local": _local, "hosts": _hosts, "replay": _replay}
