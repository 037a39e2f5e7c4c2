"""SQLite behind the storage contract: what it is made of, and its file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from forge.storage.contract.listener import Deaf, Listener
from forge.storage.contract.schema import SchemaState
from forge.storage.contract.statements import Step
from forge.storage.shared.statements import load_queries
from forge.storage.sqlite import schema
from forge.storage.sqlite.budgets import SqliteBudgetStore
from forge.storage.sqlite.claims import SqliteClaims
from forge.storage.sqlite.database import PATIENCE, Handle, SqliteDatabase
from forge.storage.sqlite.drivers import DriverName
from forge.storage.sqlite.enqueue import SqliteEnqueue
from forge.storage.sqlite.leases import SqliteLeaseStore
from forge.storage.sqlite.lines import SqliteLineStore
from forge.storage.sqlite.listener import SqliteListener
from forge.storage.sqlite.metrics import SqliteMetricStore
from forge.storage.sqlite.operating import SqliteOperating
from forge.storage.sqlite.pods import SqlitePods
from forge.storage.sqlite.schedules import SqliteScheduleStore
from forge.storage.sqlite.shares import SqliteShareStore

__all__ = ["SqliteStorage"]


class SqliteStorage(SqliteEnqueue, SqliteClaims, SqlitePods, SqliteOperating):
    """See `Storage`; verbs are in the file of their subject. Two connections, for one thread at a time each: one
    writes, and the other reads meanwhile."""

    dialect = "sqlite"

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] = time.time,
        listen: bool = True,
        timeout: float | None = None,
    ) -> None:
        self.url = url
        self._db = SqliteDatabase(url, PATIENCE if timeout is None else timeout)
        self._listens = listen
        parts = Handle(self._db), Handle(self._db), clock, load_queries("sqlite")
        super().__init__(*parts)
        self.budgets = SqliteBudgetStore(*parts)
        self.leases = SqliteLeaseStore(*parts)
        self.lines = SqliteLineStore(*parts)
        self.metrics = SqliteMetricStore(*parts)
        self.schedules = SqliteScheduleStore(*parts)
        self.shares = SqliteShareStore(*parts)

    def adopt_driver(self, kind: DriverName) -> None:
        """Use the library of a connection that the caller passes along, for there may be only one on a file.

        A UsageError if this process has the file open with the other one already.
        """
        self._db.use_driver(kind)

    # -- the database ------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._writer.close()
        self._reader.close()

    def schema_state(self) -> SchemaState:
        return schema.state(self._db, self._reader)

    def migrate(self) -> list[tuple[int, str]]:
        return schema.migrate(self._writer, self._now())

    def check_schema(self) -> None:
        schema.check(self._db, self._reader)

    def now(self) -> float:
        return self._clock()

    def where(self) -> Step:
        return Step(self._sql.where_am_i, {})

    def elsewhere(self, answer: Sequence[Sequence[Any]]) -> str | None:
        file = next(str(row[2] or "") for row in answer if row[1] == "main")
        if not file:
            return "a database in memory"
        try:
            return None if os.path.samefile(file, self._db.path) else file
        except OSError:  # one of them is not there, or not any more
            return None if os.path.realpath(file) == os.path.realpath(self._db.path) else file

    def connect(self) -> Any:
        self._db.use_driver(self._db.driver)
        conn = self._db.open()
        conn.rows(f"pragma busy_timeout = {round(PATIENCE * 1000)}")
        return conn.raw

    def listen(self) -> Listener:
        return SqliteListener(self._db) if self._listens else Deaf()
