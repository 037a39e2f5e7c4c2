"""`forge db`: make the tables, look at them, or print them for people who run migrations themselves."""

from __future__ import annotations

import argparse

from forge.cli.common import Cli, sqlite_file
from forge.errors import ExitCode, UsageError
from forge.storage.contract.schema import SchemaState
from forge.storage.shared.migrations import migrations
from forge.storage.shared.statements import check_schema_name

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
        state = SchemaState.of(migrations("sqlite"), 0)
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
    return ExitCode.OK if state.newer or state.current == state.latest else ExitCode.SCHEMA


def _show_status(cli: Cli, state: SchemaState) -> None:
    cli.print(f"database  {cli.shown_url}")
    found = f"at {state.current}" if state.current else "not there yet"
    cli.print(f"schema    {found}, this release needs {state.latest}")
    for number, title in state.pending:
        cli.print(f"pending   {number:04} {title}")
    if state.pending:
        cli.print("next:  forge db migrate")
    elif state.current > state.latest:
        may = "which runs on it; upgrade" if state.newer else f"and one that knows {state.oldest} is needed; upgrade"
        cli.print(f"next:  it is newer than this release, {may} forge-jobs on this host")


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
    missing = [each for each in migrations(dialect, schema) if each.number > after]
    into = f"insert into {name} (number, title, oldest, applied_at)"
    rows = [f"{into} values ({each.number}, '{each.title}', {each.oldest}, {now});" for each in missing]
    steps = [f"-- {each.number:04} {each.title}\n{each.sql.strip()}" for each in missing]
    return "\n\n".join(["begin;", *steps, *(["\n".join(rows)] * bool(rows)), "commit;"])


def add_options(sub: argparse.ArgumentParser) -> None:
    """Of `forge db sql`."""
    sub.add_argument("--dialect", choices=("postgres", "sqlite"), help="default: that of the configured database")
    sub.add_argument("--after", type=int, default=0, metavar="N", help="only migrations after this number")
