"""Wake-ups from SQLite: the file's data version changes with every commit of another connection."""

from __future__ import annotations

import random
import threading
import time

from forge.storage.contract.listener import Listener
from forge.storage.sqlite.database import Handle, SqliteDatabase

__all__ = ["SqliteListener"]

# Seconds between two looks; uneven, so that pods do not look in step. Idle, they take 0.5 % of a core.
SHORTEST_LOOK, LONGEST_LOOK = 0.03, 0.07


class SqliteListener(Listener):
    """Says `*` when anything was committed, by whomever. The first wait says it too: something may have been missed."""

    def __init__(self, db: SqliteDatabase) -> None:
        self._handle = Handle(db)
        self._seen: int | None = None
        self._closed = threading.Event()

    def wait(self, timeout: float) -> set[str]:
        """`{'*'}` as soon as there is something new, or nothing after `timeout` seconds or when closed."""
        end = time.monotonic() + timeout
        while True:
            if self._closed.is_set():
                return set()
            if self._changed():
                return {"*"}
            left = end - time.monotonic()
            if left <= 0:
                return set()
            self._closed.wait(min(left, random.uniform(SHORTEST_LOOK, LONGEST_LOOK)))

    def _changed(self) -> bool:
        if not self._handle.is_open:
            self._seen = None  # versions can be compared on one connection only
        with self._handle.use() as conn:
            version = int(conn.rows("pragma data_version")[0][0])
        changed = version != self._seen
        self._seen = version
        return changed

    def close(self) -> None:
        """Stop listening, and end a wait in another thread."""
        self._closed.set()
        self._handle.close()
