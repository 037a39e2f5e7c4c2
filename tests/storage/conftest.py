"""Pods and databases that most storage tests need."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from forge.storage import Storage
from forge.storage.contract import Incarnation

from .helpers import TABLES

OTHERS = """select pg_terminate_backend(pid) from pg_stat_activity
             where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"""
KEPT = ("migration", "leader", "share")  # terms only grow; shares go with their pods


@pytest.fixture(scope="package")
def _shared_pg(pg_server: str, pg_template: str) -> Iterator[tuple[str, psycopg.Connection]]:
    url = pg_server.replace("/postgres?", "/forge_storage?")
    with psycopg.connect(pg_server, autocommit=True) as conn:
        conn.execute(f"create database forge_storage template {pg_template}".encode())
        with psycopg.connect(url, autocommit=True) as cleaner:
            cleaner.execute("set synchronous_commit = off")
            yield url, cleaner
        conn.execute("drop database forge_storage with (force)")


@pytest.fixture
def pg_url(_shared_pg: tuple[str, psycopg.Connection]) -> Iterator[str]:
    """A migrated PostgreSQL database, emptied after each test: ten times faster than a database for every test, and
    there are hundreds of tests here."""
    url, cleaner = _shared_pg
    yield url
    while cleaner.execute(OTHERS).fetchall():  # a backend goes away a moment after its client
        time.sleep(0.002)
    for table in (table for table in TABLES if table not in KEPT):
        deleted = cleaner.execute(f"delete from forge.{table}".encode()).rowcount
        if deleted > 1000:  # leave no dead rows for the next test to read past
            cleaner.execute(f"vacuum forge.{table}".encode())
    cleaner.execute("update forge.leader set holder = null, until = now()")  # its row stays, and terms only grow


@pytest.fixture
def who(storage: Storage) -> Incarnation:
    """A registered pod."""
    return storage.register("ada", ["letters"], "north", 4711)


@pytest.fixture
def other(storage: Storage) -> Incarnation:
    """Another one."""
    return storage.register("bob", ["letters", "parcels"], "south", 815)


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind in turn with nothing in it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/empty.db"
    found: str = request.getfixturevalue("empty_pg_url")
    return found
