"""A connection to PostgreSQL, and the thread that cuts those whose server has fallen silent.

A server that was stopped, or a network that forwards nothing any more, leaves a connection that is open and never
answers. Statements wait in C, some without any way to be interrupted; but whoever waits for a socket is told when it is
shut down. So one thread of the process looks at the connections that are in use, and shuts down those that have waited
for too long. To whom it happens it looks like a connection that was lost.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
import time
import weakref
from typing import Any, Protocol

import psycopg

__all__ = ["PostgresConnection", "Watched", "shut_down", "watch"]

LOOK_EVERY = 0.25  # seconds, while connections are in use


class PostgresConnection(psycopg.Connection[Any]):
    """One of forge's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prepared: dict[str, bytes] = {}  # names of statements, by that of the query
        self.forgotten = 0  # how often the server proved to have lost some of them
        self.made_at = time.monotonic()
        self.used_at = self.made_at
        self.asked_at = math.inf  # monotonic: since when an answer is waited for
        self.limit = math.inf  # seconds to wait for it
        self.was_cut = False
        self._pid = os.getpid()
        # Another name of the socket: libpq may close its own at any moment, and the number would be another file's.
        self.socket: int | None = os.dup(self.pgconn.socket)

    def ask(self) -> None:
        """A statement is about to be sent."""
        self.asked_at = time.monotonic()

    def rest(self) -> None:
        """Nothing is asked for, until `ask`: whatever takes its time now is not the server."""
        self.asked_at = math.inf

    def close(self) -> None:
        """Close it."""
        number, self.socket = self.socket, None
        super().close()
        if number is not None:
            os.close(number)

    def __del__(self, *_: object) -> None:
        """To leave it open until the program ends is nothing to warn of; in a fork it is the parent's."""
        if getattr(self, "socket", None) is not None and self._pid == os.getpid():
            self.close()


def shut_down(conn: PostgresConnection) -> None:
    """Whoever waits for it is told that it is lost; to close it needs nobody's answer from now on."""
    if conn.socket is not None:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(conn.socket)) as sock:
            sock.shutdown(socket.SHUT_RDWR)


class Tidied(Protocol):
    """Something that holds connections which nobody uses."""

    def tidy(self, now: float) -> float:
        """Close those that have not been used for long. Answers when the next one will be due (monotonic)."""


class Watch:
    """The connections in use of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[PostgresConnection] = set()
        self._holders: weakref.WeakKeyDictionary[Tidied, float] = weakref.WeakKeyDictionary()  # and when to look
        self._awake = False  # the thread will look again by itself
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, conn: PostgresConnection, limit: float) -> None:
        """It is about to be used; no statement on it may take more than `limit` seconds."""
        conn.limit = limit
        conn.ask()
        with self._lock:
            self._busy.add(conn)
            self._stay_awake()

    def end(self, conn: PostgresConnection) -> bool:
        """It is not used any more. False: it was cut."""
        with self._lock:
            self._busy.discard(conn)
        return not conn.was_cut

    def tidy(self, holder: Tidied) -> None:
        """Call its `tidy` when it is time, until it says that there is nothing to do."""
        with self._lock:
            if holder not in self._holders:
                self._holders[holder] = 0.0
                self._stay_awake()

    def _stay_awake(self) -> None:
        if not self._awake:
            self._awake = True
            self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="forge-watch", daemon=True)
            with contextlib.suppress(RuntimeError):  # the interpreter is about to end
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_EVERY)
            now = time.monotonic()
            with self._lock:
                self._cut_silent(now)
                due = [holder for holder, at in self._holders.items() if at <= now]
                for holder in due:
                    del self._holders[holder]
            while due:
                self._tidy(due.pop(), now)
            with self._lock:
                if self._busy:
                    continue
                at = min(self._holders.values(), default=None)
                self._awake = False
                self._wake.clear()
            self._wake.wait(None if at is None else max(0.0, at - now))

    def _tidy(self, holder: Tidied, now: float) -> None:
        at = holder.tidy(now)
        if at < math.inf:
            with self._lock:
                self._holders[holder] = min(at, self._holders.get(holder, at))

    def _cut_silent(self, now: float) -> None:
        """Under the lock: none of these is given to somebody else meanwhile."""
        for conn in self._busy:
            if now - conn.asked_at > conn.limit and not conn.was_cut:
                conn.was_cut = True
                shut_down(conn)


watch = Watch()


class Watched:
    """A block in which a connection is used. If it is cut meanwhile, the error says so."""

    __slots__ = ("_conn", "_limit")

    def __init__(self, conn: PostgresConnection, limit: float) -> None:
        self._conn, self._limit = conn, limit

    def __enter__(self) -> None:
        watch.begin(self._conn, self._limit)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if not watch.end(self._conn) and isinstance(error, psycopg.Error):
            raise psycopg.OperationalError(f"it has not answered for {self._limit:g} s") from error


def _after_fork() -> None:
    """In the child: the thread and the connections are the parent's."""
    watch.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_after_fork)
