"""Who takes part, each in its best documented configuration; where two of them pull apart, one for each scenario."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

from bench.rivals.environment import BIN, HERE

Argv = tuple[str, ...]
PYTHON = str(BIN / "python")
# One worker runs such jobs faster than the database gives them; with two, on two cores that are the database's as well,
# it is 17 % less.
FORGE_TOML = 'modules = ["bench.rivals.forge"]\n\n[queues.default]\nmax_workers = 1\n'


@dataclass(frozen=True, kw_only=True)
class Contender:
    """How one is run."""

    name: str
    setup: str  # the configuration, in words
    needs: tuple[str, ...]  # parts of the peers' environment
    produce: Argv  # the program that speaks `producing`'s lines
    drain: tuple[Argv, ...]  # the worker processes
    latency: tuple[Argv, ...] = ()  # if others
    latency_setup: str = ""
    durable: bool = True  # on PostgreSQL, with every commit on disk
    bulk: bool = True  # whether there is such an interface
    share: int = 1  # the slow ones get one job in so many, which if anything is to their advantage
    stop: signal.Signals = signal.SIGTERM
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # that the workers find in their folder


FORGE = Contender(
    name="forge",
    setup="one forge-master, 1 worker, low-level handler",
    needs=(),
    produce=(sys.executable, "-m", "bench.rivals.forge"),
    drain=((str(Path(sys.executable).parent / "forge-master"), "-c", "forge.toml"),),
    files={"forge.toml": FORGE_TOML},
)


def _procrastinate() -> Argv:
    app = ("--app", "bench.rivals.procrastinate.app", "--log-level", "error")
    return (str(BIN / "procrastinate"), *app, "worker", "-c", "10")


def _huey(workers: int) -> tuple[Argv, ...]:
    return ((str(BIN / "huey_consumer"), "bench.rivals.huey.huey", "-q", "-k", "process", "-w", str(workers)),)


def _celery(*words: str) -> Argv:
    quiet = ("-l", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat")
    return (str(BIN / "celery"), "-A", "bench.rivals.celery", "worker", *quiet, *words)


RIVALS = (
    Contender(
        name="pgqueuer",
        setup="2 processes, batch 1000, asyncpg, uvloop",
        needs=("python",),
        produce=(PYTHON, "-m", "bench.rivals.pgqueuer", "produce"),
        drain=((PYTHON, "-m", "bench.rivals.pgqueuer", "work", "1000"),) * 2,
    ),
    Contender(
        name="graphile-worker",
        setup="2 processes x 24, local queue of 500, batched completion",
        needs=("node",),
        produce=("node", str(HERE / "graphile.js"), "produce"),
        drain=(("node", str(HERE / "graphile.js"), "work", "24"),) * 2,
    ),
    Contender(
        name="procrastinate",
        setup="2 processes, concurrency 10",
        needs=("python",),
        produce=(PYTHON, "-m", "bench.rivals.procrastinate"),
        drain=(_procrastinate(),) * 2,
        share=10,
    ),
    Contender(
        name="dramatiq",
        setup="Redis without persistence, 2 processes x 8 threads",
        needs=("python", "redis"),
        produce=(PYTHON, "-m", "bench.rivals.dramatiq"),
        drain=((str(BIN / "dramatiq"), "bench.rivals.dramatiq", "-p", "2", "-t", "8"),),
        durable=False,
        bulk=False,
        share=5,
    ),
    Contender(
        name="celery",
        setup="Redis without persistence, 2 solo workers, prefetch 128, early acknowledgement",
        latency_setup="one worker, prefork 2",
        needs=("python", "redis"),
        produce=(PYTHON, "-m", "bench.rivals.celery"),
        drain=(_celery("-P", "solo", "-n", "a@%h"), _celery("-P", "solo", "-n", "b@%h")),
        latency=(_celery("-c", "2"),),
        env={"PREFETCH": "128"},
        durable=False,
        bulk=False,
        share=10,
    ),
    Contender(
        name="huey",
        setup="Redis without persistence, 4 processes, no acknowledgement",
        latency_setup="2 processes",
        needs=("python", "redis"),
        produce=(PYTHON, "-m", "bench.rivals.huey"),
        drain=_huey(4),
        latency=_huey(2),
        durable=False,
        bulk=False,
        share=5,
        stop=signal.SIGINT,
    ),
)
