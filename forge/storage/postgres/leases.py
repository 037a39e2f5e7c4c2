"""The lease on PostgreSQL, and how a leader's write is bound to its term."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from forge.errors import LostLease
from forge.storage.contract import Step
from forge.storage.leases import Answer, Holder, Leader, Leases, over
from forge.storage.postgres.connection import Connection, Database, pipeline
from forge.storage.statements import Queries

__all__ = ["PostgresLeases", "led"]

T = TypeVar("T")


def led(db: Database, queries: Queries, term: int | None, work: Callable[[Connection], T]) -> T:
    """`work` in one transaction in which the term cannot end; `LostLease` and nothing done if it has. None is no term.

    It must be safe to repeat, as for `Database.attempt`.
    """

    def once(conn: Connection) -> T:
        with conn.transaction():
            if term is not None and not pipeline(conn, [Step(queries.hold_term, {"term": term})])[0].fetchall():
                raise LostLease(over(term))
            return work(conn)

    return db.attempt(once)


class PostgresLeases(Leases):
    """See `Leases`."""

    def __init__(self, db: Database, queries: Queries) -> None:
        """`db` is not that of the services: whatever those of a leader wait for, its lease must not."""
        self._db, self._queries = db, queries

    def acquire(self, holder: Holder, ttl: float) -> Answer:
        params = {"key": holder.key, "pod": holder.pod, "host": holder.host, "pid": holder.pid, "ttl": ttl}
        steps = (
            Step(self._queries.wait_for_disk, {}),
            Step(self._queries.wait_a_moment, {}),
            Step(self._queries.acquire_lease, params),
        )
        found = self._db.run(*steps)[-1].fetchall()
        if not found:  # somebody has emptied the table
            self._db.run(Step(self._queries.restore_lease, {}))
            found = self._db.run(*steps)[-1].fetchall()
        term, left = found[0]
        return Answer(term, ttl if term is not None else left)

    def renew(self, term: int, holder: Holder, ttl: float) -> bool:
        params = {"term": term, "key": holder.key, "pod": holder.pod, "ttl": ttl}
        return self._db.run(Step(self._queries.renew_lease, params))[0].rowcount == 1

    def release(self, term: int) -> None:
        self._db.run(Step(self._queries.wait_a_moment, {}), Step(self._queries.release_lease, {"term": term}))

    def leader(self) -> Leader | None:
        rows = self._db.run(Step(self._queries.leader, {}))[0].fetchall()
        return Leader(*rows[0]) if rows else None

    def check(self, term: int) -> None:
        led(self._db, self._queries, term, lambda _: None)
