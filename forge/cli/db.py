"""`forge db`: make the tables, look at them, or print them for people who run migrations themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from forge.cli.command import WHOLE, Group, OneOf
from forge.cli.common import Cli, sqlite_file
from forge.errors import ExitCode, UsageError
from forge.storage.contract.schema import SchemaState
from forge.storage.shared.migrations import migrations
from forge.storage.shared.statements import check_schema_name

__all__ = ["db", "sql_script"]


@click.group(cls=Group)
def db() -> None:
    """The database's tables."""


@db.command()
def migrate(cli: Cli) -> None:
    """Apply what is missing and say what that was."""
    storage = cli.raw_storage()
    applied = storage.migrate()
    state = storage.schema_state()
    lines = [f"applied {number:04} {title}" for number, title in applied]
    lines.append(f"schema is at {state.current}" + ("" if applied else ", nothing to do"))
    cli.answer({"applied": _as_json(applied), "schema": state.current}, "\n".join(lines))
    storage.check_schema()  # too new is an error even though there was nothing to apply


@db.command()
def status(cli: Cli) -> int:
    """What is there and what is missing. Changes nothing; ends with 6 unless this release can work on it."""
    file = sqlite_file(cli.config.database)
    if file is not None and not file.exists():
        state = SchemaState.of(migrations("sqlite"), 0)
    else:
        state = cli.raw_storage().schema_state()
    document = {"current": state.current, "latest": state.latest, "pending": _as_json(state.pending)}
    cli.answer({"database": cli.shown_url, **document}, "\n".join(_status(cli.shown_url, state)))
    return ExitCode.OK if state.newer or state.current == state.latest else ExitCode.SCHEMA


def _as_json(steps: Iterable[tuple[int, str]]) -> list[dict[str, object]]:
    return [{"number": number, "title": title} for number, title in steps]


def _status(url: str, state: SchemaState) -> Iterator[str]:
    yield f"database  {url}"
    found = f"at {state.current}" if state.current else "not there yet"
    yield f"schema    {found}, this release needs {state.latest}"
    yield from (f"pending   {number:04} {title}" for number, title in state.pending)
    if state.pending:
        yield "next:  forge db migrate"
    elif state.current > state.latest:
        may = "which runs on it; upgrade" if state.newer else f"and one that knows {state.oldest} is needed; upgrade"
        yield f"next:  it is newer than this release, {may} forge-jobs on this host"


@db.command()
@click.option("--dialect", type=OneOf(("postgres", "sqlite")), help="default: that of the configured database")
@click.option("--after", type=WHOLE, default=0, metavar="N", help="only migrations after this number")
def sql(cli: Cli, dialect: str | None, after: int) -> None:
    """All migrations as one script."""
    dialect = dialect or ("sqlite" if cli.config.database.startswith("sqlite:") else "postgres")
    if after < 0:
        raise UsageError("--after takes the number of the last migration that is there, 0 or more")
    cli.print(sql_script(dialect, check_schema_name(cli.config.schema), after))


def sql_script(dialect: str, schema: str, after: int = 0) -> str:
    """The migrations behind number `after`, with the rows by which forge knows that they were applied."""
    name = f"{schema}.migration" if dialect == "postgres" else "forge_migration"
    now = "now()" if dialect == "postgres" else "strftime('%s', 'now') * 1000000"
    missing = [each for each in migrations(dialect, schema) if each.number > after]
    into = f"insert into {name} (number, title, oldest, applied_at)"
    rows = [f"{into} values ({each.number}, '{each.title}', {each.oldest}, {now});" for each in missing]
    steps = [f"-- {each.number:04} {each.title}\n{each.sql.strip()}" for each in missing]
    return "\n\n".join(["begin;", *steps, *(["\n".join(rows)] * bool(rows)), "commit;"])
