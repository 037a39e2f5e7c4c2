"""Ending a claim on a connection of the caller's, in the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from forge.errors import UsageError
from forge.job import Done, Ending
from forge.storage.contract.values import MAX_CRASHES
from forge.storage.shared.statements import Queries
from forge.storage.sqlite.drivers import Params
from forge.storage.sqlite.endings import finalize

__all__ = ["Borrowed", "complete"]


def complete(conn: Any, sql: Queries, ending: Ending, now: int) -> bool:
    """See `Storage.complete_in`."""
    if type(ending.outcome) is not Done:
        raise UsageError(f"only a job that is Done can end in a transaction of the caller's, not {ending.outcome!r}")
    guest = Borrowed(conn)
    if not guest.in_transaction():
        raise UsageError("the connection has no transaction open; begin one with: begin immediate")
    return not finalize(guest, sql, [ending], now, MAX_CRASHES, [])


class Borrowed:
    """A connection of the caller's, of either library. Its own row factories and traces are not asked."""

    def __init__(self, conn: Any) -> None:
        self._conn = conn
        self._cursor = conn.cursor()
        if isinstance(conn, sqlite3.Connection):
            self._cursor.row_factory = None
        else:
            self._cursor.row_trace = lambda cursor, row: row

    def rows(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._cursor.execute(sql, params).fetchall()
        return found

    def change(self, sql: str, params: Params = ()) -> int:
        before = self._changes()
        self.rows(sql, params)
        return self._changes() - before

    def many(self, sql: str, params: Iterable[Params]) -> int:
        before = self._changes()
        self._cursor.executemany(sql, params)
        return self._changes() - before

    def _changes(self) -> int:
        found = self._conn.total_changes
        return int(found if isinstance(found, int) else found())

    def in_transaction(self) -> bool:
        return bool(self._conn.in_transaction)

    @property
    def raw(self) -> Any:
        return self._conn

    def close(self) -> None:
        """It is not ours to close."""
