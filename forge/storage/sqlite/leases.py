"""The lease on SQLite, and how a leader's write is bound to its term."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from forge.errors import LostLease
from forge.storage.leases import Answer, Holder, Leader, Leases, over
from forge.storage.sqlite import rows
from forge.storage.sqlite.database import Handle
from forge.storage.sqlite.drivers import Connection
from forge.storage.statements import Queries

__all__ = ["SqliteLeases", "hold_term"]


def hold_term(conn: Connection, sql: Queries, term: int | None) -> None:
    """The first step of a leader's write, inside its transaction: `LostLease` if the term is over. None is no term."""
    if term is not None and not conn.rows(sql.hold_term.sql, {"term": term}):
        raise LostLease(over(term))


class SqliteLeases(Leases):
    """See `Leases`. Knows the handles of its storage but not the storage, which would then go only when cycles do."""

    def __init__(self, reader: Handle, writer: Handle, clock: Callable[[], float], sql: Queries) -> None:
        self._reader, self._writer, self._clock, self._sql = reader, writer, clock, sql

    def _now(self) -> int:
        return int(self._clock() * 1e6)

    def _writing(self) -> AbstractContextManager[tuple[Connection, int]]:
        return self._writer.writing(clock=self._now)

    def acquire(self, holder: Holder, ttl: float) -> Answer:
        params = {"key": holder.key, "pod": holder.pod, "host": holder.host, "pid": holder.pid}
        with self._writing() as (conn, now):
            until = rows.after(now, ttl)
            conn.rows(self._sql.restore_lease.sql, {"now": now})
            taken = conn.rows(self._sql.acquire_lease.sql, {**params, "now": now, "until": until})
            if taken:
                return Answer(taken[0][0], ttl)
            ((standing,),) = conn.rows(self._sql.lease_until.sql)
            return Answer(None, (standing - now) / 1e6)

    def renew(self, term: int, holder: Holder, ttl: float) -> bool:
        params: dict[str, Any] = {"term": term, "key": holder.key, "pod": holder.pod}
        with self._writing() as (conn, now):
            return conn.change(self._sql.renew_lease.sql, {**params, "now": now, "until": rows.after(now, ttl)}) == 1

    def release(self, term: int) -> None:
        with self._writing() as (conn, now):
            conn.rows(self._sql.release_lease.sql, {"term": term, "now": now})

    def leader(self) -> Leader | None:
        found = self._reader.read(lambda conn: conn.rows(self._sql.leader.sql, {"now": self._now()}))
        if not found:
            return None
        term, pod, host, pid, since, until = found[0]
        return Leader(term, pod, host, pid, rows.as_datetime(since), rows.as_datetime(until))

    def check(self, term: int) -> None:
        with self._writing() as (conn, _):
            hold_term(conn, self._sql, term)
