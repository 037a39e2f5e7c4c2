"""Budgets on SQLite."""

from __future__ import annotations

from typing import Any, NamedTuple

from forge.errors import DatabaseError
from forge.storage.contract import Incarnation
from forge.storage.contract.budgets import LEASE, Ask, Budget, BudgetStore, Grant, Limit
from forge.storage.shared.buckets import LATE, TokenLease, check_limit, grant, refilled
from forge.storage.sqlite import rows
from forge.storage.sqlite.drivers import SqliteConnection
from forge.storage.sqlite.facet import SqliteFacet

__all__ = ["SqliteBudgetStore"]


class _Mine(NamedTuple):
    """A pod's lease, with all that its row says."""

    pod: int
    tokens: int
    until: int
    spent: int
    number: int
    drains: int


class _Bucket(NamedTuple):
    limit: Limit
    tokens: float  # now
    drains: int
    declared: Limit  # None in it where settings said nothing
    leases: list[_Mine]


class SqliteBudgetStore(SqliteFacet, BudgetStore):
    """See `BudgetStore`."""

    def _run(self, conn: SqliteConnection, name: str, /, **params: Any) -> list[tuple[Any, ...]]:
        query = getattr(self._sql, name)
        return list(conn.rows(query.sql, {each: params[each] for each in query.names}))

    def _bucket(self, conn: SqliteConnection, scope: str, now: int) -> _Bucket | None:
        """Brought up to now."""
        found = self._run(conn, "budget", scope=scope)
        if not found:
            return None
        capacity, refill, tokens, at, drains, *declared = found[0]
        leases = [_Mine(*row) for row in self._run(conn, "budget_leases", scope=scope)]
        seconds = [TokenLease(lease.pod, lease.tokens, lease.until / 1e6) for lease in leases]
        limit = Limit(capacity, refill)
        tokens = refilled(limit, tokens, at / 1e6, seconds, now / 1e6)
        return _Bucket(limit, tokens, drains, Limit(*declared), leases)

    def declare(self, scope: str, limit: Limit, *, default: bool = False) -> Limit | None:
        check_limit(scope, limit)
        with self._writing() as (conn, now):
            bucket = self._bucket(conn, scope, now)
            if bucket is not None and (default or bucket.declared == limit):
                return None
            self._put(conn, scope, limit, bucket, now)
            if not default:
                self._run(conn, "note_declared", scope=scope, capacity=limit.capacity, refill=limit.refill_per_sec)
        return bucket.limit if bucket is not None and bucket.limit != limit else None

    def set(self, scope: str, limit: Limit) -> None:
        check_limit(scope, limit)
        with self._writing() as (conn, now):
            self._put(conn, scope, limit, self._bucket(conn, scope, now), now)

    def _put(self, conn: SqliteConnection, scope: str, limit: Limit, bucket: _Bucket | None, now: int) -> None:
        """The bucket as it is now, by its limit so far, and then by another."""
        self._run(conn, "mend_leases", scope=scope, now=now)
        if bucket is not None:
            self._run(conn, "pour_budget", scope=scope, tokens=bucket.tokens, now=now)
        self._run(conn, "put_budget", scope=scope, capacity=limit.capacity, refill=limit.refill_per_sec, now=now)

    def lease(self, who: Incarnation, scope: str, ask: Ask, ttl: float = LEASE) -> Grant | None:
        pod = who.pod.id
        with self._writing() as (conn, now):
            number = who.mint()
            self._run(conn, "mend_leases", scope=scope, now=now)
            bucket = self._bucket(conn, scope, now)
            if bucket is None:
                return None
            mine = next((lease for lease in bucket.leases if lease.pod == pod), None)
            if mine is not None and mine.number >= number:
                raise DatabaseError(LATE)
            others = [lease for lease in bucket.leases if lease.pod != pod and lease.until > now]
            fits = mine is not None and mine.until > now and _fits(mine, ask, bucket.drains)
            kept = ask.held if fits else 0
            back = mine.tokens - (ask.spent - mine.spent) - ask.held if mine is not None and fits else 0
            room = bucket.limit.capacity - sum(lease.tokens for lease in others) - kept
            tokens = max(0.0, min(float(room), bucket.tokens + back))
            granted = grant(bucket.limit, tokens, ask, kept, len(others) + 1)
            left = max(0.0, tokens - granted)
            self._run(conn, "pour_budget", scope=scope, tokens=left, now=now)
            self._run(conn, "end_leases", scope=scope, now=now, pod=pod)
            if kept + granted + ask.want == 0:
                self._run(conn, "end_lease", scope=scope, pod=pod)
            else:
                params = {"tokens": kept + granted, "spent": ask.spent, "number": number, "drains": bucket.drains}
                self._run(conn, "put_lease", scope=scope, pod=pod, now=now, until=rows.after(now, ttl), **params)
            return Grant(bucket.limit, kept, granted, left, len(others) + 1)

    def drain(self, scope: str) -> bool:
        with self._writing() as (conn, now):
            return conn.change(self._sql.drain_budget.sql, {"scope": scope, "now": now}) == 1

    def all(self) -> list[Budget]:
        now = self._now()

        def work(conn: SqliteConnection) -> list[Budget]:
            found = []
            for (scope,) in self._run(conn, "budget_scopes"):
                bucket = self._bucket(conn, scope, now)
                if bucket is not None:
                    leased = {lease.pod: lease.tokens for lease in bucket.leases if lease.until > now}
                    found.append(Budget(scope, *bucket.limit, bucket.tokens, leased))
            return found

        return self._reader.read(work)


def _fits(mine: _Mine, ask: Ask, drains: int) -> bool:
    """What the pod says can be true of what it was leased."""
    return mine.drains == drains and mine.spent <= ask.spent and ask.held + ask.spent - mine.spent <= mine.tokens
