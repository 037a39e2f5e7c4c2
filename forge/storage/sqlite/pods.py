"""Pods on SQLite: that they live, and what becomes of the claims of those that do not."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from forge.job import Claim, Ending, Failed, Pod, Released
from forge.storage.contract.storage import Storage
from forge.storage.contract.values import MAX_CRASHES, Fates, Incarnation, Reaped
from forge.storage.sqlite import rows
from forge.storage.sqlite.endings import SqliteEndings
from forge.storage.sqlite.facet import SqliteFacet

__all__ = ["SqlitePods"]

_TAKEN_BACK_AT_ONCE = 500  # claims in one transaction: others wait for it some 20 ms


class SqlitePods(SqliteFacet, Storage):
    """See `Storage`."""

    def claims_of(self, pod: int) -> list[Claim]:
        return [_bare_claim(*row) for row in self._rows("claims_of_pod", pod=pod, limit=-1)]

    def cancel_requests(self, who: Incarnation) -> list[tuple[UUID, int]]:
        return [(rows.as_uuid(id_), token) for id_, token in self._rows("cancel_requests", pod=who.pod.id)]

    def register(
        self, name: str, queues: Sequence[str], host: str, pid: int, capacity: int = 1, label: str | None = None
    ) -> Incarnation:
        params = {"name": name, "host": host, "pid": pid, "queues": rows.as_list(queues) or "[]", "capacity": capacity}
        with self._writing() as (conn, now):
            number = conn.rows(self._sql.register_pod.sql, {**params, "label": label, "now": now})[0][0]
        at = rows.as_datetime(now)
        return Incarnation(Pod(number, name, host, pid, tuple(queues), at, at, capacity, label))

    def beat(self, who: Incarnation) -> bool:
        with self._writing() as (conn, now):
            return conn.change(self._sql.beat.sql, {"pod": who.pod.id, "now": now}) == 1

    def pulse(self, who: Incarnation) -> tuple[bool, list[tuple[UUID, int]]]:
        alive = self.beat(who)
        return alive, self.cancel_requests(who) if alive else []

    def serve(self, who: Incarnation, queues: Sequence[str], capacity: int = 1) -> None:
        params = {"pod": who.pod.id, "queues": rows.as_list(queues) or "[]", "capacity": capacity}
        with self._writing() as (conn, _):
            conn.change(self._sql.serve_queues.sql, params)

    def deregister(self, who: Incarnation) -> int:
        with self._writing() as (conn, _):
            conn.rows(self._sql.deregister_pod.sql, {"pod": who.pod.id})
        return self.release(who.pod.id)

    def pods(self) -> list[Pod]:
        return [rows.as_pod(row) for row in self._rows("pods")]

    def release(self, pod: int, message: str | None = None, *, crashed: bool = False) -> int:
        return self._take_back(pod, Released(message, crashed))

    def _take_back(self, pod: int, outcome: Released | Failed, delay: float = 0.0, fates: Fates | None = None) -> int:
        """End every claim of a pod the same way, a batch at a time."""
        total = 0
        while True:
            with self._writing() as (conn, now):
                found = conn.rows(self._sql.claims_of_pod.sql, {"pod": pod, "limit": _TAKEN_BACK_AT_ONCE})
                endings = [Ending(_bare_claim(*row), outcome, delay) for row in found]
                batch = SqliteEndings(conn, self._sql, now, MAX_CRASHES)
                batch.finalize(endings)
            if fates is not None:
                fates += batch.fates
            total += len(found)
            if len(found) < _TAKEN_BACK_AT_ONCE:
                return total

    def reap(self, stale: float = 60.0, delay: float = 0.0, *, fates: Fates | None = None) -> Reaped:
        """A pod's row goes before its claims: if this is cut short, the next reaper finds them without an owner."""
        with self._writing() as (conn, now):
            gone = conn.rows(self._sql.remove_stale_pods.sql, {"before": now - rows.after(0, stale)})
            orphans = conn.rows(self._sql.orphan_owners.sql)
        jobs = sum(self._take_back(pod, Failed("reaped after stale heartbeat"), delay, fates) for (pod,) in orphans)
        return Reaped(sorted(pod for (pod,) in gone), jobs)


def _bare_claim(id_: bytes, token: int, keyed: int, queue: str) -> Claim:
    """Just enough of a claim to end it."""
    return Claim(0, None, rows.as_uuid(id_), token, queue, "", b"", 0, 0, 0, False, bool(keyed))
