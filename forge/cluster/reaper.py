"""The reaper: pods that have gone silent are removed, and their jobs given to others.

Every pod runs it. Two at once do no harm, and a cluster whose leader has just died needs it most. A mistake would cost
much, though: after an outage of the database every pod looks silent. So a pod reaps only after its own heart has beaten
without a break for as long as others may be silent: whatever kept them from beating did not keep this one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from forge.cluster.service import Service
from forge.storage import Storage
from forge.storage.contract import Fates

__all__ = ["Reaper", "Streak"]

EVERY = 3.0  # seconds, or half the stale threshold if that is less: what is past it runs elsewhere soon after
BREAK = 2 / 3  # of the stale threshold: so long without a beat is a break


class Streak:
    """For how long this pod's heart has beaten without a break. One thread tells, another asks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beats: tuple[float, float] | None = None  # the first and the last of the streak

    def beat(self, stale: float) -> None:
        """The database has just taken a beat; `stale` is for how long pods may be silent."""
        now, beats = self._clock(), self._beats
        unbroken = beats is not None and now - beats[1] <= stale * BREAK
        self._beats = (beats[0] if beats is not None and unbroken else now), now

    def end(self) -> None:
        """The database is away."""
        self._beats = None

    def lasts(self, stale: float) -> bool:
        """Whether it goes on, and has for as long as pods may be silent."""
        now, beats = self._clock(), self._beats
        return beats is not None and now - beats[1] <= stale * BREAK and now - beats[0] >= stale


class Reaper(Service):
    """Removes pods that have gone silent and gives their jobs to others."""

    name = "reaper"
    leader_only = False
    level = logging.WARNING

    def __init__(
        self,
        storage: Storage,
        stale: Callable[[], float],
        streak: Streak | None,
        taken_back: Callable[[Fates], None] = lambda _: None,
    ) -> None:
        """`stale` answers for how many seconds a pod may be silent. Without a streak nothing is waited for.
        `taken_back` is told of every job that was."""
        self._taken_back = taken_back
        self._storage, self._stale, self._streak = storage, stale, streak
        self.every = min(EVERY, stale() / 2)

    def run_once(self, term: int | None) -> str | None:  # noqa: ARG002 (every pod reaps)
        stale = self._stale()
        self.every = min(EVERY, stale / 2)
        if self._streak is not None and not self._streak.lasts(stale):
            return None
        fates: Fates = []
        reaped = self._storage.reap(stale, fates=fates)
        self._taken_back(fates)
        if not reaped.pods and not reaped.jobs:
            return None
        pods, jobs = len(reaped.pods), reaped.jobs
        return f"{pods} pod{'s' * (pods != 1)} had gone silent; {jobs} job{'s' * (jobs != 1)} taken back"
