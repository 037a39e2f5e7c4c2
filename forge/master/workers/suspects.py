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
SHORTEST_TRIAL = 1.0  # seconds
ZYGOTE_DIED = "the zygote died while the job ran, as it had before"  # of who is to blame for it


class Seen(NamedTuple):
    """What is known of a job that was in hand when a zygote died."""

    deaths: int
    longest: float  # seconds that it had run then


class Trial(NamedTuple):
    """A job that is observed: no other one of its kind is started meanwhile."""

    job: UUID
    running: Callable[[], bool]
    until: float  # monotonic


class ZygoteDeaths:
    """Which jobs of the pod were in hand when a zygote died: of all queues, in workers and in programs."""

    def __init__(self) -> None:
        self._seen: dict[UUID, Seen] = {}
        self._trial: Trial | None = None

    def seen_by(self, job: UUID, since: float, now: float) -> bool:
        """The job was in hand at one more death, since then (monotonic). Whether it certainly was the cause."""
        certain = self._trial is not None and self._trial.job == job and now < self._trial.until
        before = self._seen.get(job, Seen(0, 0.0))
        _remember(self._seen, job, Seen(before.deaths + 1, max(before.longest, now - since)))
        return certain

    def may_start(self, job: UUID, now: float) -> bool:
        """Whether the job may run now. Almost every job may."""
        if not self._seen or not self._tried(job) or self._trial is None:
            return True
        return now >= self._trial.until or not self._trial.running()

    def started(self, job: UUID, running: Callable[[], bool], now: float) -> None:
        """The job, which might start, has; `running` tells whether it still runs."""
        if self._seen and self._tried(job):
            self._trial = Trial(job, running, now + 2 * self._seen[job].longest + SHORTEST_TRIAL)

    def _tried(self, job: UUID) -> bool:
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
        """These were in hand when a process died."""
        self.waiting.extend(claims)

    def blame(self, job: UUID) -> None:
        """This one has died alone."""
        _remember(self._blamed, job, 1)

    def runs_alone(self, job: UUID) -> bool:
        """Whether it is to blame."""
        return job in self._blamed

    def sift(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Of claims that have just come keep those to blame. The answer are the others."""
        if not self._blamed:
            return claims
        self.add([claim for claim in claims if claim.id in self._blamed])
        return [claim for claim in claims if claim.id not in self._blamed]

    @property
    def running(self) -> int:
        """How many run now."""
        return sum(1 for slot in self.slots if slot.in_hand)

    def places(self, now: float) -> int:
        """Places of the queue that they take: the other workers leave one free for who could start."""
        if not self.slots:
            return 0
        return self.running + (self._idle() is not None and self._next(now) is not None)

    def _idle(self) -> Slot | None:
        return next((slot for slot in self.slots if slot.free and not slot.in_hand), None)

    def _next(self, now: float) -> Claim | None:
        return next((claim for claim in self.waiting if self.deaths.may_start(claim.id, now)), None)

    def dispatch(self, now: float, places: int) -> bool:
        """Start as many as there are workers and places for. Whether any was started."""
        given = False
        while places > 0 and (slot := self._idle()) is not None and (claim := self._next(now)) is not None:
            self.waiting.remove(claim)
            slot.send([claim], now)
            self.deaths.started(claim.id, partial(slot.in_hand.__contains__, claim.id.hex), now)
            places -= 1
            given = True
        return given

    def settle(self, now: float, most: int) -> None:
        """Have one worker while there are suspects, at most so many while they take long, and none without."""
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
        """Those that wait, to be given back: they run alone when they are claimed again."""
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
