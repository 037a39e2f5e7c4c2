"""Databases for tests: every test has its own, empty and migrated, on SQLite and on PostgreSQL.

PostgreSQL comes from a wheel and is started once per run; nothing of the machine's is used.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from bench.common import start_postgres
from forge.storage import Storage, open_storage

_numbers = itertools.count(1)

# Whose tests wait for processes and clocks, some for seconds. Begun first, none of them is what all others have ended
# long before.
LONG = ("cluster", "master", "test_bench.py", "test_bench_peers.py", "test_docs.py", "cli")


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what runs in its background with Ctrl-C ignored, and every program started from here inherits that.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        part = item.path.relative_to(Path(__file__).parent).parts[0]
        return LONG.index(part) if part in LONG else len(LONG)

    items.sort(key=place)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why a test was run once more: else nobody would learn it."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"first run of {report.nodeid}")
        terminalreporter.line(report.longreprtext)


@pytest.fixture(scope="session")
def pg_server() -> Iterator[str]:
    """URI of a PostgreSQL of our own, on a Unix socket. It does not wait for the disk: no test has a loss of power, and
    a server that is killed loses nothing of what it has handed to the system."""
    # A short path: a Unix socket's name has room for about 100 bytes.
    folder = Path(tempfile.mkdtemp(prefix="forge-pg-"))
    server = start_postgres(folder)
    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as conn:
            conn.execute("alter system set fsync = off")
            conn.execute("select pg_reload_conf()")
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def pg_template(pg_server: str) -> str:
    """Name of a migrated database that each test copies: 5x faster than migrating anew."""
    with psycopg.connect(pg_server, autocommit=True) as conn:
        conn.execute("create database forge_template")
    with open_storage(pg_server.replace("/postgres?", "/forge_template?")) as storage:
        storage.migrate()
    return "forge_template"


def new_database(pg_server: str, template: str) -> Iterator[str]:
    """URL of a database of one's own, gone afterwards."""
    name = f"forge_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(pg_server, autocommit=True) as conn:
        conn.execute(f"create database {name} template {template}")
    yield pg_server.replace("/postgres?", f"/{name}?")
    with psycopg.connect(pg_server, autocommit=True) as conn:
        conn.execute(f"drop database {name} with (force)")


@pytest.fixture
def pg_url(pg_server: str, pg_template: str) -> Iterator[str]:
    """A migrated PostgreSQL database of the test's own."""
    yield from new_database(pg_server, pg_template)


@pytest.fixture
def empty_pg_url(pg_server: str) -> Iterator[str]:
    """The same, with nothing in it."""
    yield from new_database(pg_server, "template1")


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file that each test copies: 20x faster than migrating anew."""
    path = tmp_path_factory.mktemp("template") / "forge.db"
    with open_storage(f"sqlite:///{path}") as storage:
        storage.migrate()
    return path


@pytest.fixture
def sqlite_url(tmp_path: Path, sqlite_template: Path) -> str:
    """A migrated SQLite database of the test's own."""
    shutil.copy(sqlite_template, tmp_path / "forge.db")
    return f"sqlite:///{tmp_path}/forge.db"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A migrated database of each kind in turn: a test that takes this runs on both."""
    found: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "pg_url")
    return found


@pytest.fixture
def storage(url: str) -> Iterator[Storage]:
    """The storage behind `url`."""
    with open_storage(url) as opened:
        yield opened


@pytest.fixture
def root_logger_as_it_was() -> Iterator[None]:
    """What a test sets up for logging goes with it."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
        handler.close()
