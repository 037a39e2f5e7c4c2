"""Which places of its queue the jobs take that run in programs and not in workers: a queue's `max_workers` bounds both
together."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from uuid import UUID

from forge.job import Claim, Ending, Released
from forge.master.queues.job_pace import AHEAD, JobPace
from forge.master.workers.suspects import ZYGOTE_DIED, ZygoteDeaths

__all__ = ["Places"]


# Jobs that may wait here for each place. Children take one at a time, and a claim for each that ends would be most of
# what a pod with quick programs does: bench/polyglot.py ran 800 a second so, and 4,400 with some that wait.
MOST_AHEAD = 100


class Places:
    """The jobs that programs have, running or waiting, and how each of them ends."""

    def __init__(
        self,
        free: Callable[[str], int],
        finish: Callable[[Ending], None],
        deaths: ZygoteDeaths | None = None,
        ran: Callable[[Claim, float, float], None] = lambda *_: None,
    ) -> None:
        """`free` tells how many places of a queue its workers leave; `finish` is told every ending; `ran` of each job
        that was started, since when (monotonic) and for how long it ran."""
        self._free, self._finish, self._deaths, self._ran = free, finish, deaths or ZygoteDeaths(), ran
        self.taken: Counter[str] = Counter()  # by queue: all of them
        self.bytes: Counter[str] = Counter()  # of their payloads
        self.running: Counter[str] = Counter()
        self.blocked: Counter[str] = Counter()  # could run, if their queue had a place
        self._started: dict[UUID, float] = {}  # since when they run, monotonic
        self._paces: defaultdict[str, JobPace] = defaultdict(JobPace)  # by queue

    def take(self, claim: Claim) -> None:
        """Count a job that was claimed and is for a program."""
        self.taken[claim.queue] += 1
        self.bytes[claim.queue] += len(claim.payload)

    def start(self, claim: Claim) -> bool:
        """Take a place for the job. Returns False if there is none; then the workers of its queue leave the next one
        free."""
        now = time.monotonic()
        if not self._deaths.may_start(claim.id, now):
            return False
        if self.running[claim.queue] >= self._free(claim.queue):
            self.blocked[claim.queue] += 1
            return False
        self.running[claim.queue] += 1
        self._started[claim.id] = now
        self._deaths.started(claim.id, lambda: claim.id in self._started, now)
        return True

    def put_back(self, claim: Claim) -> None:
        """The job does not run any more and waits again: its place is free."""
        if self._started.pop(claim.id, None) is not None:
            self.running[claim.queue] -= 1

    def starter_gone(self, claim: Claim) -> None:
        """The zygote has died, and took the program along that had this job: it goes back as if never claimed. See
        `forge.master.workers.suspects`."""
        now = time.monotonic()
        certain = self._deaths.seen_by(claim.id, self._started.get(claim.id, now), now)
        self.finish(Ending(claim, Released(ZYGOTE_DIED, crashed=True) if certain else Released()))

    def finish(self, ending: Ending) -> None:
        """The job has ended: its place is free, and whoever wants to know is told."""
        if (since := self._started.get(ending.claim.id)) is not None:
            seconds = time.monotonic() - since
            self._paces[ending.claim.queue].note(1, seconds, seconds)
            self._ran(ending.claim, since, seconds)
        self.put_back(ending.claim)
        self.taken[ending.claim.queue] -= 1
        self.bytes[ending.claim.queue] -= len(ending.claim.payload)
        self._finish(ending)

    def more(self, queue: str, places: int) -> int:
        """How many more jobs may wait here, of a queue with so many places. None as long as it is not known how long
        they run."""
        ahead = places * min(MOST_AHEAD, int(self._paces[queue].jobs_in(AHEAD)))
        return max(0, ahead - (self.taken[queue] - self.running[queue]))

    @property
    def waiting(self) -> bool:
        """Whether any job waits for a program or a place."""
        return self.taken.total() > self.running.total()

    def outside(self, queue: str) -> int:
        """How many places of the queue its workers may not use now: those that programs take, and those that jobs for
        programs wait for."""
        return self.running.get(queue, 0) + self.blocked.get(queue, 0)

    def forget(self) -> None:
        """Forget all jobs: the pod was reaped, and they are another pod's now."""
        for counter in (self.taken, self.bytes, self.running, self.blocked):
            counter.clear()
        self._started.clear()
