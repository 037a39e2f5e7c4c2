"""Pods on PostgreSQL: that they live, and what becomes of the claims of those that do not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from uuid import UUID

from forge.job import Claim, Ending, Failed, Pod, Released
from forge.storage.contract.statements import Step
from forge.storage.contract.storage import Storage
from forge.storage.contract.values import Fates, Incarnation, Reaped
from forge.storage.postgres.claims import PostgresClaims
from forge.storage.postgres.database import PostgresDatabase
from forge.storage.postgres.facet import PostgresFacet
from forge.storage.postgres.rows import text_array
from forge.storage.shared.statements import Queries

__all__ = ["PostgresPods"]

_UNFINISHED = 30.0  # seconds after which a pod that somebody was about to remove is removed by somebody else
# Seconds between looks for claims of pods that nobody knows of, from the first reaping on. There are none unless
# somebody has deleted a pod's row by hand; and it reads the whole table.
_SWEEP_EVERY = 3600.0


class PostgresPods(PostgresFacet, Storage):
    """See `Storage`."""

    def __init__(self, db: PostgresDatabase, queries: Queries, claims: PostgresClaims) -> None:
        super().__init__(db, queries)
        self._claims = claims
        self._sweep_at = 0.0  # monotonic

    def claims_of(self, pod: int) -> list[Claim]:
        return self._claims.search("claims_of_pods", pods=[pod], orphans=False)

    def cancel_requests(self, who: Incarnation) -> list[tuple[UUID, int]]:
        rows = self._claims.ask(Step(self._queries.cancel_requests, {"pod": who.pod.id}))
        return [(row[0], row[1]) for row in rows]

    def register(
        self, name: str, queues: Sequence[str], host: str, pid: int, capacity: int = 1, label: str | None = None
    ) -> Incarnation:
        given = {
            "name": name,
            "host": host,
            "pid": pid,
            "queues": text_array(queues),
            "capacity": capacity,
            "label": label,
        }
        # On a connection that beats: who was taken for dead needs no other for this.
        number, started, beat = self._claims.ask(Step(self._queries.register_pod, given))[0]
        who = Incarnation(Pod(number, name, host, pid, tuple(queues), started, beat, capacity, label))
        self._claims.register(who)
        return who

    def beat(self, who: Incarnation) -> bool:
        return self._claims.ask(Step(self._queries.beat, {"pod": who.pod.id})) != []

    def pulse(self, who: Incarnation) -> tuple[bool, list[tuple[UUID, int]]]:
        found = self._claims.ask(Step(self._queries.pulse, {"pod": who.pod.id}))
        return found[0][0] is not None, [(id_, token) for _, id_, token in found if id_ is not None]

    def serve(self, who: Incarnation, queues: Sequence[str], capacity: int = 1) -> None:
        self._do("serve_queues", pod=who.pod.id, queues=list(queues), capacity=capacity)

    def deregister(self, who: Incarnation) -> int:
        pod = who.pod.id
        self._do("mark_pod", pod=pod)
        released = 0 if self._claims.holds_none(who) else self.release(pod)
        self._do("remove_pods", pods=[pod])
        return released

    def pods(self) -> list[Pod]:
        return [Pod(row[0], row[1], row[2], row[3], tuple(row[4]), *row[5:]) for row in self._rows("pods")]

    def release(self, pod: int, message: str | None = None, *, crashed: bool = False) -> int:
        return self._take_back([pod], Released(message, crashed))

    def _take_back(
        self,
        pods: Sequence[int],
        outcome: Released | Failed,
        delay: float = 0.0,
        all: bool = False,
        fates: Fates | None = None,
    ) -> int:
        """End every claim of these pods the same way, and with `all` those of pods that nobody knows of."""
        claims = self._claims.search("claims_of_pods", pods=list(pods), orphans=all)
        endings = [Ending(claim, outcome, delay) for claim in claims]
        stale = [self.finalize(endings[at : at + 1000], fates=fates) for at in range(0, len(endings), 1000)]
        return len(endings) - sum(map(len, stale))

    def reap(self, stale: float = 60.0, delay: float = 0.0, *, fates: Fates | None = None) -> Reaped:
        gone = [row[0] for row in self._rows("mark_stale_pods", stale=stale, unfinished=_UNFINISHED)]
        sweep = time.monotonic() >= self._sweep_at
        if not gone and not sweep:
            return Reaped([], 0)
        jobs = self._take_back(gone, Failed("reaped after stale heartbeat"), delay, all=sweep, fates=fates)
        if sweep:
            self._sweep_at = time.monotonic() + _SWEEP_EVERY
        self._do("remove_pods", pods=gone)
        return Reaped(gone, jobs)
