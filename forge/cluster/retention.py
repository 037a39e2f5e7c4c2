"""Retention: ended jobs that their queue keeps no longer are deleted, and so are expired dedupe keys.

In small batches, each a transaction of its own, with a pause after each as long as the batch took: so it never has more
than half of what one connection can do, and less if the database is slow. A round is short, because a pod that stops
waits for it; while more is left, the next one comes soon and goes on where this one ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from forge.cluster.service import Service
from forge.storage import Storage

__all__ = ["Retention"]

BATCH = 1000  # rows in one transaction
ROUND = 1.0  # seconds
EVERY, SOON = 60.0, 0.1  # seconds between rounds: when nothing was left, and while there is more


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
        self._after: str | None = None  # where the last round ended; None: at the end
        self._deleted = 0  # since the last time that nothing was left
        self.every = EVERY

    def run_once(self, term: int | None) -> str | None:
        end = time.monotonic() + self._at_most
        while True:
            began = time.monotonic()
            batch = self._storage.prune(self._batch, self._after, term=term)
            self._after, self._deleted = batch.after, self._deleted + batch.deleted
            now = time.monotonic()
            if self._after is None or now >= end:
                break
            self._sleep(now - began)
        self.every = SOON if self._after is not None else EVERY
        if self._after is not None or not self._deleted:
            return None
        deleted, self._deleted = self._deleted, 0
        return f"{deleted:,} ended job{'s' * (deleted != 1)} deleted"
