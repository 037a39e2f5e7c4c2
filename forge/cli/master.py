"""The `forge-master` command: its start-up, up to the loop in `forge.master.loop`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import click

from forge import __version__, early, logs
from forge import config as settings
from forge.cli import report
from forge.cli.command import BareCommand, run_words
from forge.cli.common import Cli, counted, sqlite_file
from forge.cli.reloading import Watcher, prepare_to_reload
from forge.cli.starting import check_programs, overruled, programs, take_pid_file, take_sqlite_file
from forge.cli.version import native
from forge.cluster.services import TIMEOUT
from forge.config import Config
from forge.descendants import adopt_orphans
from forge.errors import ExitCode
from forge.host_limits import check_room
from forge.master.loop import Master
from forge.master.pod.log import log
from forge.master.pod.presence import prepare
from forge.master.pod.systemd import Systemd
from forge.master.workers.zygote_process import ZygoteProcess
from forge.master.workers.zygotes import new_zygote
from forge.storage import Storage, open_storage

__all__ = ["main"]

# Seconds for which a verb of the master's is tried again before the log tells of an outage, which is then waited out.
PATIENCE = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; the answer is the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        early.hide_arguments("forge-master")
    with early.caught():
        return report(lambda: _run_or_leave(words), words)


def _run_or_leave(words: list[str]) -> int:
    try:
        return run_words(master, "forge-master", words)
    except early.Leaving:
        log("stopped before it had started")
        return ExitCode.OK


@click.command(cls=BareCommand)
@click.option("--pid-file", type=click.Path(path_type=Path), metavar="FILE", help="written, and locked while this runs")
@click.option("--check", is_flag=True, help="look whether it could start, and stop there")
@click.option("--reload", is_flag=True, help="for development: reload when a module changes")
def master(cli: Cli, pid_file: Path | None, check: bool, reload: bool) -> int:
    """Runs workers: claims jobs, hands them out, writes results."""
    systemd = cli.closing(Systemd())
    if reload:
        prepare_to_reload()
    logs.setup(cli.config.logging, "master", cli.config.redact)
    shown = os.path.relpath(cli.config.path) if cli.config.path else "(none)"
    log(f"forge {__version__} ({native()})  pid {os.getpid()}  config {shown}")
    cli.config.declared_queues()
    for line in check_room(cli.config):
        log(line, level=logging.WARNING)
    if not check:
        take_pid_file(cli, pid_file)
        take_sqlite_file(cli)
    _say_what_is_not_run(cli.config)
    # By the environment, so that `Forge()` in a task module of a worker means the database this command means.
    # Other programs do not need to know it.
    hidden = {"FORGE_DATABASE_URL": os.environ.get("FORGE_DATABASE_URL")}
    os.environ.update({variable: value for variable, value in cli.flags.items() if value})
    file = sqlite_file(cli.config.database)
    made = "created, " if file is not None and not file.exists() else ""
    adopt_orphans()  # of a zygote that is killed
    if check:
        _reach(cli, made, check)  # before the functions of a worker, which may need it
    zygote = cli.closing(new_zygote(cli.config, "stop" if check else ""))
    zygote.wait_until_ready()
    for warning in zygote.warnings(strict=cli.config.fork_safety == "strict"):
        log(warning, level=logging.WARNING)
    if not check:
        _reach(cli, made, check)
    kinds = sorted(kind for kind, about in zygote.kinds.items() if not about.get("builtin"))
    if cli.config.modules:
        log(f"{counted(len(kinds), 'task')} from {', '.join(cli.config.modules)}: {', '.join(kinds)}")
    check_programs(cli.config)
    for line in programs(cli.config):
        log(line)
    if check:
        cli.print("ok: forge-master can start")
        return ExitCode.OK
    if reload:
        cli.closing(Watcher(cli.config, log))
    return _serve(cli, zygote, systemd, hidden)


def _reach(cli: Cli, made: str, check: bool) -> None:
    """The storage, and what to say of it."""
    if made and check:
        log(f"storage {cli.shown_url} (made at the first start)")
    else:
        schema = cli.storage(create=not check).schema_state()
        log(f"storage {cli.shown_url} ({made}schema {schema.current})")


def _serve(cli: Cli, zygote: ZygoteProcess, systemd: Systemd, hidden: Mapping[str, str | None]) -> int:
    """The master's life. Its storages hold five connections to PostgreSQL at most, one of which listens."""
    config = cli.config
    cli.storage().close()
    work, heart = cli.closing(_open(config, "work")), cli.closing(_open(config, "heart"))
    cluster = cli.closing(_open(config, "services", timeout=TIMEOUT))
    prepare(work, config.declared_queues())
    for line in overruled(config, work.queues()):
        log(line)
    path = Path(cli.file) if cli.file else config.path
    return Master(
        work,
        heart,
        cluster,
        config,
        zygote,
        read_config=lambda: settings.load(path, cli.database, schema=cli.schema),
        systemd=systemd,
        hidden=hidden,
    ).run()


def _open(config: Config, role: Literal["work", "heart", "services"], timeout: float | None = None) -> Storage:
    return open_storage(
        config.database,
        schema=config.schema,
        listen_url=config.listen_database,
        listen=config.listen,
        timeout=timeout,
        patience=PATIENCE,
        role=role,
    )


def _say_what_is_not_run(config: Config) -> None:
    """Sections that are checked but have nobody yet to serve them: better said than found out."""
    for name in ("web", "faktory"):
        if getattr(config, name):
            log(f"[{name}] is checked but not served by this release", level=logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
