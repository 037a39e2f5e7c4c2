"""Wake-ups through LISTEN: the one connection that keeps session state, and so the one that must bypass a pooler."""

from __future__ import annotations

import psycopg

from forge.storage.contract import Listener
from forge.storage.postgres.connection import Connection, Database

__all__ = ["PostgresListener"]


class PostgresListener(Listener):
    """Reconnects by itself; after each (re)connect everything may have been missed, so it says `*`."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._conn: Connection | None = None

    def wait(self, timeout: float) -> set[str]:
        """Queues that woke up, `cancel:<pod>`, `leader:`, `drain:<budget>`, or `*`. DatabaseError: it is away."""
        if self._conn is None:
            conn = self._db.connect()
            for channel in ("wake", "cancel", "leader", "drain"):
                conn.execute(f'listen "{self._db.schema}.{channel}"')
            self._conn = conn
            return {"*"}
        woken: set[str] = set()
        try:
            # stop_after=1 ends the wait at the first arrival; what came with it is delivered too.
            for notify in self._conn.notifies(timeout=timeout, stop_after=1):
                channel = notify.channel.rpartition(".")[2]
                woken.add(notify.payload if channel == "wake" else f"{channel}:{notify.payload}")
        except psycopg.OperationalError as e:
            self.close()
            raise self._db.unreachable(e) from e
        return woken

    def close(self) -> None:
        """Stop listening."""
        if self._conn is not None:
            self._conn.close()
        self._conn = None
