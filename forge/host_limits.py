"""What the host lets a pod have, open files, processes and memory, and what a pod of these settings needs.

A master counts before it starts anything, and takes more open files if it may: for itself alone, its workers have what
it was given. What fails all the same is told of in one line that names the limit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from forge.config import Config
from forge.errors import ConfigError

__all__ = ["HostLimit", "check_room", "explain", "files_at_start", "limits", "make_room", "pipes"]

# Of the master without workers: 30 with either database, and some for a reload, for /proc and for whatever it loads.
BASE_FILES = 48
FILES_EACH = 3  # of a worker: its channel, and what it prints; of a program: stdin, stdout and stderr
RESERVED = 16  # left for everything else, so that workers and programs never take what a connection needs
BASE_PROCESSES = 18  # the master and its threads, and the zygote

_at_start: int | None = None  # open files that this process might have before it took more
_needed: dict[str, int] = {}  # by the name of the limit, as the settings in force have it


class HostLimit(NamedTuple):
    """A limit of the host's, and what is needed of it."""

    name: str
    has: int
    all: int  # needed with every worker that this pod may have
    least: int  # and with as few as it may be given
    remedy: str

    @property
    def words(self) -> str:
        """What is wrong if it is too low, and what to do."""
        return (
            f"the limit of {self.name} is {self.has:,}, and a pod of these settings needs {self.all:,}: "
            f"raise it ({self.remedy}), or lower max_workers"
        )


def _count(config: Config, each: int, threads: bool) -> tuple[int, int]:
    """What all workers and programs of these settings take together, and the fewest. On SQLite there is one pod, which
    has all workers; elsewhere others may have most of them."""
    most = least = 0
    for queue in config.queues.values():
        one = each + (queue.concurrency if threads and queue.worker == "threads" else 0)
        programs = each if config.commands.named or config.commands.allow_any else 0
        most += queue.max_workers * (one + programs)
        least += min(queue.max_workers, queue.min_workers or 1) * one
    children = sum(pool.size for pool in config.pools.values()) * each
    return most + children, (most if config.database.startswith("sqlite:") else least) + children


def limits(config: Config) -> Iterator[HostLimit]:
    """The limits of this host, each with what a pod of these settings needs of it."""
    most, least = _count(config, FILES_EACH, threads=False)
    yield HostLimit(
        "open files", _files()[1], BASE_FILES + most, BASE_FILES + least, "ulimit -n, or systemd's LimitNOFILE"
    )
    most, least = _count(config, 2, threads=True)  # each worker has a thread that reads
    for has, remedy in _processes():
        yield HostLimit("processes and threads", has, BASE_PROCESSES + most, BASE_PROCESSES + least, remedy)


def check_room(config: Config) -> Iterator[str]:
    """`ConfigError` if a pod of these settings cannot run here; the answer are warnings, that it may come short."""
    for limit in limits(config):
        if limit.has < limit.least:
            raise ConfigError(limit.words)
        if limit.has < limit.all:
            yield limit.words


def make_room(config: Config) -> None:
    """Take as many open files as these settings need, if the hard limit lets us."""
    global _at_start  # noqa: PLW0603 (it is the process's)
    _needed.update({limit.name: limit.all for limit in limits(config)})
    soft, hard = _files()
    wanted = min(hard, _needed["open files"])
    if soft < wanted:
        _at_start = _at_start or soft
        with contextlib.suppress(OSError, ValueError):  # macOS has a limit behind the limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def files_at_start() -> int | None:
    """The soft limit of open files that children are to have, if this process has taken more: that would hurt those
    that use `select()`, which knows 1,024."""
    return _at_start


def _files() -> tuple[int, int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _finite(soft), _finite(hard)


def _finite(limit: int) -> int:
    return 2**31 if limit == resource.RLIM_INFINITY else limit


def _processes() -> Iterator[tuple[int, str]]:
    """Limits of processes and threads, and how to raise them. That of a user does not bind root."""
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit != resource.RLIM_INFINITY and os.getuid() != 0:
        yield limit, "ulimit -u, or systemd's LimitNPROC"
    with contextlib.suppress(OSError, ValueError, IndexError):  # no cgroups of version 2, or no limit there
        group = Path("/proc/self/cgroup").read_text().partition("0::")[2].split()[0]
        yield int(Path(f"/sys/fs/cgroup{group}/pids.max").read_text()), "pids.max of the cgroup, systemd's TasksMax"


def pipes(count: int) -> list[tuple[int, int]]:
    """So many, each as the end to read from and the one to write to. `OSError` if they would use up what is reserved;
    then there are none."""
    made: list[tuple[int, int]] = []
    try:
        while len(made) < count:
            made.append(os.pipe())
        if made[-1][1] >= _files()[0] - RESERVED:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    except OSError:
        for pair in made:
            for fd in pair:
                os.close(fd)
        raise
    return made


def explain(error: BaseException | None, *, forking: bool = False) -> str | None:
    """What a limit of the host's has to do with it, in one line; None: nothing. `forking`: a fork has failed."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return f"out of memory{_address_space()}"
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            return f"too many open files: the limit is {_files()[0]:,} (ulimit -n){_of('open files')}"
        if isinstance(error, OSError) and error.errno == errno.ENFILE:
            return "too many open files on this host: see fs.file-max"
        thread = isinstance(error, RuntimeError) and "can't start new thread" in str(error)
        if thread or (forking and isinstance(error, BlockingIOError)):
            found = [f"{has:,} ({remedy.partition(',')[0]})" for has, remedy in _processes()]
            limit = f": the limit is {' or '.join(found)}{_of('processes and threads')}" if found else ""
            return f"no room for another {'thread' if thread else 'process'}{limit}{_address_space()}"
        error = error.__cause__ or error.__context__
    return None


def _of(name: str) -> str:
    return f", and a pod of these settings needs {_needed[name]:,}" if name in _needed else ""


def _address_space() -> str:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return "" if limit == resource.RLIM_INFINITY else f"; memory is limited to {limit // 2**20:,} MiB (ulimit -v)"
