"""Until when what a pod runs may run: a master writes it down, and its zygotes and workers look at it themselves.

A pod whose beats stop is taken for dead after `stale_after`, and its jobs are given to others. So that none of them
runs twice at once, it fences itself before that: with no beat confirmed, its handlers are told to stop, then
interrupted, and then everything it runs is killed. It cannot tell whether only this pod is cut off or nobody reaches
the database, and does the same in both cases.

The times count from the start of the last beat that was confirmed. The database noted that beat no sooner, so it waits
no less. The tenth of `stale_after` that is left after the kill is for clocks that do not run equally fast, for a busy
machine, and for processes to die.

They are in memory that a master shares with all its zygotes, which may only read it, and workers inherit it. So they
hold for a master that no longer moves: workers tell their handlers, and the zygote kills, without a word from it.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import time
import weakref

__all__ = ["INTERRUPT", "KILL", "TELL", "Deadlines", "Fence", "clock"]

# Parts of `stale_after`, from the start of the last beat that was confirmed: no more jobs are started, and handlers are
# told to stop; those that go on are interrupted; everything is killed.
TELL, INTERRUPT, KILL = 0.8, 0.85, 0.9

_SIZE = mmap.PAGESIZE
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the time that a machine sleeps counts, where it can


def clock() -> float:
    """Seconds since some time, the same for all processes of a machine. All times here are by this clock."""
    return time.clock_gettime(_CLOCK)


class Deadlines:
    """The times, for who only reads them. After a fork they are the same ones."""

    def __init__(self, fd: int) -> None:
        """From the descriptor that a master has passed on; it is closed."""
        self._words = memoryview(mmap.mmap(fd, _SIZE, prot=mmap.PROT_READ)).cast("d")
        os.close(fd)

    @property
    def tell_at(self) -> float:
        """From then on handlers are told to stop."""
        return self._words[0]

    @property
    def interrupt_at(self) -> float:
        """From then on they are interrupted."""
        return self._words[1]

    @property
    def kill_at(self) -> float:
        """From then on nothing may run."""
        return self._words[2]


class Fence:
    """The times, for the master that writes them: its heart does, and its loop asks."""

    def __init__(self) -> None:
        """Nothing is limited before the first `confirm`."""
        self.fd = _shared_memory()
        weakref.finalize(self, os.close, self.fd)
        self._words = memoryview(mmap.mmap(self.fd, _SIZE)).cast("d")
        # The same, out of reach of everybody else.
        self.began, self.tell_at, self.kill_at = clock(), math.inf, math.inf
        self._late = self._seen = 0  # how often it was confirmed too late, and how often that was known
        self._write(math.inf, math.inf, math.inf)

    def confirm(self, began: float, stale_after: float) -> None:
        """The database has taken a beat that began then: what runs may go on."""
        before = self.kill_at
        tell, interrupt, kill = (began + stale_after * part for part in (TELL, INTERRUPT, KILL))
        self._write(tell, interrupt, kill)
        self.began, self.tell_at, self.kill_at = began, tell, kill
        # Written first, looked at the clock then. A zygote does it the other way round: if it still saw the time
        # before, and that it was over, so does this.
        if clock() >= before:
            self._late += 1

    def passed(self) -> bool:
        """Whether the time to kill has come, now or since the last call: somebody may have done so."""
        late = self._late
        passed, self._seen = late != self._seen, late
        return passed or clock() >= self.kill_at

    def _write(self, *times: float) -> None:
        for n, at in enumerate(times):
            self._words[n] = at


def _shared_memory() -> int:
    """A descriptor of memory that processes which are given it share."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("forge-fence")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.truncate(fd, _SIZE)
    return fd
