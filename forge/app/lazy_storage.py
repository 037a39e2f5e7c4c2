"""When an app's database is opened: at the first use, once per process, never at import and never across a fork."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

from forge.config import Config, load, mask
from forge.errors import ForgeError
from forge.storage import Storage, open_storage

__all__ = ["LazyStorage", "lend", "read_settings"]


class LazyStorage:
    """The storage of one app, opened when first asked for."""

    lent_to_all: ClassVar[Storage | None] = None  # what an app made now works on: see `lend`
    keep: ClassVar[float] = 600.0  # seconds for which connections to a server are kept that nobody uses

    def __init__(self, database: str | None, schema: str | None) -> None:
        self._database = database
        self._schema = schema
        self._lock = threading.RLock()
        self._config: Config | None = None
        self._storage: Storage | None = None
        self._ready: Storage | None = None  # the same, once its schema is known to fit
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()  # connections of the caller's that were found to be right
        self._lent = LazyStorage.lent_to_all  # a storage to work on instead of the configured one
        _all.add(self)

    @classmethod
    def keep_for(cls, seconds: float) -> None:
        """From here on, in this process, an unused connection to a server is kept for so long."""
        cls.keep = seconds

    @property
    def config(self) -> Config:
        """The settings in force, read once."""
        if self._config is None:
            self._config = self.read_config()
        return self._config

    def read_config(self, folder: Path | None = None) -> Config:
        """The settings that it has, or would take now, if this were called in that folder: until it is used they may
        still change."""
        return self._config or load(database=self._database, schema=self._schema, start=folder)

    def read_settings(self, folder: Path) -> None:
        """Take them as they are in that folder, unless it has already."""
        if self._config is None:
            self._config = self.read_config(folder)

    @property
    def is_open(self) -> bool:
        """Whether the storage has been opened, and its schema found to fit."""
        return self._ready is not None

    @property
    def dialect(self) -> str:
        """Which kind of database it is or will be."""
        if self._lent is not None:
            return self._lent.dialect
        return "sqlite" if self.config.database.startswith("sqlite:") else "postgres"

    @property
    def shown(self) -> str:
        """The database's URL as people may see it."""
        return mask(self.config.database if self._lent is None else self._lent.url)

    @property
    def is_lent(self) -> bool:
        """Whether it is another storage than the configured one: see `lend`."""
        return self._lent is not None

    def open(self) -> Storage:
        """The storage. A SQLite file that is empty or missing is made: a newcomer needs no step for it."""
        ready = self._ready
        if ready is None:
            with self._lock:
                ready = self._ready = self._ready or self._made_ready()
        return ready

    def adopt(self, sqlite_driver: str) -> None:
        """Use this library on a SQLite file, because the caller does: two drop each other's locks."""
        cast(Any, self.made()).adopt_driver(sqlite_driver)

    def knows(self, conn: Any) -> bool:
        """Whether this connection of the caller's is known to be on the storage's database."""
        try:
            return conn in self._known
        except TypeError:
            return False  # the library's connections cannot be kept track of: sqlite3's, which are quickly asked

    def remember(self, conn: Any) -> None:
        """It is."""
        with contextlib.suppress(TypeError):
            self._known.add(conn)

    def close(self) -> None:
        """Give back the connections; a later use opens anew."""
        with self._lock:
            storage, self._storage, self._ready = self._storage, None, None
            self._known = weakref.WeakSet()
        if storage is not None:
            storage.close()

    def made(self) -> Storage:
        """The storage as an object, not yet connected."""
        with self._lock:
            if self._storage is None:
                self._storage = self._lent or self._configured()
            return self._storage

    def _configured(self) -> Storage:
        given = self.config
        return open_storage(given.database, schema=given.schema, patience=given.database_patience, keep=self.keep)

    def _made_ready(self) -> Storage:
        storage = self.made()
        try:
            if storage.dialect == "sqlite" and storage.schema_state().current == 0:
                storage.migrate()
            storage.check_schema()
        except BaseException:
            self.close()
            raise
        return storage

    def after_fork(self) -> None:
        """In the child: what was opened belongs to the parent. It is kept, because even its finalizer would say
        goodbye on the parent's connections or drop the parent's locks; the lock may be held by a lost thread."""
        if self._storage is not None:
            _inherited.append(self._storage)
        self._lock, self._storage, self._ready = threading.RLock(), None, None

    def point_to(self, target: _Target) -> _Target:
        """Work on another storage from the next use on; answers what it was before."""
        with self._lock:
            self.close()
            before = self._lent, self._config
            self._lent, self._config = target
        return before


_Target = tuple[Storage | None, Config | None]  # None: the configured one; not read yet
_all: weakref.WeakSet[LazyStorage] = weakref.WeakSet()
_inherited: list[Storage] = []


@contextlib.contextmanager
def lend(storage: Storage, to: LazyStorage | None = None) -> Iterator[None]:
    """Let an app work on `storage`; by default every app of the process, also one that is made meanwhile.

    Until the end of the block none of them can open its configured database, and what it had open is closed: it opens
    it again when it is used afterwards. The storage stays the lender's to close.
    """
    before_all = LazyStorage.lent_to_all
    if to is None:
        LazyStorage.lent_to_all = storage
    before = {lazy: lazy.point_to((storage, None)) for lazy in ([to] if to else list(_all))}
    try:
        yield
    finally:
        LazyStorage.lent_to_all = before_all
        for lazy in before if to else list(_all):
            lazy.point_to(before.get(lazy, (before_all, None)))


def read_settings(folder: Path) -> None:
    """Have every app that there is know its settings now, as they are in that folder: a handler that changes the
    directory or the environment afterwards does not send jobs elsewhere."""
    for lazy in list(_all):
        with contextlib.suppress(ForgeError):  # said when it is used, if ever
            lazy.read_settings(folder)


def _after_fork() -> None:
    for lazy in list(_all):
        lazy.after_fork()


os.register_at_fork(after_in_child=_after_fork)
