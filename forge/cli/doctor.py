"""`forge doctor`: everything that must be right before jobs can run, one line each, with what to do."""

from __future__ import annotations

import dataclasses
import os
import platform
import sqlite3
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import click

from forge.cli.command import Command
from forge.cli.common import Cli, counted, draw, line, sqlite_file
from forge.cli.version import native
from forge.config import scrub
from forge.errors import ExitCode, ForgeError
from forge.fastpath import IMPL
from forge.host_limits import limits
from forge.worker.bindings import elsewhere
from forge.worker.modules import known_tasks

__all__ = ["doctor"]

OLDEST_POSTGRES = 140_000  # as server_version_num has it


@dataclass(frozen=True, slots=True)
class Check:
    """What one look found."""

    level: Literal["ok", "warn", "error"]
    about: str
    text: str
    code: int = ExitCode.OK


@click.command(cls=Command)
def doctor(cli: Cli) -> int:
    """Check this host, the settings, the database and the task modules. Changes nothing."""
    found: list[Check] = []
    for examine in EXAMINATIONS:
        failed = {check.about for check in found if check.level == "error"}
        if failed.isdisjoint(NEEDS.get(examine, ())):
            found += _safely(examine, cli)
    if cli.json:
        cli.document([dataclasses.asdict(check) for check in found])
    else:
        words = ((check.level, f"{'':<{7 - len(check.level)}}{check.about:<10}  {check.text}") for check in found)
        draw(*(line(text, word=level) for level, text in words))
    return next((check.code for check in found if check.level == "error"), ExitCode.OK)


def _safely(examine: Examination, cli: Cli) -> list[Check]:
    try:
        return list(examine(cli))
    except ForgeError as e:
        text = scrub(str(e), [cli.config.database] if examine is not _config else [])
        return [Check("error", examine.__name__.strip("_"), text, e.exit_code)]


def _python(_: Cli) -> Iterator[Check]:
    version = platform.python_version()
    if (3, 11) <= sys.version_info < (3, 15):
        yield Check("ok", "python", version)
    else:
        yield Check("warn", "python", f"{version} is untested; forge supports 3.11 to 3.14")


def _extension(_: Cli) -> Iterator[Check]:
    if IMPL == "c":
        yield Check("ok", "extension", native())
    elif os.environ.get("FORGE_IMPL") == "py":
        yield Check("warn", "extension", "pure Python, because FORGE_IMPL=py; unset it for speed")
    else:
        yield Check(
            "warn",
            "extension",
            "pure Python: slower; reinstall where a C compiler is: FORGE_REQUIRE_EXT=1 pip install …",
        )


def _config(cli: Cli) -> Iterator[Check]:
    config = cli.config
    shown = os.path.relpath(config.path) if config.path else "no forge.toml; defaults and environment"
    yield Check("ok", "config", f"{shown}, database from {config.origin['database']}")


def _database(cli: Cli) -> Iterator[Check]:
    if cli.config.database.startswith("sqlite:"):
        yield from _sqlite(cli)
    else:
        yield from _postgres(cli)


def _sqlite(cli: Cli) -> Iterator[Check]:
    import apsw

    file = sqlite_file(cli.config.database)
    own = "driver=sqlite3" in cli.config.database
    version = f"SQLite {sqlite3.sqlite_version if own else apsw.sqlite_lib_version()}"
    if file is None or not file.exists():
        yield Check("warn", "database", f"{cli.shown_url} ({version}) is not there yet; the first enqueue makes it")
        return
    cli.raw_storage().now()
    yield Check("ok", "database", f"{cli.shown_url} ({version})")
    yield Check("ok", "durability", "WAL, synchronous=FULL")
    mode = file.stat().st_mode & 0o777
    if mode & 0o077:
        yield Check("warn", "file mode", f"{file.name} is {mode:o}: others on this host can read jobs; chmod 600 it")


def _postgres(cli: Cli) -> Iterator[Check]:
    import psycopg

    cli.raw_storage().now()  # its own error says what is wrong with the URL or the server
    asked = (
        "select setting from unnest(%s::text[]) with ordinality u(name, n) join pg_settings s using (name) order by n"
    )
    names = ["server_version_num", "server_version", "fsync", "synchronous_commit", "full_page_writes"]
    try:
        with psycopg.connect(cli.config.database, connect_timeout=10) as conn:
            number, version, *durable = (row[0] for row in conn.execute(asked, (names,)))
    except psycopg.Error as e:
        yield Check("warn", "durability", f"the server's settings cannot be read: {str(e).splitlines()[0]}")
        return
    if int(number) < OLDEST_POSTGRES:
        yield Check("error", "database", f"PostgreSQL {version} is too old; forge needs 14", ExitCode.DATABASE)
    else:
        yield Check("ok", "database", f"{cli.shown_url} (PostgreSQL {version.split()[0]})")
    off = [name for name, value in zip(names[2:], durable, strict=True) if value == "off"]
    if off:
        yield Check(
            "warn", "durability", f"{' and '.join(off)} off: a crash of the server can lose acknowledged jobs; turn on"
        )
    else:
        yield Check("ok", "durability", f"fsync on, synchronous_commit {durable[1]}")


def _schema(cli: Cli) -> Iterator[Check]:
    file = sqlite_file(cli.config.database)
    if file is not None and not file.exists():
        return
    storage = cli.raw_storage()
    storage.check_schema()
    state = storage.schema_state()
    yield Check("warn", "schema", state.newer) if state.newer else Check("ok", "schema", f"at {state.current}")


def _modules(cli: Cli) -> Iterator[Check]:
    known = known_tasks(cli.config, flags=cli.flags)
    if not known.modules:
        yield Check("warn", "modules", 'none; name the modules with tasks in forge.toml: modules = ["tasks"]')
    elif not known.kinds:
        yield Check(
            "warn", "modules", f"{', '.join(known.modules)}: no task in there; decorate a function with @app.task"
        )
    else:
        yield Check("ok", "modules", f"{', '.join(known.modules)}: {counted(len(known.kinds), 'task')}")
    for sentence in elsewhere(known, cli.config):
        yield Check("warn", "modules", sentence)


def _limits(cli: Cli) -> Iterator[Check]:
    found = list(limits(cli.config))
    short = [limit for limit in found if limit.has < limit.all]
    for limit in short:
        if limit.has < limit.least:
            yield Check("error", "limits", limit.words, ExitCode.CONFIG)
        else:
            yield Check("warn", "limits", limit.words)
    if not short:
        yield Check("ok", "limits", ", ".join(f"{limit.all:,} of {limit.has:,} {limit.name} needed" for limit in found))


Examination = Callable[[Cli], Iterator[Check]]
EXAMINATIONS: tuple[Examination, ...] = (_python, _extension, _config, _database, _schema, _modules, _limits)
# What must have been found in order first: one cause, one line.
NEEDS: dict[Examination, tuple[str, ...]] = {
    _database: ("config",),
    _schema: ("config", "database"),
    _modules: ("config",),
    _limits: ("config",),
}
