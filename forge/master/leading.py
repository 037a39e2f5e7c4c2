"""Who splits the workers while there is no lease: of the live pods that serve anything, that with the lowest number.

Stands in for the lease and its runner of services, and is the only place that knows how a leader is found: the master
calls `tick`, and nothing else of it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from forge.cluster.service import Service
from forge.master.couriers import Courier
from forge.master.telling import Sometimes, log
from forge.storage import Storage

__all__ = ["Leading"]

TERM = 0  # of the row that migration 3 makes


class Leading:
    """Runs one service on one of the pods."""

    def __init__(self, storage: Storage, service: Service, courier: Courier, done: Callable[[], None]) -> None:
        """`done` is called after a round that changed something."""
        self._storage, self._service, self._courier, self._done = storage, service, courier, done
        self._at = 0.0  # monotonic
        self._sometimes = Sometimes(60.0)
        self._now = 0.0

    def tick(self, own: int, now: float) -> None:
        """`own` is this pod's number."""
        if now >= self._at and not self._courier.busy:
            self._at, self._now = now + self._service.every * random.uniform(0.9, 1.1), now
            self._courier.send(lambda: self._round(own), self._came)

    def _round(self, own: int) -> str | None:
        leads = min((pod.id for pod in self._storage.pods() if pod.capacity and pod.queues), default=own) == own
        return self._service.run_once(TERM) if leads else None

    def _came(self, words: str | None, error: str | None) -> None:
        if error is not None and self._sometimes(error, self._now):
            log(f"{self._service.name}: {error}", level=logging.WARNING)
        elif words is not None:
            log(words)
            self._done()
