"""`forge db`: migrating, looking, and printing for people who migrate themselves."""

from __future__ import annotations

from pathlib import Path

import apsw
import psycopg
import pytest

from forge.errors import ExitCode
from forge.storage import open_storage
from forge.storage.shared.migrations import migrations
from tests.cli.conftest import Shell

pytestmark = pytest.mark.impl_free


def test_migrate_says_what_it_applied_and_then_that_there_is_nothing_to_do(forge: Shell, folder: Path) -> None:
    known = migrations("sqlite")
    applied = "".join(f"applied {each.number:04} {each.title}\n" for each in known)
    assert forge.ok("db", "migrate") == f"{applied}schema is at {len(known)}\n"
    assert forge.ok("db", "migrate") == f"schema is at {len(known)}, nothing to do\n"
    assert forge("db", "migrate", "-o", "json").json == {"applied": [], "schema": len(known)}
    assert (folder / "forge.db").exists()


def test_status_of_a_missing_database_creates_nothing(forge: Shell, folder: Path) -> None:
    ran = forge("db", "status")
    latest = len(migrations("sqlite"))
    assert ran.code == ExitCode.SCHEMA
    assert ran.out.startswith(
        f"database  sqlite:///forge.db\nschema    not there yet, this release needs {latest}\npending   0001 jobs\n"
    )
    assert ran.out.endswith("next:  forge db migrate\n")
    assert forge("db", "status", "-o", "json").json["current"] == 0
    assert list(folder.iterdir()) == []


def test_status_of_a_migrated_database_is_fine(forge: Shell, url: str) -> None:
    ran = forge("db", "status", "--database", url, "-o", "json")
    assert ran.code == 0
    assert ran.json["current"] == ran.json["latest"]
    assert ran.json["pending"] == []


def test_status_of_an_empty_postgres_says_what_is_missing_and_changes_nothing(forge: Shell, empty_pg_url: str) -> None:
    for _ in range(2):
        ran = forge("db", "status", "--database", empty_pg_url)
        assert ran.code == ExitCode.SCHEMA
        assert "pending   0001 jobs" in ran.out


def test_the_printed_sql_makes_a_sqlite_database_that_forge_accepts(forge: Shell, folder: Path) -> None:
    script = forge.ok("db", "sql", "--dialect", "sqlite")
    conn = apsw.Connection(str(folder / "own.db"))
    for _ in conn.execute(script):
        pass
    conn.close()
    with open_storage(f"sqlite:///{folder}/own.db") as storage:
        storage.check_schema()
        assert storage.migrate() == []


@pytest.mark.parametrize("schema", ["forge", "jobs_2"])
def test_the_printed_sql_makes_a_postgres_schema_that_forge_accepts(
    forge: Shell, empty_pg_url: str, schema: str
) -> None:
    script = forge.ok("db", "sql", "--dialect", "postgres", "--schema", schema)
    with psycopg.connect(empty_pg_url, autocommit=True) as conn:
        conn.execute(script)
    with open_storage(empty_pg_url, schema=schema) as storage:
        storage.check_schema()
        assert storage.migrate() == []


def test_the_printed_sql_is_of_the_configured_database_and_can_leave_out_what_is_there(
    forge: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "create schema" not in forge.ok("db", "sql")
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@nowhere/db")
    assert "create schema if not exists forge" in forge.ok("db", "sql")
    assert forge.ok("db", "sql", "--after", len(migrations("postgres"))) == "begin;\n\ncommit;\n"
    assert forge.fails(ExitCode.USAGE, "db", "sql", "--after=-1").startswith("--after takes")


def test_a_schema_name_that_is_no_name_is_refused(forge: Shell) -> None:
    said = forge.fails(ExitCode.CONFIG, "db", "sql", "--dialect", "postgres", "--schema", 'x"; drop table y')
    assert "is not a name of lower-case letters" in said


def test_another_schema_is_taken_from_flag_or_variable(
    forge: Shell, empty_pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "schema is at" in forge.ok("db", "migrate", "--database", empty_pg_url, "--schema", "mine")
    monkeypatch.setenv("FORGE_SCHEMA", "mine")
    assert "nothing to do" in forge.ok("db", "migrate", "--database", empty_pg_url)
    assert forge.ok("jobs", "--database", empty_pg_url) == "no jobs\n"
