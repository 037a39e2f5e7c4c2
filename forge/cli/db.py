"""`forge db`: make the tables, look at them, or print them for people who run migrations themselves."""

from __future__ import annotations

import argparse

from forge.cli.common import Cli, sqlite_file
from forge.errors import ExitCode, UsageError
from forge.storage.contract import SchemaState
from forge.storage.statements import check_schema_name, migrations

__all__ = ["migrate", "print_sql", "sql_script", "status"]


def migrate(cli: Cli) -> int:
    """Apply what is missing and say what that was."""
    storage = cli.raw_storage()
    applied = storage.migrate()
    state = storage.schema_state()
    if cli.json:
        cli.document({"applied": [{"number": n, "title": title} for n, title in applied], "schema": state.current})
        return ExitCode.OK
    for number, title in applied:
        cli.print(f"applied {number:04} {title}")
    cli.print(f"schema is at {state.current}" + ("" if applied else ", nothing to do"))
    storage.check_schema()  # too new is an error even though there was nothing to apply
    return ExitCode.OK


def status(cli: Cli) -> int:
    """What is there and what is missing. Changes nothing; ends with 6 unless this release can work on it."""
    file = sqlite_file(cli.config.database)
    if file is not None and not file.exists():
        missing = [(number, title) for number, title, _ in migrations("sqlite")]
        state = SchemaState(0, missing[-1][0], tuple(missing))
    else:
        state = cli.raw_storage().schema_state()
    if cli.json:
        cli.document(
            {
                "database": cli.shown_url,
                "current": state.current,
                "latest": state.latest,
                "pending": [{"number": n, "title": title} for n, title in state.pending],
            }
        )
    else:
        _show_status(cli, state)
    return ExitCode.OK if state.current == state.latest else ExitCode.SCHEMA


def _show_status(cli: Cli, state: SchemaState) -> None:
    cli.print(f"database  {cli.shown_url}")
    found = f"at {state.current}" if state.current else "not there yet"
    cli.print(f"schema    {found}, this release needs {state.latest}")
    for number, title in state.pending:
        cli.print(f"pending   {number:04} {title}")
    if state.pending:
        cli.print("next:  forge db migrate")
    elif state.current > state.latest:
        cli.print("next:  upgrade forge-jobs on this host")


def print_sql(cli: Cli) -> int:
    """All migrations as one script."""
    dialect = cli.args.dialect or ("sqlite" if cli.config.database.startswith("sqlite:") else "postgres")
    if cli.args.after < 0:
        raise UsageError("--after takes the number of the last migration that is there, 0 or more")
    cli.print(sql_script(dialect, check_schema_name(cli.config.schema), cli.args.after))
    return ExitCode.OK


def sql_script(dialect: str, schema: str, after: int = 0) -> str:
    """The migrations behind number `after`, with the rows by which forge knows that they were applied."""
    name = f"{schema}.migration" if dialect == "postgres" else "forge_migration"
    now = "now()" if dialect == "postgres" else "strftime('%s', 'now') * 1000000"
    parts = ["begin;"]
    for number, title, sql in migrations(dialect, schema):
        if number > after:
            quoted = title.replace("'", "''")
            parts.append(f"-- {number:04} {title}\n{sql.strip()}")
            parts.append(f"insert into {name} (number, title, applied_at) values ({number}, '{quoted}', {now});")
    return "\n\n".join([*parts, "commit;"])


def add_options(sub: argparse.ArgumentParser) -> None:
    """Of `forge db sql`."""
    sub.add_argument("--dialect", choices=("postgres", "sqlite"), help="default: that of the configured database")
    sub.add_argument("--after", type=int, default=0, metavar="N", help="only migrations after this number")
