"""What the processes of a pod use: CPU and memory of the master, its zygotes and their workers, as Linux tells it.
Where it does not, nothing is said."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["ProcessUse", "Use", "use_of"]

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = 1.0 / os.sysconf("SC_CLK_TCK")


class Use(NamedTuple):
    """What one process has used, or several together."""

    cpu: float = 0.0  # seconds, since it started
    ended_cpu: float = 0.0  # of its children that have ended and been waited for
    rss: int = 0  # bytes
    pss: int | None = None  # bytes, of memory that is shared only a part; None: not asked


def use_of(pid: int, *, pss: bool = False) -> Use | None:
    """What a process has used; None if there is no such process, or if the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        shared = _pss(pid) if pss else None
    except (OSError, IndexError):
        return None
    user, system, ended_user, ended_system = (int(fields[i]) * _TICK for i in range(11, 15))
    return Use(user + system, ended_user + ended_system, int(fields[21]) * _PAGE, shared)


def _pss(pid: int) -> int | None:
    """The kernel walks all pages of the process for it: 0.3 ms for a worker of 30 MB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return None


class ProcessUse:
    """What the processes of a pod have used since the last look. For one thread."""

    def __init__(self, master: int | None = None) -> None:
        self._master = os.getpid() if master is None else master
        self._before: dict[str, float] = {}

    def look(
        self, zygotes: Sequence[int], workers: Sequence[int], *, pss: bool
    ) -> tuple[dict[str, float], dict[str, int]]:
        """(CPU seconds since the last look, bytes), by the names that storage has for them. The time of a worker that
        has ended is its zygote's, and that of a zygote the master's, as time of children: so it is not lost."""
        own, forkers, all_ = use_of(self._master, pss=pss), _uses(zygotes, pss), _uses(workers, pss)
        if own is None:
            return {}, {}
        total = {
            "master_cpu": own.cpu,
            "zygote_cpu": sum(use.cpu for use in forkers),
            "workers_cpu": own.ended_cpu + sum(use.ended_cpu for use in forkers) + sum(use.cpu for use in all_),
        }
        # A zygote that ends takes its time along to `ended_cpu`: less than before is none.
        cpu = {name: max(0.0, seconds - self._before.get(name, 0.0)) for name, seconds in total.items()}
        self._before = total
        memory = {}
        for name, uses in (("master", [own]), ("zygote", forkers), ("workers", all_)):
            memory[f"{name}_rss"] = sum(use.rss for use in uses)
            if pss:
                memory[f"{name}_pss"] = sum(use.pss or 0 for use in uses)
        return cpu, memory


def _uses(pids: Iterable[int], pss: bool) -> list[Use]:
    return [found for pid in pids if pid and (found := use_of(pid, pss=pss)) is not None]
