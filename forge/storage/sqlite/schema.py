"""Migrations on SQLite: numbered, additive, and all that are missing are applied in one transaction."""

from __future__ import annotations

import os
from collections.abc import Iterator

from forge.errors import SchemaError
from forge.storage.contract import SchemaState
from forge.storage.sqlite.database import Database, Handle
from forge.storage.sqlite.drivers import Connection
from forge.storage.statements import load_queries, migrations

__all__ = ["check", "migrate", "state"]


def state(db: Database, handle: Handle) -> SchemaState:
    """Which migrations are there and which are missing. A file that does not exist has none, and is not made."""
    current = handle.read(_current) if os.path.exists(db.path) else 0
    known = migrations("sqlite")
    return SchemaState(current, known[-1][0], tuple((n, title) for n, title, _ in known if n > current))


def migrate(handle: Handle, now: int) -> list[tuple[int, str]]:
    """Apply what is missing, all of it or nothing. Callers take turns by SQLite's write lock, and each looks again once
    it is its turn. The file is switched to write-ahead logging behind that: a failure changes nothing in it."""
    queries = load_queries("sqlite")
    applied = []
    with handle.writing(create=True) as (conn, _):
        current = _current(conn)
        if current == 0 and conn.rows(queries.unprefixed_tables.sql)[0][0]:
            raise SchemaError(f"{handle.path} has the tables of a forge before 0.1; make a new file")
        for number, title, sql in migrations("sqlite"):
            if number > current:
                for statement in _statements(sql):
                    conn.rows(statement)
                conn.rows(queries.record_migration.sql, {"number": number, "title": title, "now": now})
                applied.append((number, title))
    handle.use_log()
    return applied


def check(db: Database, handle: Handle) -> None:
    """Refuse to work on a schema this release does not know."""
    found = state(db, handle)
    if found.current == 0:
        raise SchemaError(f"{db.path} has no forge tables yet; run: forge db migrate")
    if found.current < found.latest:
        raise SchemaError(
            f"{db.path} has schema {found.current}, this release needs {found.latest}; run: forge db migrate"
        )
    if found.current > found.latest:
        raise SchemaError(f"this release knows schema {found.latest}, the database has {found.current}: upgrade forge")


def _current(conn: Connection) -> int:
    queries = load_queries("sqlite")
    if not conn.rows(queries.schema_exists.sql)[0][0]:
        return 0
    return int(conn.rows(queries.schema_version.sql)[0][0])


def _statements(sql: str) -> Iterator[str]:
    """One at a time: the sqlite3 module runs a script of several only after a COMMIT of its own."""
    lines: list[str] = []
    for line in sql.splitlines():
        lines.append(line)
        if line.endswith(";"):
            yield "\n".join(lines)
            lines.clear()
