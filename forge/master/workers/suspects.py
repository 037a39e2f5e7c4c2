"""Whose fault it was: jobs that were in hand when a process died run next alone, and only who dies alone is blamed.

Of several jobs in a worker's hands nobody can tell which one killed it. All that may have started become suspects. They
stay claimed, and each runs in a worker of capacity 1 that has no other job (`QUEUE/alone-0`), while the other workers
go on as ever. One that ends there is cleared, with no error, crash or lost attempt to its name. One that kills that
worker has been alone with it: its crash is counted, and when it is claimed again it runs alone again, until it is dead.

A zygote takes all workers of the pod with it, so what was in hand then becomes suspect in every queue. Those that were
in hand at two such deaths are started one at a time in the whole pod: the next one when the last has ended, or has run
for twice as long as it had at any such death. If the zygote dies meanwhile, it was that one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar
from uuid import UUID

from forge.job import Claim
from forge.master.workers.slot import Slot

__all__ = ["ZYGOTE_DIED", "Suspects", "ZygoteDeaths"]

T = TypeVar("T")

REMEMBERED = 10_000  # jobs; of more the oldest are forgotten, which costs another worker and blames nobody
MOST_ALONE = 8  # workers for the suspects of one queue
# Seconds that a suspect runs before another worker is started for the next one: short ones need only one.
ONE_MORE_AFTER = 0.05
SHORTEST_OBSERVATION = 1.0  # seconds for which no other such job is started, at least
# The error of a job that is to blame for the death of a zygote.
ZYGOTE_DIED = "the zygote died while the job ran, as it had before"


class DeathsSeen(NamedTuple):
    """What is known of a job that was in hand when a zygote died."""

    deaths: int  # of zygotes, that it was in hand at
    longest: float  # seconds that it had run then, at most


class Observation(NamedTuple):
    """A job that was in hand at two deaths of a zygote and runs again: no other such job is started meanwhile."""

    job: UUID
    running: Callable[[], bool]
    until: float  # monotonic


class ZygoteDeaths:
    """Which jobs of the pod were in hand when a zygote died: of all queues, in workers and in programs."""

    def __init__(self) -> None:
        self._seen: dict[UUID, DeathsSeen] = {}
        self._observed: Observation | None = None

    def seen_by(self, job: UUID, since: float, now: float) -> bool:
        """The job was in hand at one more death, since then (monotonic). Whether it certainly was the cause."""
        observed = self._observed
        certain = observed is not None and observed.job == job and now < observed.until
        before = self._seen.get(job, DeathsSeen(0, 0.0))
        _remember(self._seen, job, DeathsSeen(before.deaths + 1, max(before.longest, now - since)))
        return certain

    def may_start(self, job: UUID, now: float) -> bool:
        """Whether the job may run now: True but for a job that was in hand at two deaths, while another such job is
        observed."""
        if not self._seen or not self._is_observed(job) or self._observed is None:
            return True
        return now >= self._observed.until or not self._observed.running()

    def started(self, job: UUID, running: Callable[[], bool], now: float) -> None:
        """The job has been started, which `may_start` allowed; `running` tells whether it still runs."""
        if self._seen and self._is_observed(job):
            until = now + 2 * self._seen[job].longest + SHORTEST_OBSERVATION
            self._observed = Observation(job, running, until)

    def _is_observed(self, job: UUID) -> bool:
        return job in self._seen and self._seen[job].deaths >= 2


class Suspects:
    """The suspects of one queue, and the workers that run them."""

    def __init__(self, queue: str, deaths: ZygoteDeaths) -> None:
        self.deaths = deaths
        self.slots: list[Slot] = []
        self.waiting: deque[Claim] = deque()
        self._queue = queue
        self._blamed: dict[UUID, int] = {}  # jobs that run alone when they are claimed again

    def add(self, claims: Iterable[Claim]) -> None:
        """These jobs were in hand when a process died: they are to run alone."""
        self.waiting.extend(claims)

    def blame(self, job: UUID) -> None:
        """This job was alone with a worker that died: it runs alone from now on, whenever it is claimed."""
        _remember(self._blamed, job, 1)

    def runs_alone(self, job: UUID) -> bool:
        """Whether the job is to blame for the death of a worker, and must run alone."""
        return job in self._blamed

    def sift(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Take the jobs that must run alone out of claims that have just come. Returns the others."""
        if not self._blamed:
            return claims
        self.add([claim for claim in claims if claim.id in self._blamed])
        return [claim for claim in claims if claim.id not in self._blamed]

    @property
    def running(self) -> int:
        """How many suspects run now."""
        return sum(1 for slot in self.slots if slot.in_hand)

    def places(self, now: float) -> int:
        """Places of the queue that suspects take: one for each that runs, and one for the next if it could start."""
        if not self.slots:
            return 0
        return self.running + (self._idle() is not None and self._next(now) is not None)

    def _idle(self) -> Slot | None:
        return next((slot for slot in self.slots if slot.free and not slot.in_hand), None)

    def _next(self, now: float) -> Claim | None:
        return next((claim for claim in self.waiting if self.deaths.may_start(claim.id, now)), None)

    def dispatch(self, now: float, places: int) -> bool:
        """Start as many suspects as there are workers and places for. Returns whether any was started."""
        given = False
        while places > 0 and (slot := self._idle()) is not None and (claim := self._next(now)) is not None:
            self.waiting.remove(claim)
            slot.send([claim], now)
            self.deaths.started(claim.id, partial(slot.in_hand.__contains__, claim.id.hex), now)
            places -= 1
            given = True
        return given

    def settle(self, now: float, most: int) -> None:
        """Have one worker while there are suspects, more (`most` of them) while they take long, none without
        suspects."""
        if not self.waiting and not self.slots:
            return
        busy = all(slot.in_hand and now - slot.head_since > ONE_MORE_AFTER for slot in self._meant())
        if self.waiting and busy and len(self._meant()) < min(most, MOST_ALONE):
            self._one_more()
        for slot in self.slots:
            if not self.waiting and not slot.in_hand and not slot.retired:
                slot.retire()
        self.slots = [slot for slot in self.slots if not slot.retired or slot.channel is not None]

    def _meant(self) -> list[Slot]:
        return [slot for slot in self.slots if not slot.retired]

    def _one_more(self) -> None:
        taken = {slot.label for slot in self.slots}
        numbers = (n for n in range(MOST_ALONE * 2) if f"{self._queue}/alone-{n}" not in taken)
        self.slots.append(Slot(self._queue, f"alone-{next(numbers)}", alone=True))

    def take_out(self) -> list[Claim]:
        """Take out the jobs that wait, to be given back: they run alone when they are claimed again."""
        found = list(self.waiting)
        self.waiting.clear()
        for claim in found:
            self.blame(claim.id)
        return found


def _remember(jobs: dict[UUID, T], job: UUID, value: T) -> None:
    jobs.pop(job, None)  # to the end: the newest
    jobs[job] = value
    if len(jobs) > REMEMBERED:
        del jobs[next(iter(jobs))]
