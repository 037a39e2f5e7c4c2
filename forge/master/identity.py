"""Who this master is, so that its successor on this host can tell that it is dead without waiting for the reaper.

A pid alone is nothing: it is used again. With the boot, the pid namespace and the process's start time it is a life.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from forge.job import Pod

__all__ = ["is_dead", "own_name"]


def own_name() -> str:
    """`boot/namespace/start` of this process; empty parts where the system does not say."""
    return f"{_read('/proc/sys/kernel/random/boot_id')}/{_namespace()}/{_start_of(os.getpid())}"


def is_dead(pod: Pod) -> bool:
    """Whether it certainly is: a pod of this very host and namespace whose process is no more."""
    boot, _, rest = pod.name.partition("/")
    namespace, _, start = rest.partition("/")
    if pod.host != socket.gethostname() or not (boot and namespace and start) or pod.pid == os.getpid():
        return False
    if boot != _read("/proc/sys/kernel/random/boot_id"):
        return True  # it ran before the machine was started last
    return namespace == _namespace() and start != _start_of(pod.pid)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_of(pid: int) -> str:
    """Clock ticks since boot; empty if there is no such process, or only its zombie."""
    state, *fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split() or ["Z"]
    return "" if state == "Z" else fields[18]
