"""The scoreboard: which job ran, how often, and when. It is how every contender is checked and timed.

Each process that runs jobs has a file of its own, mapped into memory: a double per job (when it started, on the
machine's monotonic clock) and then a byte per job (how often it ran). No two processes write to the same byte, so that
a job which runs twice is never counted once. The Node side writes the same layout.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path
from typing import Any

FOLDER, JOBS = "PEERS_BOARD", "PEERS_JOBS"  # how a worker is told where the board is, and its size

_opening = threading.Lock()  # two threads of one worker must not open it twice
_times: Any = None
_counts: Any = None


def _open() -> None:
    global _times, _counts  # noqa: PLW0603 (one board a process)
    with _opening:
        if _counts is not None:
            return
        jobs = int(os.environ[JOBS])
        path = Path(os.environ[FOLDER]) / f"{os.getpid()}.board"
        with path.open("w+b") as file:
            file.truncate(9 * jobs)
            view = memoryview(mmap.mmap(file.fileno(), 9 * jobs))
        _times = view[: 8 * jobs].cast("d")
        _counts = view[8 * jobs :]  # last: it says that both are open


def _close() -> None:
    global _times, _counts  # noqa: PLW0603
    _times = _counts = None


os.register_at_fork(after_in_child=_close)


def hit(i: int) -> None:
    """What every contender's handler does with job i, and all that it does."""
    if _counts is None:
        _open()
    _times[i] = time.monotonic()
    _counts[i] += 1


class Board:
    """The same from the side of who measures: all processes' files together."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.folder, self.jobs = folder, jobs
        self._maps: dict[str, mmap.mmap] = {}
        folder.mkdir(parents=True)

    def env(self) -> dict[str, str]:
        """For the workers."""
        return {FOLDER: str(self.folder), JOBS: str(self.jobs)}

    def _files(self) -> list[mmap.mmap]:
        for entry in os.scandir(self.folder):
            if entry.name not in self._maps and entry.stat().st_size == 9 * self.jobs:
                with open(entry.path, "r+b") as file:
                    self._maps[entry.name] = mmap.mmap(file.fileno(), 9 * self.jobs)
        return list(self._maps.values())

    def _counts(self, jobs: int) -> list[bytes]:
        return [file[8 * self.jobs : 8 * self.jobs + jobs] for file in self._files()]

    def ran(self, jobs: int) -> int:
        """How many of the first `jobs` have run, if none did in two processes: cheap enough to ask all the time."""
        return sum(jobs - counts.count(0) for counts in self._counts(jobs))

    def has_run(self, i: int) -> bool:
        """Whether job i has."""
        return any(file[8 * self.jobs + i] for file in self._files())

    def verdict(self, jobs: int) -> tuple[int, int]:
        """(lost, duplicates) of the first `jobs`: those that never ran, and the runs beyond each one's first."""
        totals = [sum(counts) for counts in zip(*self._counts(jobs), strict=True)] or [0] * jobs
        return totals.count(0), sum(total - 1 for total in totals if total > 1)

    def starts(self, jobs: int) -> list[float]:
        """When each of the first `jobs` started first; 0 for those that never did."""
        views = [memoryview(file)[: 8 * jobs].cast("d") for file in self._files()]
        firsts = [min((at for at in times if at), default=0.0) for times in zip(*views, strict=True)]
        return firsts or [0.0] * jobs

    def close(self) -> None:
        """Unmap the files."""
        for file in self._maps.values():
            file.close()
        self._maps.clear()
