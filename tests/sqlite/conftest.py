"""A SQLite file of the test's own, opened with each library or with the usual one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forge.storage.sqlite import SqliteStorage
from forge.storage.sqlite.drivers import DriverName


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file will be."""
    return tmp_path / "forge.db"


@pytest.fixture(params=["apsw", "sqlite3"])
def driver(request: pytest.FixtureRequest) -> DriverName:
    """Each library in turn."""
    name: DriverName = request.param
    return name


@pytest.fixture
def storage(path: Path, driver: DriverName) -> Iterator[SqliteStorage]:
    """An empty, migrated file, opened with each library in turn."""
    with SqliteStorage(f"sqlite:///{path}?driver={driver}") as opened:
        opened.migrate()
        yield opened


@pytest.fixture
def apsw_storage(path: Path) -> Iterator[SqliteStorage]:
    """The same with the usual library only."""
    with SqliteStorage(f"sqlite:///{path}") as opened:
        opened.migrate()
        yield opened
