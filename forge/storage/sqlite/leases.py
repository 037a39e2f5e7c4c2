"""The lease on SQLite."""

from __future__ import annotations

from typing import Any

from forge.storage.contract.leases import Holder, Leader, LeaseAnswer, LeaseStore
from forge.storage.sqlite import rows
from forge.storage.sqlite.facet import SqliteFacet

__all__ = ["SqliteLeaseStore"]


class SqliteLeaseStore(SqliteFacet, LeaseStore):
    """See `LeaseStore`."""

    def acquire(self, holder: Holder, ttl: float) -> LeaseAnswer:
        params = {"key": holder.key, "pod": holder.pod, "host": holder.host, "pid": holder.pid}
        with self._writing() as (conn, now):
            until = rows.after(now, ttl)
            conn.rows(self._sql.restore_lease.sql, {"now": now})
            taken = conn.rows(self._sql.acquire_lease.sql, {**params, "now": now, "until": until})
            if taken:
                return LeaseAnswer(taken[0][0], ttl)
            ((standing,),) = conn.rows(self._sql.lease_until.sql)
            return LeaseAnswer(None, (standing - now) / 1e6)

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
        with self._led(term):
            pass
