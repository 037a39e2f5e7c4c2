"""The database that a bench runs on: the same questions asked of PostgreSQL and SQLite, in plain SQL.

What is counted here is counted by statements of its own and not by forge.
"""

from __future__ import annotations

import abc
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import apsw
import psycopg

from bench.common import postgres
from bench.raw import Raw
from bench.raw_sqlite import RawSqlite
from forge.job import Done, Ending, NewJob
from forge.storage import Storage, open_storage
from forge.storage.contract import LowWater

LSN = "pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
# Transactions that wrote something. Commits as pg_stat_database counts them are told up to a second late, and those
# that only read cost no disk.
XIDS = "pg_snapshot_xmax(pg_current_snapshot())::text::bigint"


class Opponent(Protocol):
    """The same work by hand."""

    def fill(self, ids: Sequence[UUID]) -> None: ...
    def drain(self, batch: int, until: int | None = None) -> int: ...
    def close(self) -> None: ...


class Ground(abc.ABC):
    """A database with forge's tables, and a connection that looks at them."""

    backend: str
    url: str
    storage: Storage
    prefix: str  # of forge's tables
    server: str | None = None  # PostgreSQL's version

    def fill(self, jobs: Iterable[NewJob]) -> None:
        """A backlog, in bulk."""
        for chunk in _chunks(jobs, 50_000):
            self.storage.enqueue(chunk)

    @abc.abstractmethod
    def hold(self) -> None:
        """Claim nothing for now. A cool-down, for of a paused queue nobody has workers."""

    @abc.abstractmethod
    def go(self) -> None:
        """End that, and wake up who sleeps."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Equal ground for every turn: empty tables, no vacuum left to do, no checkpoint due."""

    @abc.abstractmethod
    def value(self, sql: str) -> Any:
        """The one value that a query answers."""

    def anything_left(self) -> bool:
        """Whether a job has not ended."""
        return bool(self.value(f"select exists (select 1 from {self.prefix}job)"))

    def live(self) -> int:
        """Jobs that have not ended."""
        return int(self.value(f"select count(*) from {self.prefix}job"))

    def done(self) -> int:
        """Jobs in history that ended well."""
        return int(self.value(f"select count(*) from {self.prefix}job_history where status = 'done'"))

    def is_done(self, id: UUID) -> bool:
        """Whether this one did."""
        return bool(self.value(f"select exists (select 1 from {self.prefix}job_history where id = {self.quoted(id)})"))

    def exists(self, id: UUID) -> bool:
        """Whether it was ever stored."""
        live = f"select exists (select 1 from {self.prefix}job where id = {self.quoted(id)})"
        return self.is_done(id) or bool(self.value(live))

    @abc.abstractmethod
    def quoted(self, id: UUID) -> str:
        """An id in SQL."""

    def usage(self) -> tuple[int, int]:
        """(bytes of log, transactions that wrote) so far; SQLite does not tell."""
        return (0, 0)

    @abc.abstractmethod
    def snapshot_held(self) -> AbstractContextManager[None]:
        """A transaction of somebody's that keeps the database from cleaning up."""

    @abc.abstractmethod
    def raw(self) -> Opponent:
        """Hand-written code on the same tables."""

    def close(self) -> None:
        """Every connection."""
        self.storage.close()


class PostgresGround(Ground):
    """On a server."""

    backend = "postgres"
    prefix = "forge."

    def __init__(self, url: str) -> None:
        self.url = url
        self.conn = psycopg.connect(url, autocommit=True)
        self.storage = open_storage(url)
        self.storage.migrate()
        self.conn.execute("set search_path = forge")
        self.server = str(self.value("show server_version"))

    def hold(self) -> None:
        self.storage.set_queue("default")
        self.conn.execute("update queue set throttled_until = now() + interval '1 day' where name = 'default'")

    def go(self) -> None:
        self.conn.execute("update queue set throttled_until = null where name = 'default'")
        self.conn.execute("select pg_notify('forge.wake', 'default')")

    def reset(self) -> None:
        self.conn.execute("truncate job, job_history, job_key")
        self.conn.execute("checkpoint")

    def value(self, sql: str) -> Any:
        row = self.conn.execute(sql.encode()).fetchone()
        assert row is not None
        return row[0]

    def quoted(self, id: UUID) -> str:
        return f"'{id}'"

    def usage(self) -> tuple[int, int]:
        row = self.conn.execute(f"select {LSN}, {XIDS}".encode()).fetchone()
        assert row is not None
        return int(row[0]), int(row[1])

    @contextmanager
    def snapshot_held(self) -> Iterator[None]:
        with psycopg.connect(self.url) as conn:
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            conn.execute("select count(*) from forge.queue")
            yield
            conn.rollback()

    def raw(self) -> Raw:
        return Raw(self.url)

    def close(self) -> None:
        self.conn.close()
        super().close()


class SqliteGround(Ground):
    """On a file."""

    backend = "sqlite"
    prefix = "forge_"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self.storage = open_storage(self.url)
        self.storage.migrate()
        self._conn = apsw.Connection(str(path))
        self._conn.set_busy_timeout(30_000)
        self._raw = RawSqlite(str(path))

    def hold(self) -> None:
        self.storage.set_queue("default")
        self._conn.execute("update forge_queue set throttled_until = 4000000000000000 where name = 'default'")

    def go(self) -> None:  # whoever listens sees that the file has changed
        self._conn.execute("update forge_queue set throttled_until = null where name = 'default'")

    def reset(self) -> None:
        self._raw.clear()

    def value(self, sql: str) -> Any:
        return next(iter(self._conn.execute(sql)))[0]

    def quoted(self, id: UUID) -> str:
        return f"x'{id.hex}'"

    @contextmanager
    def snapshot_held(self) -> Iterator[None]:
        conn = apsw.Connection(str(self.path))
        conn.execute("begin")
        conn.execute("select count(*) from forge_queue").fetchall()
        yield
        conn.execute("rollback")
        conn.close()

    def raw(self) -> RawSqlite:
        return RawSqlite(str(self.path))

    def close(self) -> None:
        self._conn.close()
        self._raw.close()
        super().close()


def drain(storage: Storage, batch: int) -> int:
    """The loop that a dispatcher is: claim, (run), finalize."""
    who = storage.register("bench", ["default"], "localhost", 1)
    water, done, total = LowWater(), Done(), 0
    while claims := storage.claim(who, "default", batch, water):
        stale = storage.finalize([Ending(claim, done) for claim in claims])
        assert not stale
        total += len(claims)
    storage.deregister(who)
    return total


@contextmanager
def ground(backend: str, folder: Path | None = None) -> Iterator[Ground]:
    """A database of the bench's own. In a folder that is given it stays, and is gone on with."""
    if backend == "postgres":
        with postgres(folder and folder / "pg") as url:
            yield from _closing(PostgresGround(url))
    elif folder is not None:
        yield from _closing(SqliteGround(folder / "forge.db"))
    else:
        with tempfile.TemporaryDirectory(prefix="forge-bench-") as made:
            yield from _closing(SqliteGround(Path(made) / "forge.db"))


def _closing(made: Ground) -> Iterator[Ground]:
    try:
        yield made
    finally:
        made.close()


def _chunks(jobs: Iterable[NewJob], size: int) -> Iterator[list[NewJob]]:
    more = iter(jobs)
    while chunk := list(islice(more, size)):
        yield chunk
