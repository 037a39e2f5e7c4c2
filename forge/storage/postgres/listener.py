"""Wake-ups through LISTEN: the one connection that keeps session state, and so the one that must bypass a pooler."""

from __future__ import annotations

import contextlib
import secrets
import select
import threading

import psycopg

from forge.job import Claim
from forge.storage.contract.listener import Listener
from forge.storage.postgres.database import PostgresConnection, PostgresDatabase
from forge.storage.postgres.rows import pushed_claim
from forge.storage.postgres.watch import shut_down

__all__ = ["PostgresListener"]

_CHANNELS = ("wake", "back", "cancel", "leader", "drain", "schedule")


class PostgresListener(Listener):
    """Reconnects by itself; after each (re)connect everything may have been missed, so it says `*`."""

    def __init__(self, db: PostgresDatabase) -> None:
        self._db = db
        self._conn: PostgresConnection | None = None
        self._asked = False  # it has not answered yet
        self._using = threading.Lock()  # the connection; never for long
        self._pushed: list[Claim] = []

    def wait(self, timeout: float) -> set[str]:
        """Queues that woke up, and what else `Listener.wait` tells of. DatabaseError: it is away."""
        try:
            if self._conn is None:
                self._conn = self._connect()
                return {"*"}
            if timeout:
                poll = select.poll()
                poll.register(self._conn.fileno(), select.POLLIN)
                poll.poll(timeout * 1000)
            return self._heard(self._conn)
        except psycopg.OperationalError as e:
            self.close()
            raise self._db.unreachable(e) from e

    def _connect(self) -> PostgresConnection:
        conn = self._db.connect()
        # Another one for each connection: what was sent to the last one and not heard never will be.
        push = f"{self._db.schema}.push.{secrets.token_hex(8)}"
        try:
            with self._db.watched(conn):
                for channel in (*(f"{self._db.schema}.{name}" for name in _CHANNELS), push):
                    conn.execute(f'listen "{channel}"')
                row = conn.execute("select pg_backend_pid()").fetchone()
        except BaseException:
            conn.close()
            raise
        self._asked = False
        # Through a pooler a notification may go astray: a wake-up costs a poll, a job would cost more.
        self.channel = push if row is not None and row[0] == conn.info.backend_pid else None
        return conn

    def _heard(self, conn: PostgresConnection) -> set[str]:
        """What has come in; through libpq alone, which is twice as fast as psycopg's generator."""
        woken: set[str] = set()
        with self._using:
            conn.pgconn.consume_input()
            while self._asked and not conn.pgconn.is_busy():  # first: this may find notifications behind the answer
                self._asked = conn.pgconn.get_result() is not None
            while note := conn.pgconn.notifies():
                channel, text = note.relname.decode(), note.extra.decode()
                if channel == self.channel:
                    self._pushed.append(pushed_claim(text))
                else:
                    name = channel.rpartition(".")[2]
                    woken.add(text if name == "wake" else f"{name}:{text}")
        return woken

    def probe(self) -> None:
        with self._using:
            if self._conn is None:
                return
            if self._asked:
                shut_down(self._conn)
            else:
                with contextlib.suppress(psycopg.OperationalError):  # whoever reads from it will find out
                    self._conn.pgconn.send_query(b"")
                    self._asked = True

    def pushed(self) -> list[Claim]:
        claims, self._pushed = self._pushed, []
        return claims

    def fileno(self) -> int | None:
        return None if self._conn is None else self._conn.fileno()

    def close(self) -> None:
        """Stop listening."""
        with self._using:
            if self._conn is not None:
                self._conn.close()
            self._conn = self.channel = None
