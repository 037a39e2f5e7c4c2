"""What every part of the storage has on SQLite: a connection that reads, one that writes, a clock, and the queries."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from forge.storage.shared.statements import Queries
from forge.storage.shared.terms import check_held
from forge.storage.sqlite.database import Handle
from forge.storage.sqlite.drivers import SqliteConnection

__all__ = ["SqliteFacet", "Writing"]

Writing = contextlib.AbstractContextManager[tuple[SqliteConnection, int]]  # a write transaction and its time


class SqliteFacet:
    """Knows the handles of its storage but not the storage, which would then be freed only when the collector comes."""

    def __init__(self, reader: Handle, writer: Handle, clock: Callable[[], float], sql: Queries) -> None:
        """`clock` is the database's clock: SQLite has none of its own. Every transaction reads it once."""
        self._reader, self._writer, self._clock, self._sql = reader, writer, clock, sql

    def _now(self) -> int:
        return int(self._clock() * 1e6)

    def _rows(self, name: str, /, **params: Any) -> list[tuple[Any, ...]]:
        return self._reader.read(lambda conn: conn.rows(getattr(self._sql, name).sql, params))

    def _writing(self, *, durable: bool = True) -> Writing:
        """See `Handle.writing`."""
        return self._writer.writing(durable=durable, clock=self._now)

    @contextlib.contextmanager
    def _led(self, term: int | None) -> Iterator[tuple[SqliteConnection, int]]:
        """A write transaction in which the term cannot end; `LostLease` and nothing done if it has. None is no term."""
        with self._writing() as (conn, now):
            if term is not None:
                check_held(term, conn.rows(self._sql.hold_term.sql, {"term": term}))
            yield conn, now
