"""A lane: one queue in this pod. How many jobs it may claim, and which worker gets the next one."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterable

from forge.job import Claim
from forge.master.slots import Slot
from forge.storage.contract import LowWater

__all__ = ["Lane"]

# A worker is given this many seconds of work ahead, so that it need not wait for the master between short jobs; longer
# jobs are given one at a time, so that none waits behind another while a third worker is idle.
AHEAD = 0.005
MOST_AHEAD = 200  # jobs
BATCH = 1000  # jobs claimed at once at most


class Lane:
    """The claimed jobs of a queue that no worker has yet, and its workers."""

    def __init__(self, queue: str, workers: int, poll: float) -> None:
        self.queue = queue
        self.slots = [Slot(queue, n) for n in range(workers)]
        self.waiting: deque[Claim] = deque()
        self.low_water = LowWater()
        self.claiming = False
        self.busy = False  # the last claim was full: there is more
        self._poll = poll
        self._look_at = 0.0  # monotonic: claim again then, woken or not
        self._took: float | None = None  # seconds a job of this queue takes, smoothed

    @property
    def window(self) -> int:
        """Jobs a worker may have in hand."""
        if self._took is None:
            return 1
        return max(1, min(MOST_AHEAD, int(AHEAD / max(self._took, 1e-6))))

    def note(self, seconds: float) -> None:
        """A job has ended after this long."""
        self._took = seconds if self._took is None else self._took + 0.05 * (seconds - self._took)
        if seconds > AHEAD:  # one long job is reason enough to stop sending ahead
            self._took = max(self._took, seconds)

    def wake(self) -> None:
        """There may be jobs."""
        self._look_at = 0.0

    def wanted(self, now: float) -> int:
        """How many jobs to claim now."""
        if self.claiming or not (self.busy or now >= self._look_at):
            return 0
        window = self.window
        room = sum(max(0, window - len(s.in_hand)) for s in self.slots if s.ready and not s.draining)
        if window > 1 and room:
            room += window * len(self.slots)  # the next round, claimed while this one runs
        return min(BATCH, room - len(self.waiting)) if room > len(self.waiting) else 0

    def claimed(self, claims: Iterable[Claim], asked: int) -> None:
        """What a claim brought."""
        self.claiming = False
        before = len(self.waiting)
        self.waiting.extend(claims)
        self.busy = len(self.waiting) - before >= asked
        self._look_at = time.monotonic() + self._poll * random.uniform(0.5, 1.5)

    def dispatch(self) -> None:
        """Give waiting jobs to workers, the emptiest first."""
        window = self.window
        free = [s for s in self.slots if s.ready and not s.draining and len(s.in_hand) < window]
        while self.waiting and free:
            free.sort(key=lambda s: len(s.in_hand))
            for slot in free:
                if not self.waiting:
                    break
                slot.send(self.waiting.popleft())
            free = [s for s in free if len(s.in_hand) < window]
        for slot in self.slots:
            if slot.wants_to_write:
                slot.flush()

    def next_look(self) -> float:
        """When it wants to claim again at the latest, monotonic."""
        return self._look_at
