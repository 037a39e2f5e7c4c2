"""Migrations on SQLite: numbered, additive, and all that are missing are applied in one transaction."""

from __future__ import annotations

import os
from collections.abc import Iterator

from forge.errors import SchemaError
from forge.storage.contract.schema import SchemaState
from forge.storage.shared.migrations import migrations
from forge.storage.shared.statements import load_queries
from forge.storage.sqlite.database import Handle, SqliteDatabase
from forge.storage.sqlite.drivers import SqliteConnection

__all__ = ["check", "migrate", "state"]


def state(db: SqliteDatabase, handle: Handle) -> SchemaState:
    """Which migrations are there and which are missing. A file that does not exist has none, and is not made."""
    known = migrations("sqlite")

    def look(conn: SqliteConnection) -> SchemaState:
        current = _current(conn)
        if current <= known[-1].number:
            return SchemaState.of(known, current)
        return SchemaState.of(known, current, int(conn.rows(load_queries("sqlite").oldest_release.sql)[0][0]))

    return handle.read(look) if os.path.exists(db.path) else SchemaState.of(known, 0)


def migrate(handle: Handle, now: int) -> list[tuple[int, str]]:
    """Apply what is missing, all of it or nothing. Callers take turns by SQLite's write lock, and each looks again once
    it is its turn. The file is switched to write-ahead logging behind that: a failure changes nothing in it."""
    queries = load_queries("sqlite")
    with handle.writing(create=True) as (conn, _):
        current = _current(conn)
        if current == 0 and conn.rows(queries.unprefixed_tables.sql)[0][0]:
            raise SchemaError(f"{handle.path} has the tables of a forge before 0.1; make a new file")
        missing = [each for each in migrations("sqlite") if each.number > current]
        for each in missing:
            for statement in _statements(each.sql):
                conn.rows(statement)
        for each in missing:  # behind them all: the table of migrations has grown, too
            said = {"number": each.number, "title": each.title, "oldest": each.oldest, "now": now}
            conn.rows(queries.record_migration.sql, said)
    handle.use_log()
    return [(each.number, each.title) for each in missing]


def check(db: SqliteDatabase, handle: Handle) -> None:
    """Refuse to work on a schema that this release cannot work on."""
    state(db, handle).check(f"{db.path} has no forge tables")


def _current(conn: SqliteConnection) -> int:
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
