"""What forge-master takes and checks before it starts anything."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from forge.cli.common import Cli, sqlite_file
from forge.config import Config
from forge.config.model import CommandConfig, PoolConfig
from forge.errors import ConfigError
from forge.job import QueueSettings
from forge.master.pod.pid_file import PidFile

__all__ = ["check_programs", "overruled", "programs", "take_pid_file", "take_sqlite_file"]


def take_pid_file(cli: Cli, path: Path | None) -> None:
    """The file that the flag or the settings name, held until the command ends."""
    if (path := path or cli.config.pid_file) is not None:
        cli.closing(PidFile(path))


def take_sqlite_file(cli: Cli) -> None:
    """A SQLite file is one master's: a lock beside it is held until the command ends. It goes with its
    process however that ends, so one that was killed is no obstacle."""
    file = sqlite_file(cli.config.database)
    if file is not None and file.parent.is_dir():  # else the storage says what is wrong
        real = Path(os.path.realpath(file))
        advice = "a SQLite file has room for one: stop that one, or use PostgreSQL"
        cli.closing(PidFile(real.with_name(f"{real.name}-master"), advice, 0o600))


def check_programs(config: Config) -> None:
    """`ConfigError` for the first program of a pool or command that is not there."""
    for name, program in _programs(config):
        folder = config.folder / (program.cwd or "")
        if not folder.is_dir():
            raise ConfigError(f"{name}: there is no folder {folder}; {config.origin[f'{name}.cwd']} names it")
        # As a child would find it: a name with a slash from its folder, another one by its own PATH.
        word = program.argv[0]
        wanted = str(folder / word) if "/" in word else word
        if shutil.which(wanted, path=program.env.get("PATH", os.environ.get("PATH"))) is None:
            raise ConfigError(f"{name}: there is no program {word}; {config.origin[f'{name}.argv']} names it")


def programs(config: Config) -> Iterator[str]:
    """What other programs run jobs, a line each."""
    for name, pool in config.pools.items():
        children = f"{pool.size} {'child' if pool.size == 1 else 'children'}"
        yield f"pool {name}: {children} of {_short(' '.join(pool.argv))}"
    if config.commands.allow_any:
        yield "commands: any, by whoever can enqueue"
    elif config.commands.named:
        yield f"commands: {', '.join(config.commands.named)}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 100 else f"{line[:100]}…"


def _programs(config: Config) -> Iterator[tuple[str, PoolConfig | CommandConfig]]:
    yield from ((f"pools.{name}", pool) for name, pool in config.pools.items())
    yield from ((f"commands.{name}", command) for name, command in config.commands.named.items())


def overruled(config: Config, stored: Mapping[str, QueueSettings]) -> Iterator[str]:
    """Queues whose workers are not as many as the file says, because of what was set in the database."""
    for name, queue in config.queues.items():
        origin = config.origin.get(f"queues.{name}.max_workers", "default")
        if origin != "default" and stored[name].max_workers != queue.max_workers:
            yield (
                f"queue {name} has max_workers {stored[name].max_workers} in the database, not {queue.max_workers} "
                f"({origin}); to change it: forge queue set {name} max_workers={queue.max_workers}"
            )
