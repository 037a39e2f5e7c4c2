"""Metrics, the leader's part: what pods reported is added up, what only the database knows is written down, and what is
too old is deleted.

Every step can be repeated, or done by two at once, and changes nothing then: rows are moved, not copied; what is found
is kept as it is, and of jobs enqueued in a minute never less than was found before.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from forge.cluster.service import Service
from forge.storage import Storage
from forge.storage.contract.metrics import MINUTE, Standing

__all__ = ["RollUp"]

EVERY = 60.0  # seconds
OLDER = 180.0  # seconds after which a minute is rolled up: a pod's report is of the minute in which it comes
MINUTES_AT_ONCE = 60  # rolled up in one round
KEEP = 30 * 86_400.0  # seconds
PRUNE_EVERY = 3600.0  # seconds, or a round while there is more
# Each minute is counted twice, when it has just ended and once more: a producer's transaction may take long. A pod that
# has come to lead looks a little further back.
RECOUNT, RECOUNT_AT_FIRST = 2, 5
MOST_COUNTED = 300_000  # jobs of a minute that are read in each of both tables
MOST_SEEN = 10_000  # jobs of a queue that are read to see how it stands


class RollUp(Service):
    """Adds up what pods report, and notes how queues and the database stand."""

    name = "metrics"
    leader_only = True
    every = EVERY

    def __init__(self, storage: Storage, *, keep: float = KEEP, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage, self._metrics, self._keep, self._clock = storage, storage.metrics, keep, clock
        self._term: int | None = None
        self._prune_at = 0.0  # monotonic
        self._stood: set[str] = set()  # queues that had something to say the last time

    def run_once(self, term: int | None) -> str | None:
        """`LostLease` if another pod leads by now."""
        assert term is not None, "only a leader rolls up"
        self._record(term, first=term != self._term)
        self._term = term
        for _ in range(MINUTES_AT_ONCE):
            if not self._metrics.roll_up(term, OLDER):
                break
        self._prune(term)
        return None

    def _record(self, term: int, first: bool) -> None:
        now = self._storage.now()
        minute = now // MINUTE * MINUTE
        enqueued: dict[tuple[float, str], int] = {}
        for back in range(1, (RECOUNT_AT_FIRST if first else RECOUNT) + 1):
            at = minute - back * MINUTE
            enqueued |= {(at, queue): n for queue, n in self._metrics.enqueued(at, MOST_COUNTED).items()}
        standing = self._metrics.standing(MOST_SEEN)
        seen = set(standing)
        for queue in self._stood - seen:  # nothing any more: once that is said, no row says it
            standing[queue] = Standing()
        self._metrics.record(term, minute, standing, self._metrics.database(), enqueued)
        self._stood = seen

    def _prune(self, term: int) -> None:
        now = self._clock()
        if now >= self._prune_at and not self._metrics.prune(term, self._keep):
            self._prune_at = now + PRUNE_EVERY
