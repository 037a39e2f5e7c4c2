"""Migrations on PostgreSQL: numbered, additive, and all that are missing are applied in one transaction."""

from __future__ import annotations

import psycopg
from psycopg import errors

from forge.errors import DatabaseError
from forge.storage.contract.schema import SchemaState
from forge.storage.postgres.database import PostgresConnection, PostgresDatabase
from forge.storage.shared.migrations import migrations
from forge.storage.shared.statements import load_queries

__all__ = ["check", "migrate", "state"]

# Any constant: one migration runs at a time per database, whichever schema it is for.
_LOCK = 0x666F726765


def _current(conn: PostgresConnection, schema: str) -> int:
    queries = load_queries("postgres", schema)
    row = conn.execute(queries.schema_exists.sql).fetchone()
    if row is None or not row[0]:
        return 0
    row = conn.execute(queries.schema_version.sql).fetchone()
    return (row and row[0]) or 0


def state(db: PostgresDatabase) -> SchemaState:
    """Which migrations are there and which are missing."""
    known = migrations("postgres", db.schema)

    def look(conn: PostgresConnection) -> SchemaState:
        current = _current(conn, db.schema)
        if current <= known[-1].number:
            return SchemaState.of(known, current)
        row = conn.execute(load_queries("postgres", db.schema).oldest_release.sql).fetchone()
        return SchemaState.of(known, current, row[0] if row else current)

    return db.attempt(look)


def migrate(db: PostgresDatabase) -> list[tuple[int, str]]:
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


def _apply(conn: PostgresConnection, schema: str) -> list[tuple[int, str]]:
    conn.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
    current = _current(conn, schema)
    missing = [each for each in migrations("postgres", schema) if each.number > current]
    for each in missing:
        conn.execute(each.sql)
    for each in missing:  # behind them all: the table of migrations has grown, too
        conn.execute(
            f"insert into {schema}.migration (number, title, oldest) values (%s, %s, %s)",
            (each.number, each.title, each.oldest),
        )
    return [(each.number, each.title) for each in missing]


def check(db: PostgresDatabase) -> None:
    """Refuse to work on a schema that this release cannot work on."""
    state(db).check(f"the database has no schema {db.schema}")
