"""A transaction in which a handler's own writes and the end of its job commit together, or not at all.

It is on a connection of the handler's own to forge's database, made in the worker when first used.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from forge.errors import DatabaseError
from forge.storage import Storage

__all__ = ["Transaction", "open_transaction"]


class Transaction:
    """What `ctx.transaction()` gives: the connection, and the result that the job will have."""

    __slots__ = ("conn", "result")

    def __init__(self, conn: Any) -> None:
        self.conn = conn  # of psycopg, or of the driver of the SQLite file; in a transaction: do not commit it yourself
        self.result: Any = None  # what the job's result will be, if its task keeps results

    def execute(self, query: Any, *params: Any) -> Any:
        """The connection's own: `tx.execute("insert …", […])`."""
        return self.conn.execute(query, *params)


@contextlib.contextmanager
def open_transaction(storage: Storage, end: Callable[[Transaction], bool]) -> Iterator[Transaction]:
    """At the end of the block `end` writes how the job ended, in the same transaction; False, or anything raised,
    rolls all of it back."""
    conn = _spare.pop(storage)
    try:
        if storage.dialect == "sqlite":
            conn.execute("begin immediate")
        transaction = Transaction(conn)
        yield transaction
        if not end(transaction):
            raise DatabaseError("the job had been taken away from here (its claim is stale): nothing was written")
        conn.execute("commit") if storage.dialect == "sqlite" else conn.commit()
    except BaseException:
        conn.close()  # which rolls back
        raise
    _spare.keep(storage, conn)


class _Spare:
    """One idle connection per process, so that a transaction need not wait for a new one (milliseconds)."""

    def __init__(self) -> None:
        self._idle: list[tuple[int, Storage, Any]] = []  # of which process, to where

    def pop(self, storage: Storage) -> Any:
        with contextlib.suppress(IndexError):  # another thread may be as quick
            pid, where, conn = self._idle.pop()
            if pid != os.getpid():
                _inherited.append(conn)  # its goodbye would be said on the parent's connection
            elif where is storage and _alive(conn):
                return conn
            else:
                conn.close()
        return storage.connect()

    def keep(self, storage: Storage, conn: Any) -> None:
        if self._idle or storage.dialect == "sqlite":  # opening a file takes no time, and it may be deleted meanwhile
            conn.close()
        else:
            self._idle.append((os.getpid(), storage, conn))


def _alive(conn: Any) -> bool:
    """The server may have gone meanwhile."""
    try:
        conn.execute("select 1")
        conn.rollback()
    except Exception:  # noqa: BLE001 (whatever it is, another connection is to be made)
        return False
    return True


_inherited: list[Any] = []
_spare = _Spare()
