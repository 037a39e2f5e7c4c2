"""Migrations on PostgreSQL: numbered, additive, each in one transaction with the row that records it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors

from forge.errors import DatabaseError, SchemaError
from forge.storage.contract import SchemaState
from forge.storage.postgres.connection import Connection, Database
from forge.storage.statements import load_queries, migrations

__all__ = ["check", "migrate", "state"]

# Any constant: one migration runs at a time per database, whichever schema it is for.
_LOCK = 0x666F726765


@contextmanager
def _connected(db: Database) -> Iterator[Connection]:
    """A connection; what PostgreSQL refuses there is one line for people."""
    with db.connect() as conn:
        try:
            yield conn
        except errors.InsufficientPrivilege as e:
            said = str(e).strip().splitlines()[0]
            fix = f"create schema {db.schema} authorization {conn.info.user}"
            raise DatabaseError(f"PostgreSQL refused: {said}; have the database's owner run: {fix}") from None
        except psycopg.Error as e:
            raise db.explain(e) from None


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
    with _connected(db) as conn:
        current = _current(conn, db.schema)
    return SchemaState(current, known[-1][0], tuple((n, title) for n, title, _ in known if n > current))


def migrate(db: Database) -> list[tuple[int, str]]:
    """Apply what is missing. Callers queue up on an advisory lock that ends with the transaction."""
    applied = []
    for number, title, sql in migrations("postgres", db.schema):
        with _connected(db) as conn, conn.transaction():
            conn.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
            if _current(conn, db.schema) >= number:
                continue
            conn.execute(sql)
            conn.execute(
                f"insert into {db.schema}.migration (number, title) values (%s, %s)",
                (number, title),
            )
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
