"""A bounded number of connections, shared by threads.

Whoever finds none free and may have one more makes it in its own thread, so that it learns at once what is wrong. Who
has to wait is served in turn: who gives back a connection and asks again does not come first.
"""

from __future__ import annotations

import collections
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Final

import psycopg

from forge.storage.postgres.watch import PostgresConnection, shut_down, watch

__all__ = ["ConnectionPool", "PoolBusyError"]

LIFETIME = 3600.0  # seconds after which a connection is replaced: what a backend has cached it never gives back


class PoolBusyError(psycopg.OperationalError):
    """Every connection was in use, for longer than one waits."""


class _Waiter:
    """Somebody who waits."""

    def __init__(self) -> None:
        self.came = threading.Event()
        self.conn: PostgresConnection | None = None  # None, once it came: it may make one


class ConnectionPool:
    """Those of one process, on one database."""

    def __init__(self, make: Callable[[], PostgresConnection], size: int, wait: float, keep: float | None) -> None:
        """Up to `size`; one waits up to `wait` seconds for one. Those not used for `keep` seconds are closed."""
        self._make, self._size, self._wait = make, size, wait
        self._keep: Final = math.inf if keep is None else keep
        self._lock = threading.Lock()
        self._idle: list[PostgresConnection] = []  # the one used last is the last
        self._waiting: collections.deque[_Waiter] = collections.deque()
        self.size = 0  # open, or about to be
        self._closed = False
        self.pid = os.getpid()

    def take(self) -> PostgresConnection:
        """A connection, which is to be given back."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            turn = _Waiter() if self.size >= self._size else None
            if turn is None:
                self.size += 1
            else:
                self._waiting.append(turn)
        conn = self._await(turn) if turn is not None else None
        if conn is not None:
            return conn
        try:
            return self._make()
        except BaseException:
            self._pass_on()
            raise

    def _await(self, turn: _Waiter) -> PostgresConnection | None:
        try:
            came = turn.came.wait(self._wait)
        except BaseException:  # Ctrl-C
            if self._leave(turn):
                self._pass_on() if turn.conn is None else self.give_back(turn.conn, fine=True)
            raise
        if not came and not self._leave(turn):
            raise PoolBusyError(f"all {self._size} connections have been in use for {self._wait:g} s")
        return turn.conn

    def _leave(self, turn: _Waiter) -> bool:
        """Wait no longer. True: its turn has come all the same."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return False
        return True

    def give_back(self, conn: PostgresConnection, *, fine: bool) -> None:
        """`fine`: it can be used again."""
        conn.used_at = now = time.monotonic()
        with self._lock:
            keep = fine and not self._closed and now - conn.made_at < LIFETIME
            if keep and self._waiting:
                turn = self._waiting.popleft()
                turn.conn = conn
                turn.came.set()
            elif keep:
                self._idle.append(conn)
        if not keep:
            conn.close()
            self._pass_on()
        elif self._keep < math.inf:
            watch.tidy(self)

    def _pass_on(self) -> None:
        """There may be one more."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().came.set()
            else:
                self.size -= 1

    def drop_idle(self) -> None:
        """Close those that nobody uses: what befell one of them has befallen all, perhaps."""
        self._close_idle(math.inf, rudely=True)

    def tidy(self, now: float) -> float:
        """See `Tidied`."""
        self._close_idle(now - self._keep)
        with self._lock:
            return self._idle[0].used_at + self._keep if self._idle else math.inf

    def close(self) -> None:
        """Close all: those in use when they are given back."""
        self._closed = True
        self._close_idle(math.inf)

    def _close_idle(self, before: float, *, rudely: bool = False) -> None:
        with self._lock:
            old = [conn for conn in self._idle if conn.used_at <= before]
            self._idle = [conn for conn in self._idle if conn.used_at > before]
            self.size -= len(old)
        for conn in old:
            if rudely:
                shut_down(conn)
            conn.close()
