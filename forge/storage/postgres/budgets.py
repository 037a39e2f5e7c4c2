"""Budgets on PostgreSQL."""

from __future__ import annotations

from typing import Any

import orjson

from forge.errors import DatabaseError
from forge.storage.contract import Incarnation, Step
from forge.storage.contract.budgets import LEASE, Ask, Budget, BudgetStore, Grant, Limit
from forge.storage.postgres.database import Rows, pipeline
from forge.storage.postgres.facet import PostgresFacet
from forge.storage.shared.buckets import LATE, check_limit

__all__ = ["PostgresBudgetStore"]


class PostgresBudgetStore(PostgresFacet, BudgetStore):
    """See `BudgetStore`. Each verb is one round trip and one transaction, in which nobody waits for this process: one
    that is stopped in the middle holds no lock."""

    def _steps(self, scope: str, *names: str, **params: Any) -> list[Step]:
        return [self._step(name, scope=scope, **params) for name in ("lock_budget", *names)]

    def _run(self, scope: str, *names: str, **params: Any) -> list[Rows]:
        return self._db.run(*self._steps(scope, *names, **params))

    def declare(self, scope: str, limit: Limit, *, default: bool = False) -> Limit | None:
        check_limit(scope, limit)
        params = {"capacity": limit.capacity, "refill": limit.refill_per_sec}
        if default:
            self._run(scope, "declare_default", **params)
            return None
        found = self._run(scope, "mend_leases", "refill_budget", "declare_budget", **params)[0].fetchall()
        before, declared = (Limit(*found[0][:2]), Limit(*found[0][2:])) if found else (limit, limit)
        return before if limit not in (declared, before) else None

    def set(self, scope: str, limit: Limit) -> None:
        check_limit(scope, limit)
        params = {"capacity": limit.capacity, "refill": limit.refill_per_sec}
        self._run(scope, "mend_leases", "refill_budget", "set_budget", **params)

    def lease(self, who: Incarnation, scope: str, ask: Ask, ttl: float = LEASE) -> Grant | None:
        params = {"pod": who.pod.id, "ttl": ttl, **ask._asdict()}
        # A number of its own for each try: the lost one may yet come, and must change nothing then.
        there, _, leased = self._db.attempt(
            lambda conn: pipeline(conn, self._steps(scope, "mend_leases", "lease_tokens", number=who.mint(), **params))
        )
        if not there.fetchall():
            return None
        found = leased.fetchall()
        if not found:
            raise DatabaseError(LATE)
        return Grant(Limit(*found[0][:2]), *found[0][2:])

    def drain(self, scope: str) -> bool:
        return self._run(scope, "drain_budget")[1].rowcount == 1

    def all(self) -> list[Budget]:
        return [Budget(*row)._replace(leased=dict(orjson.loads(row[-1]))) for row in self._rows("budgets")]
