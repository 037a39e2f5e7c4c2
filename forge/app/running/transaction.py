"""A transaction in which a handler's own writes and the end of its job commit together, or not at all.

It is on a connection of the handler's own to forge's database, made in the worker when first used.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from forge.errors import DatabaseError
from forge.storage import Storage

__all__ = ["Transaction", "open_transaction"]

KEEP = 5.0  # seconds for which an idle connection is kept
LOOK_EVERY = 1.0  # seconds


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


class _Idle(NamedTuple):
    storage: Storage  # it leads there
    conn: Any
    since: float  # monotonic


class _Spare:
    """One idle connection per process, so that a transaction need not wait for a new one (milliseconds). It is closed
    some seconds after its last use: a server has only so many for all workers."""

    def __init__(self) -> None:
        self._idle: _Idle | None = None
        self._lock = threading.Lock()
        self._closing = False  # a thread will see to it

    def pop(self, storage: Storage) -> Any:
        with self._lock:
            idle, self._idle = self._idle, None
        if idle is not None and idle.storage is storage and _alive(idle.conn):
            return idle.conn
        if idle is not None:
            idle.conn.close()
        return storage.connect()

    def keep(self, storage: Storage, conn: Any) -> None:
        if storage.dialect == "sqlite":  # opening a file takes no time, and it may be deleted meanwhile
            conn.close()
            return
        with self._lock:
            before, self._idle = self._idle, _Idle(storage, conn, time.monotonic())
            closing, self._closing = self._closing, True
        if before is not None:
            before.conn.close()
        if not closing:
            threading.Thread(target=self._close, name="forge-spare", daemon=True).start()

    def _close(self) -> None:
        """When its time has come."""
        while True:
            time.sleep(LOOK_EVERY)
            with self._lock:
                idle = self._idle
                if idle is not None and time.monotonic() - idle.since < KEEP:
                    continue
                self._idle, self._closing = None, False
            if idle is not None:
                idle.conn.close()
            return

    def after_fork(self) -> None:
        """In the child: its goodbye would be said on the parent's connection, and the lock may be held by a lost
        thread."""
        if self._idle is not None:
            _inherited.append(self._idle.conn)
        self._idle, self._lock, self._closing = None, threading.Lock(), False


def _alive(conn: Any) -> bool:
    """A server that has gone meanwhile has closed it, or said something."""
    if conn.closed:
        return False
    poll = select.poll()
    poll.register(conn.fileno(), select.POLLIN)
    return not poll.poll(0)


_inherited: list[Any] = []
_spare = _Spare()
os.register_at_fork(after_in_child=_spare.after_fork)
