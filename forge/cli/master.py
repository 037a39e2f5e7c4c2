"""The `forge-master` command: its start-up, up to the loop in `forge.master.supervisor`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from forge import __version__
from forge.cli import report
from forge.cli.common import Cli, Parser, counted, sqlite_file
from forge.cli.project import native
from forge.config import Config, QueueConfig
from forge.errors import ExitCode
from forge.master.nursery import Nursery
from forge.master.supervisor import Master, log
from forge.storage import Storage, open_storage
from forge.storage.contract import SETTINGS

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; the answer is the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return report(lambda: _run(words), words)


def _run(words: list[str]) -> int:
    parser = Parser(prog="forge-master", description="Runs workers: claims jobs, hands them out, writes results.")
    parser.add_argument("-c", "--config", metavar="FILE", help="default: the nearest forge.toml")
    parser.add_argument("--database", metavar="URL", help="default: see `forge config show --origin`")
    parser.add_argument("--schema", metavar="NAME", help="PostgreSQL schema of the tables")
    parser.add_argument("--check", action="store_true", help="look whether it could start, and stop there")
    with Cli(parser.parse_args(words)) as cli:
        shown = os.path.relpath(cli.config.path) if cli.config.path else "(none)"
        log(f"forge {__version__} ({native()})  pid {os.getpid()}  config {shown}")
        queues = cli.config.declared_queues()
        _say_what_is_not_run(cli.config)
        # By the environment, so that `Forge()` in a task module of a worker means the database this command means.
        os.environ.update({variable: value for variable, value in cli.flags.items() if value})
        file = sqlite_file(cli.config.database)
        made = "created, " if file is not None and not file.exists() else ""
        nursery = cli.closing(Nursery(str(cli.config.path) if cli.config.path else None))
        nursery.wait_until_ready()
        storage = cli.storage(create=not cli.args.check)
        log(f"storage {cli.shown_url} ({made}schema {storage.schema_state().current})")
        kinds = sorted(nursery.kinds)
        log(f"{counted(len(kinds), 'task')} from {', '.join(cli.config.modules)}: {', '.join(kinds)}")
        if not cli.args.check:
            _prepare(storage, queues)
            work, heart = (cli.closing(_open(cli.config)) for _ in range(2))
            Master(
                work,
                heart,
                {name: queue.max_workers for name, queue in queues.items()},
                nursery,
                shutdown_timeout=cli.config.shutdown_timeout,
                max_crashes=cli.config.max_crashes,
            ).run()
        return ExitCode.OK


def _open(config: Config) -> Storage:
    """A storage of one connection for each of its purposes."""
    return open_storage(
        config.database,
        schema=config.schema,
        pool_size=1,
        listen_url=config.listen_database,
        listen=config.listen,
    )


def _prepare(storage: Storage, queues: Mapping[str, QueueConfig]) -> None:
    """A queue new to the database starts with the settings declared; what operators have set since stays."""
    known = storage.queues()
    for name, queue in queues.items():
        if name not in known:
            storage.set_queue(name, **{key: value for key, value in queue.row().items() if key in SETTINGS})


def _say_what_is_not_run(config: Config) -> None:
    """Sections that are checked but have nobody yet to serve them: better said than found out."""
    for name in ("pools", "cron", "limits"):
        if getattr(config, name):
            log(f"[{name}] is checked but not served by this release")
    for queue, settings in config.queues.items():
        if settings.worker != "process":
            log(f'[queues.{queue}] worker = "{settings.worker}" runs as "process" in this release')
