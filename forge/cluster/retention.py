"""Retention: ended jobs that their queue keeps no longer are deleted, and so are expired dedupe keys.

In small batches, each a transaction of its own, with a pause after each as long as the batch took: so it never has more
than half of what one connection can do, and less if the database is slow. A round is short, because a pod that stops
waits for it; while more is left, the next one comes soon and goes on where this one ended.

A pass goes from the oldest job to those that no queue lets go yet, and is often many rounds. The next one comes when
about as much has fallen due again as is worth a pass; later if most of what a pass looks at has to stay (dead jobs are
kept longer than done ones, and queues differ), for looking costs as well. It begins where the last one found the first
job that stays: what was deleted before that is still to be read past, until vacuum comes. Now and then one begins at
the very start, where a producer whose clock is slow may have added something.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from forge.cluster.service import Service
from forge.storage import Storage
from forge.storage.contract import Pruned

__all__ = ["Retention"]

BATCH = 1000  # rows in one transaction
ROUND = 1.0  # seconds
EVERY, SOON = 60.0, 0.1  # seconds between rounds: when nothing was left, and while there is more
AT_LEAST, AT_MOST = 5.0, 3600.0  # seconds between passes
WORTH = 50_000  # rows that are worth a pass before its time
FROM_THE_START = 600.0  # seconds between passes that begin there
IN_VAIN = 0.1  # of a connection's time at most, for looking at rows that stay


class Retention(Service):
    """Deletes ended jobs that are past their queue's retention, and expired dedupe keys."""

    name = "prune"
    leader_only = True

    def __init__(
        self,
        storage: Storage,
        *,
        at_most: float = ROUND,
        batch: int = BATCH,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`at_most` is how many seconds a round may take."""
        self._storage, self._at_most, self._batch, self._sleep = storage, at_most, batch, sleep
        self._after: str | None = None  # where to go on
        self._under_way = False  # a pass is
        self._floor: str | None = None  # below this a pass left nothing
        self._floor_found = False
        self._start_at = 0.0  # monotonic: when to begin at the start again
        self._walked = self._deleted = 0  # in this pass
        self._busy = 0.0  # seconds of it
        self._passed_at: float | None = None  # monotonic: when the last one ended
        self.every = EVERY

    def run_once(self, term: int | None) -> str | None:
        end = time.monotonic() + self._at_most
        if not self._under_way:
            self._begin_pass(time.monotonic())
        while True:
            began = time.monotonic()
            batch = self._storage.prune(self._batch, self._after, term=term)
            now = time.monotonic()
            self._note(batch, now - began)
            if self._after is None or now >= end:
                break
            self._sleep(now - began)
        if self._after is not None:
            self.every = SOON
            return None
        deleted = self._pass_is_over(now)
        return f"{deleted:,} ended job{'s' * (deleted != 1)} deleted" if deleted else None

    def _begin_pass(self, now: float) -> None:
        self._under_way, self._after = True, self._floor
        if now >= self._start_at:
            self._start_at, self._after = now + FROM_THE_START, None
        self._walked = self._deleted = 0
        self._busy, self._floor_found = 0.0, False

    def _note(self, batch: Pruned, seconds: float) -> None:
        if not self._floor_found and batch.floor is not None:
            self._floor, self._floor_found = batch.floor, batch.walked > batch.deleted
        self._after, self._busy = batch.after, self._busy + seconds
        self._walked, self._deleted = self._walked + batch.walked, self._deleted + batch.deleted

    def _pass_is_over(self, now: float) -> int:
        """When the next one is to begin; what this one deleted."""
        since = EVERY if self._passed_at is None else now - self._passed_at
        worth = min(EVERY, max(AT_LEAST, since * WORTH / max(1, self._deleted)))
        in_vain = self._busy * (1 - self._deleted / max(1, self._walked)) / IN_VAIN
        self.every, self._passed_at, self._under_way = min(max(worth, in_vain), AT_MOST), now, False
        return self._deleted
