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
from forge.master.pod_state import PodState
from forge.master.programs.programs import Programs
from forge.master.workers.workers import Workers

__all__ = ["Fencing"]


class Fencing:
    """Lets the loop start jobs, or ends what runs. On the loop; that a beat was confirmed is told to the fence itself,
    by the thread that beats."""

    def __init__(self, fence: Fence, state: PodState, workers: Workers, programs: Programs) -> None:
        self._fence, self._state, self._workers, self._programs = fence, state, workers, programs
        self._told = False

    @property
    def open(self) -> bool:
        """Whether jobs may be started."""
        return not self._state.fenced and clock() < self._fence.tell_at

    def due(self, now: float) -> float:
        """When it is to be asked to look, monotonic. A beat that is confirmed is news and ends the wait by itself."""
        if self._state.fenced:
            return now if clock() < self._fence.tell_at else math.inf
        return now + (self._fence.kill_at if self._told else self._fence.tell_at) - clock()

    def look(self) -> None:
        """See whether time is up, and act on it. Must be called before a process that has ended is dealt with: it may
        have been killed for this."""
        if self._fence.passed():
            if not self._state.fenced:
                self._close()
        elif clock() < self._fence.tell_at:
            if self._told or self._state.fenced:
                self._reopen()
        elif not self._told and not self._state.fenced:
            self._told = True
            log(f"{self._silence}: nothing more is started, what runs is told to stop", level=logging.WARNING)

    def start_over(self, began: float) -> None:
        """The pod is another one, which this beat has confirmed, and has ended what the one before ran."""
        self._fence.confirm(began, self._state.config.stale_after)
        self._fence.passed()
        self._reopen(quietly=True)

    def _close(self) -> None:
        self._state.fence()
        jobs = self._workers.fence() + self._programs.fence()
        gone = f"what it ran is killed ({counted(jobs, 'job')})"
        log(f"{self._silence}, and others may soon take this pod's jobs: {gone}", level=logging.ERROR)

    def _reopen(self, *, quietly: bool = False) -> None:
        was_fenced, self._told = self._state.fenced, False
        if was_fenced:
            self._state.reopen()
            self._programs.resume()
        if not quietly:
            log(f"beats are confirmed again; {'workers start anew' if was_fenced else 'going on'}")

    @property
    def _silence(self) -> str:
        return f"no beat was confirmed for {clock() - self._fence.began:.0f} s"
