"""Which places of its queue the jobs take that run in programs and not in workers: a queue's `max_workers` bounds both
together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from uuid import UUID

from forge.job import Claim, Ending

__all__ = ["Places"]


class Places:
    """The jobs that programs have, running or waiting, and how each of them ends."""

    def __init__(self, free: Callable[[str], int], finish: Callable[[Ending], None]) -> None:
        """`free` tells how many places of a queue its workers leave; `finish` is told every ending."""
        self._free, self._finish = free, finish
        self.taken: Counter[str] = Counter()  # by queue: all of them
        self.running: Counter[str] = Counter()
        self.blocked: Counter[str] = Counter()  # could run, if their queue had a place
        self._started: set[UUID] = set()

    def take(self, claim: Claim) -> None:
        """It is here now."""
        self.taken[claim.queue] += 1

    def start(self, claim: Claim) -> bool:
        """Take a place for it; False if there is none, and then workers leave the next one free."""
        if self.running[claim.queue] >= self._free(claim.queue):
            self.blocked[claim.queue] += 1
            return False
        self.running[claim.queue] += 1
        self._started.add(claim.id)
        return True

    def put_back(self, claim: Claim) -> None:
        """It waits again."""
        if claim.id in self._started:
            self._started.discard(claim.id)
            self.running[claim.queue] -= 1

    def finish(self, ending: Ending) -> None:
        """It is no longer here."""
        self.put_back(ending.claim)
        self.taken[ending.claim.queue] -= 1
        self._finish(ending)

    @property
    def waiting(self) -> bool:
        """Whether any waits."""
        return self.taken.total() > self.running.total()

    def outside(self, queue: str) -> int:
        """Places of the queue that are not for its workers now."""
        return self.running[queue] + self.blocked[queue]

    def forget(self) -> None:
        """They are not ours any more."""
        for counter in (self.taken, self.running, self.blocked):
            counter.clear()
        self._started.clear()
