"""What every part of the storage has on PostgreSQL: connections, queries, and the ways to run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from forge.storage.contract.statements import Step
from forge.storage.postgres.database import LONG, PostgresConnection, PostgresDatabase, pipeline
from forge.storage.shared.statements import Queries
from forge.storage.shared.terms import check_held

__all__ = ["PostgresFacet"]

T = TypeVar("T")


class PostgresFacet:
    """Runs named queries. Knows the connections of its storage but not the storage, which would then be freed only when
    the collector comes."""

    def __init__(self, db: PostgresDatabase, queries: Queries) -> None:
        self._db, self._queries = db, queries

    def _step(self, name: str, /, **params: Any) -> Step:
        return Step(getattr(self._queries, name), params)

    def _rows(self, name: str, /, **params: Any) -> list[tuple[Any, ...]]:
        return self._db.run(self._step(name, **params))[0].fetchall()

    def _one(self, name: str, /, **params: Any) -> tuple[Any, ...]:
        return self._rows(name, **params)[0]

    def _do(self, name: str, /, **params: Any) -> int:
        """How many rows that has changed."""
        return self._db.run(self._step(name, **params))[0].rowcount

    def _by_index(self, name: str, /, **params: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement whose plan must not depend on statistics, nor on when it was made."""
        cursor = self._db.run(self._step("plan_by_index", local=True), self._step(name, **params))[1]
        return cursor.fetchall() if cursor.description else []

    def _long(self, name: str, /, **params: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement that may have to read all there is."""
        settings = self._step("take_your_time"), self._step("plan_by_scan")
        return self._db.run(*settings, self._step(name, **params), limit=LONG)[2].fetchall()

    def _led(self, term: int | None, work: Callable[[PostgresConnection], T]) -> T:
        """`work` in one transaction in which the term cannot end; `LostLease` and nothing done if it has. None is no
        term. It must be safe to repeat, as for `PostgresDatabase.attempt`."""

        def once(conn: PostgresConnection) -> T:
            with conn.transaction():
                if term is not None:
                    check_held(term, pipeline(conn, [self._step("hold_term", term=term)])[0].fetchall())
                return work(conn)

        return self._db.attempt(once)

    def _led_rows(self, term: int | None, *steps: Step) -> list[tuple[Any, ...]]:
        """The same for statements; what the last one answered."""

        def work(conn: PostgresConnection) -> list[tuple[Any, ...]]:
            cursor = pipeline(conn, steps)[-1]
            return cursor.fetchall() if cursor.description else []

        return self._led(term, work)
