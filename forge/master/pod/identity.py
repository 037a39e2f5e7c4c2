"""Who this master is, so that its successor on this host can tell that it is dead without waiting for the reaper.

A pid alone does not tell: the system uses it again. Together with the boot, the pid namespace and the time at which the
process started it is never used again.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from forge.config import Config
from forge.job import Pod

__all__ = ["is_dead", "own_label", "own_name", "short_id"]


def own_name() -> str:
    """`boot/namespace/start` of this process; empty parts where the system does not say."""
    return f"{_read('/proc/sys/kernel/random/boot_id')}/{_namespace()}/{_start_of(os.getpid())}"


def own_label(config: Config) -> str | None:
    """The name that people see instead of the host, such as `rates-worker-1.4-9f3a`; None if the settings have no
    `worker_prefix`."""
    if config.worker_prefix is None:
        return None
    number = config.worker_id or short_id(f"{own_name()}/{os.getpid()}")
    return "-".join(part for part in (config.worker_prefix, "worker", config.worker_version, number) if part)


def short_id(text: str) -> str:
    """Four hex digits, the same on every machine and in the systems that forge descends from: the low 16 bits of
    SipHash-1-3 with zero keys over the text and a byte 0xFF."""
    data = text.encode() + b"\xff"
    end = len(data) & ~7
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, end, 8)]
    words.append(int.from_bytes(data[end:], "little") | (len(data) & 0xFF) << 56)
    state = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    for word in words:
        a, b, c, d = _sip_round(state[0], state[1], state[2], state[3] ^ word)
        state = (a ^ word, b, c, d)
    state = (state[0], state[1], state[2] ^ 0xFF, state[3])
    for _ in range(3):
        state = _sip_round(*state)
    return f"{(state[0] ^ state[1] ^ state[2] ^ state[3]) & 0xFFFF:04x}"


def _sip_round(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    a = (a + b) & _MASK
    b = _turned(b, 13) ^ a
    a = _turned(a, 32)
    c = (c + d) & _MASK
    d = _turned(d, 16) ^ c
    a = (a + d) & _MASK
    d = _turned(d, 21) ^ a
    c = (c + b) & _MASK
    b = _turned(b, 17) ^ c
    return a, b, _turned(c, 32), d


_MASK = 2**64 - 1


def _turned(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _MASK


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
