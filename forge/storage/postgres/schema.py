"""Migrations on PostgreSQL: numbered, additive, and all that are missing are applied in one transaction."""

from __future__ import annotations

import psycopg
from psycopg import errors

from forge.errors import DatabaseError, SchemaError
from forge.storage.contract import SchemaState
from forge.storage.postgres.connection import Connection, Database
from forge.storage.statements import load_queries, migrations

__all__ = ["check", "migrate", "state"]

# Any constant: one migration runs at a time per database, whichever schema it is for.
_LOCK = 0x666F726765


def _current(conn: Connection, schema: str) -> int:
    queries = load_queries("postgres", schema)
    row = conn.execute(queries.schema_exists.sql).fetchone()
    if row is None or not row[0]:
        return 0
    row = conn.execute(queries.schema_version.sql).fetchone()
    return (row and row[0]) or 0


def state(db: Database) -> SchemaState:
    """Which migrations are there and which are missing."""
    known = migrations("postgres", db.schema)
    current = db.attempt(lambda conn: _current(conn, db.schema))
    return SchemaState(current, known[-1][0], tuple((n, title) for n, title, _ in known if n > current))


def migrate(db: Database) -> list[tuple[int, str]]:
    """Apply what is missing, all of it or nothing. Callers queue up on an advisory lock that ends with the
    transaction."""
    with db.connect() as conn:
        try:
            with conn.transaction():
                return _apply(conn, db.schema)
        except psycopg.Error as e:
            reason = str(e).strip().partition("\n")[0]
            fix = ""
            if isinstance(e, errors.InsufficientPrivilege):
                fix = f"; have the database's owner run: create schema {db.schema} authorization {conn.info.user}"
            raise DatabaseError(f"the migration failed and has changed nothing: {reason}{fix}") from e


def _apply(conn: Connection, schema: str) -> list[tuple[int, str]]:
    conn.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
    current = _current(conn, schema)
    applied = []
    for number, title, sql in migrations("postgres", schema):
        if number > current:
            conn.execute(sql)
            conn.execute(f"insert into {schema}.migration (number, title) values (%s, %s)", (number, title))
            applied.append((number, title))
    return applied


def check(db: Database) -> None:
    """Refuse to work on a schema this release does not know."""
    found = state(db)
    if found.current == 0:
        raise SchemaError(f"the database has no schema {db.schema} yet; run: forge db migrate")
    if found.current < found.latest:
        raise SchemaError(f"the schema is at {found.current}, this release needs {found.latest}; run: forge db migrate")
    if found.current > found.latest:
        raise SchemaError(
            f"the schema is at {found.current}, this release knows {found.latest}; upgrade forge-jobs on this host"
        )
