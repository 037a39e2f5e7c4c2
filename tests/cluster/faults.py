"""Faults that a pod does not notice at once, and jobs that say all the time that they run."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

from tests.master.conftest import Pod, Project

SOCKET = ".s.PGSQL.5432"

# What a job is made of that says "RUN job pid time" every 10 ms, until the file `go` is there.
TASKS = '''

import asyncio, subprocess, sys
from forge import Context
from forge.errors import Interrupted


def _here(name):
    return os.path.exists(os.path.join(os.path.dirname(LEDGER), name))


@app.task(max_attempts=50)
def runs(n: int) -> int:
    while not _here("go"):
        note("RUN", n, os.getpid(), time.monotonic())
        time.sleep(0.01)
    return n


@app.task(max_attempts=50)
def is_told(ctx: Context, n: int) -> None:
    """Goes on whatever it is told."""
    note("RUN", n, os.getpid(), time.monotonic())
    while not ctx.cancelled:
        time.sleep(0.01)
    note("TOLD", n)
    try:
        while True:
            time.sleep(0.01)
    except Interrupted:
        note("INTERRUPTED", n)
    time.sleep(600)


@app.task(max_attempts=50)
async def is_cancelled(n: int) -> None:
    note("RUN", n, os.getpid(), time.monotonic())
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        note("TOLD", n)
        await asyncio.sleep(600)


@app.task(max_attempts=50)
def detaches(n: int) -> int:
    program = [sys.executable, "says.py", LEDGER, f"{n}-detached"]
    subprocess.Popen(program, start_new_session=True, stdin=subprocess.DEVNULL)
    return runs(n)
'''

# The same as a program, which runs a job of a pool, or a command.
SAYS = """
import os, sys, time

sys.stdin.readline()
while True:
    fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
    os.write(fd, f"RUN {sys.argv[2]} {os.getpid()} {time.monotonic()}\\n".encode())
    os.close(fd)
    time.sleep(0.01)
"""


class Run(NamedTuple):
    """One process that ran a job, as far as the ledger knows."""

    job: str
    pid: int
    first: float
    last: float


def runs(project: Project, until: float = float("inf")) -> list[Run]:
    """All there have been, by their first sign of life before that time."""
    found: dict[tuple[str, int], Run] = {}
    for words in project.events("RUN"):
        if len(words) == 4 and float(words[3]) < until:
            job, pid, at = words[1], int(words[2]), float(words[3])
            known = found.get((job, pid))
            found[job, pid] = Run(job, pid, known.first if known else at, at)
    return sorted(found.values(), key=lambda run: run.first)


def most_at_once(found: Iterable[Run]) -> int:
    """How many of them ran at the same time."""
    edges = sorted([edge for run in found for edge in ((run.first, 1), (run.last, -1))], key=lambda e: (e[0], -e[1]))
    most = now = 0
    for _, step in edges:
        now += step
        most = max(most, now)
    return most


class Wire:
    """A way to PostgreSQL that can be cut (connections end, and none can be made) or frozen (nothing passes)."""

    def __init__(self, url: str) -> None:
        parts = conninfo_to_dict(url)
        self._target = f"{parts['host']}/{SOCKET}"
        self._folder = tempfile.TemporaryDirectory(prefix="forge-wire-")
        self.url = f"postgresql://postgres@/{parts['dbname']}?host={quote(self._folder.name)}"
        self._whole, self._flows = threading.Event(), threading.Event()
        self._sockets: list[socket.socket] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(f"{self._folder.name}/{SOCKET}")
        self._server.listen()
        self.heal()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._whole.clear()
        for each in self._sockets:
            _hang_up(each)

    def freeze(self) -> None:
        self._flows.clear()

    def heal(self) -> None:
        self._whole.set()
        self._flows.set()

    def close(self) -> None:
        self.heal()
        for each in (self._server, *self._sockets):
            _hang_up(each)
            each.close()
        self._folder.cleanup()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                if not self._whole.is_set():
                    client.close()
                    continue
                upstream = socket.socket(socket.AF_UNIX)
                upstream.connect(self._target)
                self._sockets += [client, upstream]
                for ends in ((client, upstream), (upstream, client)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                target.sendall(data)
        _hang_up(source)
        _hang_up(target)


def _hang_up(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)


def stop_tree(pod: Pod) -> list[int]:
    """Stop a master and all below it, the master first; the answer are those that were."""
    everyone = [pod.process.pid, *pod.children()]
    for pid in everyone:
        os.kill(pid, signal.SIGSTOP)
    return everyone


@contextmanager
def continuing(pids: Iterable[int]) -> Iterator[None]:
    """Whatever happens, they go on."""
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
