"""The database of a test: a SQLite file that nobody else knows, with a clock that can be put forward."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta

from forge.app import Forge
from forge.app.lazy_storage import lend
from forge.errors import UsageError
from forge.job import NewJob, Receipt
from forge.storage import Storage, open_storage
from forge.storage.sqlite import SqliteStorage

__all__ = ["Clock", "TemporaryStorage", "advance", "clock_of", "open_for_test", "temporary_database", "url_in"]


class Clock:
    """The time of day, put forward now and then. It never goes back."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self._ahead

    def advance(self, seconds: float) -> None:
        """Put it forward; less than nothing is nothing."""
        self._ahead += max(seconds, 0.0)


class TemporaryStorage(SqliteStorage):
    """SQLite with a clock of its own, and a word to whoever wants to know when jobs have been stored."""

    def __init__(self, url: str) -> None:
        self.clock = Clock()
        self.on_enqueue: Callable[[], object] | None = None
        super().__init__(url, clock=self.clock)

    def enqueue(self, jobs: Iterable[NewJob]) -> list[Receipt]:
        receipts = super().enqueue(jobs)
        if self.on_enqueue is not None:
            self.on_enqueue()
        return receipts


def url_in(folder: object) -> str:
    """The URL of a database in this folder."""
    return f"sqlite:///{folder}/forge-test.db"


def open_for_test(url: str) -> Storage:
    """The storage behind `url`, with all its tables. Only SQLite's clock can be put forward."""
    storage = TemporaryStorage(url) if url.startswith("sqlite:") else open_storage(url)
    try:
        storage.migrate()
    except BaseException:
        storage.close()
        raise
    return storage


@contextlib.contextmanager
def temporary_database(app: Forge, url: str | None = None) -> Iterator[str]:
    """Let the app work on an empty SQLite database, gone afterwards, or on that of `url`, which is migrated and stays.

    The app's own database cannot be opened meanwhile. Answers the URL.
    """
    with contextlib.ExitStack() as stack:
        if url is None:
            url = url_in(stack.enter_context(tempfile.TemporaryDirectory(prefix="forge-test-")))
        storage = stack.enter_context(open_for_test(url))
        stack.enter_context(lend(storage, app._lazy_storage))
        yield url


def advance(app: Forge, by: float | timedelta) -> None:
    """Put the clock of the app's test database forward, by seconds or a timedelta: what is due by then is due now."""
    clock_of(app, "advance").advance(by.total_seconds() if isinstance(by, timedelta) else by)


def clock_of(app: Forge, what: str) -> Clock:
    """The clock of the app's test database; `what` is told to need one if there is none."""
    storage = storage_of(app, what)
    if not isinstance(storage, TemporaryStorage):
        raise UsageError(f"{what} puts the clock forward, and {storage.url} has none of its own: use SQLite")
    return storage.clock


def storage_of(app: Forge, what: str) -> Storage:
    """The app's test database. An app that is on its own database is refused: a test would work on real jobs."""
    if not app._lazy_storage.is_lent:
        raise UsageError(
            f"{what} would work on the app's own database; use the fixture forge_app, or `with temporary_database(app)`"
        )
    return app.storage
