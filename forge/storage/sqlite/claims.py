"""Claiming and ending on SQLite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forge.job import Claim, Ending
from forge.storage.contract.storage import Storage
from forge.storage.contract.values import MAX_CRASHES, Fates, Incarnation, Want
from forge.storage.shared.low_water import MOST_BYTES, LowWater
from forge.storage.shared.statements import Queries
from forge.storage.sqlite import guest, refusals, rows
from forge.storage.sqlite.drivers import SqliteConnection
from forge.storage.sqlite.endings import finalize
from forge.storage.sqlite.facet import SqliteFacet

__all__ = ["BEFORE_ALL", "SqliteClaims"]

BEFORE_ALL = -(1 << 62)  # a priority


class SqliteClaims(SqliteFacet, Storage):
    """See `Storage`."""

    def claim(
        self,
        who: Incarnation,
        queue: str,
        n: int,
        low_water: LowWater | None = None,  # noqa: ARG002
        most_bytes: int = MOST_BYTES,
    ) -> list[Claim]:
        # Every claim is a whole scan: see the query. It need not wait for the disk: undone, it makes the job pending.
        with self._writing(durable=False) as (conn, now):
            return self._claim(conn, who, queue, n, now, most_bytes)

    def _claim(
        self, conn: SqliteConnection, who: Incarnation, queue: str, n: int, now: int, most_bytes: int = MOST_BYTES
    ) -> list[Claim]:
        token = who.mint()
        params = {"token": token, "pod": who.pod.id, "queue": queue, "now": now, "priority": BEFORE_ALL}
        found: list[tuple[Any, ...]] = []
        while len(found) < n:
            params["n"] = n - len(found)
            params["n"], most_bytes = _fitting(conn, self._sql, params, most_bytes)
            claimed = conn.rows(self._sql.claim.sql, params)
            found += claimed
            if len(claimed) == params["n"] or most_bytes <= 0:
                break
            # All of that priority that are due; the next one. Asked for only now, because mostly there is enough.
            level = claimed or conn.rows(self._sql.next_claimable.sql, params)
            if not level:
                break
            params["priority"] = level[0][0]
        return rows.claims(found, token, queue)

    def finalize(
        self,
        endings: Sequence[Ending],
        *,
        max_crashes: int = MAX_CRASHES,
        fates: Fates | None = None,
        lock_wait: float | None = None,  # noqa: ARG002 (the file has one lock, which all wait for)
    ) -> list[Ending]:
        if not endings:
            return []
        became: Fates = []
        with self._writing() as (conn, now):
            stale = finalize(conn, self._sql, endings, now, max_crashes, became)
        if fates is not None:
            fates += became
        return stale

    def exchange(
        self, who: Incarnation, endings: Sequence[Ending], wants: Sequence[Want], *, max_crashes: int = MAX_CRASHES
    ) -> tuple[list[Ending], list[Claim]]:
        with self._writing() as (conn, now):
            stale = finalize(conn, self._sql, endings, now, max_crashes, [])
            found = [self._claim(conn, who, want.queue, want.n, now) for want in wants]
            return stale, [claim for claims in found for claim in claims]

    def try_writing(self, size: int = 0) -> None:
        refusals.try_writing(self._writing(), self._sql, size)

    def complete_in(self, conn: Any, ending: Ending) -> bool:
        return guest.complete(conn, self._sql, ending, self._now())

    def next_due(self, queues: Sequence[str], low_waters: Mapping[str, LowWater] | None = None) -> float | None:  # noqa: ARG002
        # No marks, for the same reason as in `claim`.
        return self._reader.read(lambda conn: _next_due(conn, self._sql, queues, self._now()))


def _fitting(conn: SqliteConnection, sql: Queries, params: Mapping[str, Any], most_bytes: int) -> tuple[int, int]:
    """How many of the jobs that a claim with these parameters would find it may have, and what is left of `most_bytes`
    then: all, or those up to the one with which their payloads come to as much."""
    if params["n"] == 1:  # whatever it weighs
        return 1, most_bytes
    version = tuple(map(int, str(conn.rows("select sqlite_version()")[0][0]).split(".")))
    weigh = sql.weigh if version >= (3, 43) else sql.weigh_by_reading
    total = conn.rows(weigh.sql, params)[0][0] or 0
    if total < most_bytes:
        return params["n"], most_bytes - total
    n = 0
    for (size,) in conn.rows(sql.weigh_each.sql, params):
        n, most_bytes = n + 1, most_bytes - size
        if most_bytes <= 0:
            break
    return n, most_bytes


def _next_due(conn: SqliteConnection, sql: Queries, queues: Sequence[str], now: int) -> float | None:
    """Seconds until something may be claimed from these queues."""
    times = []
    for queue in queues:
        found = conn.rows(sql.standing.sql, {"queue": queue})
        paused, until = found[0] if found else (False, None)
        params: dict[str, Any] = {"queue": queue, "priority": BEFORE_ALL}
        while not paused and (level := conn.rows(sql.next_priority.sql, params)):
            params["priority"] = level[0][0]
            times.append(max(conn.rows(sql.first_due.sql, params)[0][0], until or 0))
        if not paused and (lined := conn.rows(sql.first_lined_due.sql, {"queue": queue})):
            times.append(max(lined[0][0], until or 0))
    return (min(times) - now) / 1e6 if times else None
