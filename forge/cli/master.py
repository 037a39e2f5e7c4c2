"""The `forge-master` command: its start-up, up to the loop in `forge.cli.runner`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from forge import __version__
from forge.cli import report
from forge.cli.common import Cli, Parser, counted, sqlite_file
from forge.cli.modules import known_tasks
from forge.cli.project import native
from forge.cli.runner import Runner, log
from forge.codec import check_name
from forge.config import Config
from forge.errors import ConfigError, ExitCode

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; the answer is the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return report(lambda: _run(words), words)


def _run(words: list[str]) -> int:
    parser = Parser(prog="forge-master", description="Claims jobs and runs handlers one at a time in this process.")
    parser.add_argument("-c", "--config", metavar="FILE", help="default: the nearest forge.toml")
    parser.add_argument("--database", metavar="URL", help="default: see `forge config show --origin`")
    parser.add_argument("--schema", metavar="NAME", help="PostgreSQL schema of the tables")
    parser.add_argument("--check", action="store_true", help="look whether it could start, and stop there")
    with Cli(parser.parse_args(words)) as cli:
        shown = os.path.relpath(cli.config.path) if cli.config.path else "(none)"
        log(f"forge {__version__} ({native()})  pid {os.getpid()}  config {shown}")
        queues = declared(cli.config)
        file = sqlite_file(cli.config.database)
        made = "created, " if file is not None and not file.exists() else ""
        known = known_tasks(cli.config, flags=cli.flags)
        if not known.kinds:
            raise ConfigError('no tasks to run; name the modules that define them in forge.toml: modules = ["tasks"]')
        storage = cli.storage(create=not cli.args.check)
        log(f"storage {cli.shown_url} ({made}schema {storage.schema_state().current})")
        log(f"{counted(len(known.kinds), 'task')} from {', '.join(known.modules)}: {', '.join(known.kinds)}")
        if not cli.args.check:
            Runner(storage, known.handlers, queues).run()
        return ExitCode.OK


def declared(config: Config) -> Mapping[str, Mapping[str, object]]:
    """The queues to serve, with the settings that a queue new to the database starts with."""
    names = [name.strip() for name in os.environ.get("FORGE_QUEUES", "").split(",")]
    queues = {check_name(name, "FORGE_QUEUES"): config.queues.get(name, {}) for name in names if name} or config.queues
    if not queues:
        raise ConfigError("no queues declared; add [queues.default] to forge.toml, or set FORGE_QUEUES=default,mail")
    return queues
