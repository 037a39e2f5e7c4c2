"""The two SQLite libraries a process may hold, behind one small interface: `apsw` and Python's own `sqlite3`.

Only one of them may touch a database file in a process. POSIX file locks belong to the process: to the kernel the
locks of one library are the other's own, so neither sees them, and closing any descriptor of the file drops them all.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol
from urllib.parse import quote

import apsw

__all__ = ["DRIVERS", "ERRORS", "DriverName", "SqliteConnection", "code_of"]

DriverName = Literal["apsw", "sqlite3"]
Params = Sequence[Any] | Mapping[str, Any]

# What either library raises.
ERRORS: tuple[type[Exception], ...] = (apsw.Error, sqlite3.Error)

_STATEMENTS_CACHED = 200  # more than forge has


class SqliteConnection(Protocol):
    """One connection. It starts no transaction by itself and never waits for a lock."""

    def rows(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        """Run a statement and answer its rows."""

    def change(self, sql: str, params: Params = ()) -> int:
        """Run a statement and answer how many rows it changed."""

    def many(self, sql: str, params: Iterable[Params]) -> int:
        """Run a statement once for each set of parameters and answer how many rows were changed in all."""

    @property
    def raw(self) -> Any:
        """The library's own connection, to be given away."""

    def in_transaction(self) -> bool:
        """Whether BEGIN has run, and neither COMMIT nor ROLLBACK since."""

    def close(self) -> None:
        """Let go of the file."""


class _Apsw:
    def __init__(self, path: str, *, create: bool) -> None:
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
        self._conn = apsw.Connection(path, flags, statementcachesize=_STATEMENTS_CACHED)

    def rows(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        return self._conn.execute(sql, params).fetchall()

    def change(self, sql: str, params: Params = ()) -> int:
        before = self._conn.total_changes()
        self._conn.execute(sql, params).fetchall()
        return self._conn.total_changes() - before

    def many(self, sql: str, params: Iterable[Params]) -> int:
        before = self._conn.total_changes()
        self._conn.executemany(sql, params)
        return self._conn.total_changes() - before

    def in_transaction(self) -> bool:
        return self._conn.in_transaction

    @property
    def raw(self) -> Any:
        """The library's own connection, to be given away."""
        return self._conn

    def close(self) -> None:
        self._conn.close(True)


class _Sqlite3:
    def __init__(self, path: str, *, create: bool) -> None:
        self._conn = sqlite3.connect(
            f"file:{quote(path)}?mode={'rwc' if create else 'rw'}",
            uri=True,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,  # forge's own lock lets one thread in at a time
            cached_statements=_STATEMENTS_CACHED,
        )

    def rows(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        return self._conn.execute(sql, params).fetchall()

    def change(self, sql: str, params: Params = ()) -> int:
        before = self._conn.total_changes
        self._conn.execute(sql, params).fetchall()
        return self._conn.total_changes - before

    def many(self, sql: str, params: Iterable[Params]) -> int:
        before = self._conn.total_changes
        self._conn.executemany(sql, params)
        return self._conn.total_changes - before

    def in_transaction(self) -> bool:
        return self._conn.in_transaction

    @property
    def raw(self) -> Any:
        """The library's own connection, to be given away."""
        return self._conn

    def close(self) -> None:
        self._conn.close()


DRIVERS: Mapping[DriverName, type[_Apsw | _Sqlite3]] = {"apsw": _Apsw, "sqlite3": _Sqlite3}


def code_of(error: Exception) -> int:
    """SQLite's primary result code; 0 for an error that is the library's own."""
    if isinstance(error, apsw.Error):
        return getattr(error, "result", 0) & 0xFF
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
