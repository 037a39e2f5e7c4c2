"""How many of a queue's workers are worth having: between `min_workers` and the pod's share of the queue.

More as soon as work waits for them: twice as many each time that all are busy for a moment and a job is due. Less at
leisure: after `idle_shrink` seconds in which fewer were busy at any moment, as many as that, and no less than half. So
a load that goes up and down within that time changes nothing. Pure: time is what the caller says it is.
"""

from __future__ import annotations

__all__ = ["WorkerCount"]

RISE_AFTER = 0.1  # seconds that all workers must be busy before it is asked whether more work waits
ASK_AGAIN = 0.5  # seconds between two such questions


class WorkerCount:
    """How many workers one queue should have: `size`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._full_since: float | None = None
        self._ask_at = 0.0
        self._peak = 0  # the most workers that were busy at once, since `_since`
        self._since = 0.0  # by the caller's clock: when counting the peak began

    def look(self, now: float, least: int, most: int, shrink_after: float, busy: int, full: bool) -> bool:
        """How things are now; whether it should be asked if a job waits that nobody is free for.

        `full`: all workers are there, and busy.
        """
        before, self.size = self.size, max(min(self.size, most), min(least, most))
        if self.size != before:
            self._start_over(now, busy)
        self._peak = max(self._peak, min(busy, self.size))
        if now - self._since >= shrink_after:
            self.size = max(min(least, most), self._peak, -(-self.size // 2))
            self._start_over(now, busy)
        if not full or self.size >= most:
            self._full_since = None
            return False
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since < RISE_AFTER or now < self._ask_at:
            return False
        self._ask_at = now + ASK_AGAIN
        return True

    def told(self, now: float, most: int) -> None:
        """A job waits that no worker was free for. If all workers are still busy there will be twice as many."""
        if self._full_since is not None and self.size < most:
            self.size = min(most, max(1, 2 * self.size))
            self._full_since, self._ask_at = None, 0.0
            self._start_over(now, self.size)

    def _start_over(self, now: float, busy: int) -> None:
        self._since, self._peak = now, min(busy, self.size)
