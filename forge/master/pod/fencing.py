"""The pod fences itself: without a beat that was confirmed it ends what it runs before others may take it for dead.

When and why is said in `forge.fence`. Workers tell their handlers and zygotes kill, by the times written there; here is
what the master's loop makes of it. Once handlers are told it starts no more jobs. When the time to kill has come it
kills too, and knows that nobody is to blame: what was running goes back, and the token of each claim decides whether it
was still this pod's. Processes are started again when a beat has been confirmed.
"""

from __future__ import annotations

import logging
import math

from forge.fence import Fence, clock
from forge.master.pod.log import counted, log
from forge.master.programs.programs import Programs
from forge.master.workers.workers import Workers

__all__ = ["Fencing"]


class Fencing:
    """On the loop, but for `confirm`."""

    def __init__(self, fence: Fence, workers: Workers, programs: Programs, stale_after: float) -> None:
        self._fence, self._workers, self._programs = fence, workers, programs
        self.stale_after = stale_after
        self._told = self._fenced = False

    def confirm(self, began: float) -> None:
        """The database has taken a beat that began then. From any thread."""
        self._fence.confirm(began, self.stale_after)

    @property
    def open(self) -> bool:
        """Whether jobs may be started."""
        return not self._fenced and clock() < self._fence.tell_at

    def due(self, now: float) -> float:
        """When it is to be asked to look, monotonic. A beat that is confirmed is news and ends the wait by itself."""
        if self._fenced:
            return now if clock() < self._fence.tell_at else math.inf
        return now + (self._fence.kill_at if self._told else self._fence.tell_at) - clock()

    def look(self) -> None:
        """Before anything is made of a process that has ended: it may have been killed for this."""
        if self._fence.passed():
            if not self._fenced:
                self._close()
        elif clock() < self._fence.tell_at:
            if self._told or self._fenced:
                self._reopen()
        elif not self._told and not self._fenced:
            self._told = True
            log(f"{self._silence}: nothing more is started, what runs is told to stop", level=logging.WARNING)

    def start_over(self, began: float) -> None:
        """The pod is another one, which this beat has confirmed, and has ended what the one before ran."""
        self.confirm(began)
        self._fence.passed()
        self._reopen(quietly=True)

    def _close(self) -> None:
        self._fenced = True
        jobs = self._workers.fence() + self._programs.fence()
        gone = f"what it ran is killed ({counted(jobs, 'job')})"
        log(f"{self._silence}, and others may soon take this pod's jobs: {gone}", level=logging.ERROR)

    def _reopen(self, *, quietly: bool = False) -> None:
        if self._fenced:
            self._workers.fenced = False
            self._programs.resume()
        if not quietly:
            log(f"beats are confirmed again; {'workers start anew' if self._fenced else 'going on'}")
        self._told = self._fenced = False

    @property
    def _silence(self) -> str:
        return f"no beat was confirmed for {clock() - self._fence.began:.0f} s"
