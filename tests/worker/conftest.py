"""A worker in a forked process of its own, driven over its channel as a master would."""

from __future__ import annotations

import itertools
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pytest

from forge import Context, Forge, fastpath, logs
from forge.config.model import LoggingConfig, QueueConfig
from forge.job import Claim
from forge.protocol import FrameSplitter
from forge.worker.child import StartFailed, Worker
from tests.master.conftest import eventually

PATIENCE = 30.0  # seconds; a bound, not a measure


def job_line(claim: Claim) -> bytes:
    """A claimed job for a worker, as a master sends it."""
    return fastpath.job_lines([claim], {}, 0.0)


def line_of(**message: Any) -> bytes:
    """Any message as its line."""
    return orjson.dumps(message) + b"\n"


def order_line(order: str, **details: Any) -> bytes:
    """An order of a master. A job is cancelled by its user if nothing else is said."""
    given = {"why": "cancelled by user", "ends": "cancelled"} if order == "cancel" else {}
    return line_of(do=order, **(given | details))


class Driven:
    """The master's end."""

    def __init__(self, label: str, channel: socket.socket, pid: int) -> None:
        self.label, self.channel, self.pid = label, channel, pid
        self.seen: list[dict[str, Any]] = []  # what it has said and nobody asked for yet
        self._frames = FrameSplitter()
        self._numbers = itertools.count(1)
        self.status: int | None = None

    def job(self, kind: str, payload: Any = None, *, args: tuple[Any, ...] = (), **fields: Any) -> str:
        """Send a job; its id."""
        data = orjson.dumps({"args": args, "kwargs": {}} if payload is None else payload)
        known: dict[str, Any] = {"attempt": 2, "max_attempts": 5, "timeout": 600, "keep_result": True, "keyed": False}
        n = next(self._numbers)
        claim = Claim(0, None, UUID(int=n << 64), n << 32 | 7, "mail", kind, data, **(known | fields))
        self.channel.sendall(job_line(claim))
        return claim.id.hex

    def order(self, what: str, **details: Any) -> None:
        self.channel.sendall(order_line(what, **details))

    def answer(self, number: int, **details: Any) -> None:
        self.channel.sendall(line_of(answer=number, **details))

    def line(self, **wanted: Any) -> dict[str, Any]:
        """The first line it says, or has said, with these fields (None: with any value). Each is given once."""
        for message in self._all():
            if all(name in message and value in (None, message[name]) for name, value in wanted.items()):
                self.seen.remove(message)
                return message
        raise AssertionError("unreachable")

    def _all(self) -> Iterator[dict[str, Any]]:
        end = time.monotonic() + PATIENCE
        yield from list(self.seen)
        while True:
            left = end - time.monotonic()
            assert left > 0 and select.select([self.channel], [], [], left)[0], f"it did not say so, but: {self.seen}"
            data = self.channel.recv(1 << 16)
            assert data, f"it has gone; it said: {self.seen}"
            came = [orjson.loads(line) for line in self._frames.feed(data)]
            self.seen += came
            yield from came

    def reply(self, id: str) -> dict[str, Any]:
        return self.line(id=id, status=None)

    def title(self) -> str:
        return Path(f"/proc/{self.pid}/cmdline").read_text().rstrip("\0")

    def wait(self) -> int:
        """Until it has gone: how it ended."""
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def close(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()
        self.channel.close()


Drive = Callable[..., Driven]


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "worker.log"


@pytest.fixture
def drive(log_file: Path) -> Iterator[Drive]:
    """`drive(app, worker="threads", concurrency=3)`: a worker of this app's handlers, which has said hello."""
    started: list[Driven] = []

    def start(app: Forge, *, hello: bool = True, give_up_after: float | None = None, **settings: Any) -> Driven:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            _serve(app, theirs, QueueConfig(**settings), give_up_after, log_file)
        theirs.close()
        driven = Driven("mail/3", ours, pid)
        started.append(driven)
        if hello:
            driven.line(hello=pid, capacity=settings.get("concurrency", 1))
        return driven

    yield start
    for driven in started:
        driven.close()


def _serve(app: Forge, channel: socket.socket, settings: QueueConfig, ttl: float | None, log_file: Path) -> None:
    """In the child; never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        logging.getLogger().handlers.clear()
        logs.setup(LoggingConfig(file=log_file, format="json"), "mail/3")
        os.dup2(os.open(f"{log_file}.stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        Worker("mail/3", channel, app.tasks, settings, apps=[app], give_up_after=ttl).run()
        code = 0
    except StartFailed as e:
        logging.getLogger("forge.worker").error("%s", e)  # noqa: TRY400 (the words are what the test reads)
        code = 78
    except BaseException:
        logging.getLogger("forge.worker").exception("the worker failed")
    finally:
        os._exit(code)


@pytest.fixture
def app() -> Forge:
    """One that can be used without a database."""
    return Forge("sqlite:///unused.db")


class Gate:
    """Lets handlers in another process say that they have begun, and wait until they may go on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begun(self, name: object = "job") -> None:
        (self._folder / f"begun-{name}").touch()

    def wait(self, ctx: Context | None = None) -> None:
        while not (self._folder / "open").exists() and not (ctx is not None and ctx.cancelled):
            time.sleep(0.005)  # between two looks: the event is another process's

    def until_begun(self, name: object = "job") -> None:
        eventually((self._folder / f"begun-{name}").exists)

    def open(self) -> None:
        (self._folder / "open").touch()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)
