"""A SQLite file and forge's connections to it: who opens them, who may use them when, and what a fork does to them.

SQLite has one writer at a time. forge waits for its turn here, in small random steps, so that "database is locked"
never reaches a caller while the other processes behave.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar
from urllib.parse import parse_qsl

from forge.config import mask
from forge.errors import ConfigError, DatabaseError, ForgeError, SchemaError, UsageError
from forge.storage.shared.statements import load_queries
from forge.storage.sqlite.drivers import DRIVERS, ERRORS, DriverName, SqliteConnection, code_of

__all__ = ["Handle", "SqliteDatabase", "parse_url"]

T = TypeVar("T")

PATIENCE = 30.0  # seconds to wait for other writers
# Short and uneven: 64 producers in step would meet again and again, and a long sleeper would always come too late.
SHORTEST_NAP, LONGEST_NAP = 0.001, 0.010
# How long a fork waits for a verb that another thread is in the middle of: longer than the verb may wait itself.
FORK_PATIENCE = 60.0

_BUSY, _LOCKED, _READONLY, _FULL, _CANTOPEN, _NOTADB = 5, 6, 8, 13, 14, 26
_SETTINGS = "pragma synchronous = full", "pragma temp_store = memory"

# One file is opened at a time: its creation closes a descriptor, which must not be one of a file in use.
_opening = threading.Lock()


def parse_url(url: str) -> tuple[str, DriverName]:
    """The absolute path and the driver in `sqlite:///relative.db`, `sqlite:////absolute.db`, `…?driver=sqlite3`."""
    rest = url.removeprefix("sqlite:///")
    path, _, query = rest.partition("?")
    if rest == url or not path or path.startswith(":memory:"):
        raise ConfigError(
            f"{mask(url)}: forge needs a file that processes can share; use sqlite:///forge.db or sqlite:////absolute/path.db"
        )
    options = dict(parse_qsl(query, keep_blank_values=True))
    driver = options.pop("driver", "apsw")
    if options:
        raise ConfigError(
            f"{mask(url)}: no option {next(iter(options))!r}; the only one is driver=apsw or driver=sqlite3"
        )
    for known in DRIVERS:
        if driver == known:
            return os.path.abspath(path), known
    raise ConfigError(f"{mask(url)}: no driver {driver!r}; use driver=apsw (the default) or driver=sqlite3")


_ADVICE: dict[DriverName, str] = {
    "apsw": "pass an apsw connection, or use sqlite:///…?driver=sqlite3",
    "sqlite3": "pass a connection of the sqlite3 module, or leave ?driver=sqlite3 out of the URL",
}


class SqliteDatabase:
    """One file: its path and driver, how to open it, and how its errors read."""

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        """`patience` is how many seconds to wait for other writers."""
        self.path, self.driver = parse_url(url)
        self._patience = patience

    def use_driver(self, driver: DriverName) -> None:
        """Open the file with this library from now on; refused while this process has it open with the other."""
        for handle in _all_handles():
            if handle.is_open and handle.path == self.path and handle.opened_by != driver:
                raise UsageError(
                    f"{self.path} is open with {handle.opened_by}, and two SQLite libraries in one process cancel each "
                    f"other's file locks; {_ADVICE[handle.opened_by]}"
                )
        self.driver = driver

    def open(self, *, create: bool = False) -> SqliteConnection:
        """A new connection. Only a migration creates the file, readable by its owner alone from its first moment."""
        if self.path in _inherited:
            raise DatabaseError(
                f"{self.path} was in use when this process was forked, and SQLite cannot be used in both then; "
                "close the storage before the fork, or start the process with exec"
            )
        with _opening:
            if not os.path.exists(self.path):
                if not create:
                    raise SchemaError(f"there is no database {self.path} yet; run: forge db migrate")
                self._create()
            try:
                conn: SqliteConnection = DRIVERS[self.driver](self.path, create=create)
            except ERRORS as e:
                raise self.explain(e) from e
        try:
            if self.patiently(lambda: conn.rows("pragma journal_mode"))[0][0] != "wal" and self._has_tables(conn):
                self.use_log(conn)
            for setting in _SETTINGS:
                conn.rows(setting)
        except BaseException as e:
            conn.close()
            if isinstance(e, ERRORS):
                raise self.explain(e) from e
            raise
        return conn

    def use_log(self, conn: SqliteConnection) -> None:
        """Switch the file to write-ahead logging, for good. A file without forge's tables is left in the mode it has: a
        migration that fails has changed nothing."""
        # SQLite asks no busy handler here, which is one reason to wait outside of it.
        mode = self.patiently(lambda: conn.rows("pragma journal_mode = wal"))[0][0]
        if mode != "wal":
            raise DatabaseError(f"{self.path}: no write-ahead logging is possible there; move it to a local disk")

    def _has_tables(self, conn: SqliteConnection) -> bool:
        return bool(self.patiently(lambda: conn.rows(load_queries("sqlite").schema_exists.sql))[0][0])

    def _create(self) -> None:
        """Make the empty file; SQLite gives -wal and -shm the same mode."""
        try:
            os.close(os.open(os.path.realpath(self.path), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            pass  # another process was faster
        except OSError as e:
            raise DatabaseError(f"cannot create {self.path}: {e.strerror}; choose a path that is writable") from e

    def patiently(self, work: Callable[[], T]) -> T:
        """Do what changes nothing when it meets another's lock, again until it does not."""
        end = time.monotonic() + self._patience
        while True:
            try:
                return work()
            except ERRORS as e:
                if code_of(e) != _BUSY:
                    raise
                if time.monotonic() >= end:
                    raise self.explain(e) from e
            time.sleep(random.uniform(SHORTEST_NAP, LONGEST_NAP))

    def explain(self, e: Exception) -> ForgeError:
        """The error for people."""
        code, text = code_of(e), str(e).partition("\n")[0]
        if "no such table" in text or "no such column" in text or "no such index" in text:
            return SchemaError(f"{self.path}: the schema is missing or too old for this release; run: forge db migrate")
        if code in (_BUSY, _LOCKED):
            return DatabaseError(
                f"{self.path}: another program has kept it locked for {self._patience:.0f} s; "
                f"find it with: fuser {self.path}"
            )
        what_to_do = {
            _READONLY: "; make the file and its folder writable for this user",
            _FULL: "; free some space",
            _CANTOPEN: "; check the path and its permissions",
            _NOTADB: "; choose another path",
        }.get(code, "")
        return DatabaseError(f"{self.path}: {text}{what_to_do}")


class Handle:
    """One connection of forge's, for one thread at a time: opened when first used, anew after a fork."""

    def __init__(self, db: SqliteDatabase) -> None:
        self._db = db
        self.path = db.path
        self.opened_by = db.driver
        self._conn: SqliteConnection | None = None
        self._pid = 0
        self._durable = True  # as it is set now
        self._lock = threading.Lock()
        self._user = 0  # the thread that has the lock
        _handles[id(self)] = weakref.ref(self, _forget(id(self)))

    @property
    def is_open(self) -> bool:
        """Whether a connection is held in this process."""
        return self._conn is not None and self._pid == os.getpid()

    @contextlib.contextmanager
    def use(self, *, create: bool = False) -> Iterator[SqliteConnection]:
        """The connection, this thread's alone; the library's errors come out as forge's."""
        conn = self.take(create)
        try:
            yield conn
        except ERRORS as e:
            raise self._db.explain(e) from e
        finally:
            self.give_back()

    def take(self, create: bool = False) -> SqliteConnection:
        """The connection, this thread's alone until `give_back`."""
        if self._pid != os.getpid() and self._conn is not None:
            self.after_fork_in_child()  # the fork ran no hooks
        self._lock.acquire()
        self._user = threading.get_ident()
        if self._conn is None:
            try:
                self._db.use_driver(self._db.driver)
                self.opened_by = self._db.driver
                self._conn, self._pid = self._db.open(create=create), os.getpid()
                self._durable = True
            except BaseException:
                self.give_back()
                raise
        return self._conn

    def give_back(self) -> None:
        """Let another thread have it."""
        self._user = 0
        self._lock.release()

    def writing(
        self, *, create: bool = False, durable: bool = True, clock: Callable[[], int] = int
    ) -> contextlib.AbstractContextManager[tuple[SqliteConnection, int]]:
        """A write transaction: has the file's write lock from the start, and either all of it happens or nothing. With
        it comes its time, read once the lock is held: so times have the order of the transactions.

        One that is not durable does not wait for the disk: a power failure may undo it, unless a durable one of anybody
        has followed, for the log is synced as a whole.
        """
        return _Writing(self, create, durable, clock)

    def begin(self, conn: SqliteConnection, durable: bool) -> None:
        """Start a transaction that writes."""
        if durable != self._durable:  # cannot be changed inside of one
            conn.rows(f"pragma synchronous = {'full' if durable else 'normal'}")
            self._durable = durable
        try:
            conn.rows("begin immediate")
        except ERRORS as e:
            if code_of(e) != _BUSY:
                raise
            self._db.patiently(lambda: conn.rows("begin immediate"))

    def commit(self, conn: SqliteConnection) -> None:
        """End it. Only before a file has its log can a reader be in the way, and the transaction is whole then."""
        try:
            conn.rows("commit")
        except ERRORS as e:
            if code_of(e) != _BUSY:
                raise
            self._db.patiently(lambda: conn.rows("commit"))

    def use_log(self) -> None:
        """Switch the file to write-ahead logging."""
        with self.use() as conn:
            self._db.use_log(conn)

    def explain(self, e: Exception) -> ForgeError:
        """The error for people."""
        return self._db.explain(e)

    def read(self, work: Callable[[SqliteConnection], T]) -> T:
        """Do several reads of one state."""

        def once() -> T:
            conn.rows("begin")
            try:
                return work(conn)
            finally:
                if conn.in_transaction():
                    conn.rows("rollback")

        with self.use() as conn:
            return self._db.patiently(once)

    def close(self) -> None:
        """Let go of the file; the next use opens it again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._conn is not None and self._pid == os.getpid():
            self._conn.close()
            self._conn = None

    def before_fork(self) -> None:
        """In the parent: close between two verbs, and hold the lock until after the fork."""
        if self._user != threading.get_ident() and self._lock.acquire(timeout=FORK_PATIENCE):
            self._close()
            _held.append(self)

    def after_fork_in_parent(self) -> None:
        """Let threads in again."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Whoever held the lock is no more. Leave alone what could not be closed in time: freed, it would be closed."""
        self._lock = threading.Lock()
        self._user = 0
        if self._conn is not None and self._pid != os.getpid():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._conn))
            self._conn = None
            _inherited.add(self.path)


class _Writing(contextlib.AbstractContextManager[tuple[SqliteConnection, int]]):
    """One write transaction. Not a generator: two of those around each other took 15 µs of a claim and its end."""

    __slots__ = ("_clock", "_conn", "_create", "_durable", "_handle")

    def __init__(self, handle: Handle, create: bool, durable: bool, clock: Callable[[], int]) -> None:
        self._handle, self._create, self._durable, self._clock = handle, create, durable, clock
        self._conn: SqliteConnection

    def __enter__(self) -> tuple[SqliteConnection, int]:
        self._conn = self._handle.take(self._create)
        try:
            self._handle.begin(self._conn, self._durable)
        except BaseException as e:
            self._handle.give_back()
            if isinstance(e, ERRORS):
                raise self._handle.explain(e) from e
            raise
        return self._conn, self._clock()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            try:
                if kind is None:
                    self._handle.commit(self._conn)
            finally:
                if self._conn.in_transaction():  # a full disk, for one, has rolled back already
                    self._conn.rows("rollback")
        except ERRORS as e:
            raise self._handle.explain(e) from e
        finally:
            self._handle.give_back()
        if isinstance(error, ERRORS):
            raise self._handle.explain(error) from error


# What a fork does to SQLite. A connection must not be used in a child, nor even closed there: closing rolls back and
# tidies up in memory that it shares with the parent. To drop it and open another is no better: the library's record of
# the locks on a file is the process's, is copied by the fork, and says that this process holds locks which only its
# parent has. The new connection relies on them, and once the parent has closed, the log is deleted under the child's
# hands: in a test, every job it enqueued after that was lost, acknowledged.
# So all connections are closed before a fork, in the parent, between two verbs, and both sides open anew when they
# need one. A child that could not be given this (its parent was inside a verb for too long, or was forked by C code
# that runs no hooks) refuses to open the file.

_handles: dict[int, weakref.ref[Handle]] = {}
_inherited: set[str] = set()  # paths of files whose locks this process only seems to hold
_forking = threading.Lock()  # one fork at a time
_held: list[Handle] = []  # locked for the fork under way


def _forget(key: int) -> Callable[[weakref.ref[Handle]], None]:
    def gone(ref: weakref.ref[Handle]) -> None:
        if _handles.get(key) is ref:
            del _handles[key]

    return gone


def _all_handles() -> list[Handle]:
    return [handle for ref in list(_handles.values()) if (handle := ref()) is not None]


def _before_fork() -> None:
    _forking.acquire()
    for handle in _all_handles():
        handle.before_fork()


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop().after_fork_in_parent()
    _forking.release()


def _after_fork_in_child() -> None:
    global _forking, _opening
    _forking, _opening = threading.Lock(), threading.Lock()
    _held.clear()
    for handle in _all_handles():
        handle.after_fork_in_child()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
