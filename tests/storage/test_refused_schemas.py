"""Schemas that cannot be made or must not be touched: one line each, and nothing changed."""

from __future__ import annotations

import re

import psycopg
import pytest

from forge.errors import ConfigError, DatabaseError, ExitCode
from forge.storage import open_storage
from tests.cli.conftest import Shell, folder, forge  # noqa: F401 (fixtures)

pytestmark = pytest.mark.impl_free

RESERVED = ["pg_catalog", "pg_toast", "pg_mine", "information_schema"]


@pytest.mark.parametrize("schema", RESERVED)
def test_postgresqls_own_schemas_are_refused(empty_pg_url: str, schema: str) -> None:
    with pytest.raises(ConfigError, match=f"schema {schema} is PostgreSQL's own; choose another"):
        open_storage(empty_pg_url, schema=schema)


@pytest.mark.parametrize("command", [("db", "migrate"), ("db", "status"), ("queues",)])
def test_on_the_command_line_that_is_one_line_and_exit_3(
    forge: Shell,  # noqa: F811
    empty_pg_url: str,
    command: tuple[str, ...],
) -> None:
    said = forge.fails(ExitCode.CONFIG, *command, "--database", empty_pg_url, "--schema", "pg_catalog")
    assert said == "schema pg_catalog is PostgreSQL's own; choose another"


def test_who_may_not_create_the_schema_is_told_what_to_have_run(empty_pg_url: str) -> None:
    with psycopg.connect(empty_pg_url, autocommit=True) as conn:
        conn.execute("drop role if exists forge_guest")
        conn.execute("create role forge_guest login")
    try:
        url = re.sub(r"//[^@/]*@", "//forge_guest@", empty_pg_url)
        words = "permission denied for database .*; have .* run: create schema forge authorization forge_guest$"
        with open_storage(url) as storage, pytest.raises(DatabaseError, match=words):
            storage.migrate()
    finally:
        with psycopg.connect(empty_pg_url, autocommit=True) as conn:
            conn.execute("drop role forge_guest")


def test_a_schema_with_something_else_in_it_is_refused_in_one_line(empty_pg_url: str) -> None:
    with psycopg.connect(empty_pg_url, autocommit=True) as conn:
        conn.execute("create schema forge")
        conn.execute("create table forge.job (theirs int)")
    with open_storage(empty_pg_url) as storage, pytest.raises(DatabaseError, match="changed nothing: relation"):
        storage.migrate()
    with psycopg.connect(empty_pg_url) as conn:
        assert conn.execute("select to_regclass('forge.migration')").fetchone() == (None,)


def test_a_keyword_as_its_name_is_refused_in_one_line(empty_pg_url: str) -> None:
    with open_storage(empty_pg_url, schema="table") as storage, pytest.raises(DatabaseError, match="syntax error"):
        storage.migrate()
