"""The reading side of a live master for each kind of child, without the child: whoever tests it writes the bytes.

Used by tests and by the fuzzer. Nothing is killed: who would have been is noted.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import patch
from uuid import UUID

from forge import descendants
from forge.config.model import Config, PoolConfig, QueueConfig
from forge.job import Claim, Ending, Released
from forge.master.pod.meter import Meter
from forge.master.pod_state import PodState
from forge.master.programs import process_table
from forge.master.programs.places import Places
from forge.master.programs.pools import Child, Pool
from forge.master.programs.process_table import ProcessTable, Recipe
from forge.master.queues.chains import Chains
from forge.master.queues.local_queue import LocalQueue
from forge.master.workers import replies as replies_module
from forge.master.workers import zygote_process
from forge.master.workers import zygotes as zygotes_module
from forge.master.workers.replies import Replies
from forge.master.workers.requests import Requests
from forge.master.workers.workers import Workers
from forge.master.workers.zygote_process import ZygoteProcess
from forge.master.workers.zygotes import Zygotes
from forge.protocol import FrameSplitter, frame_of

WORKER = 4_000_001  # a pid that no process has here, being larger than the kernel gives out by default
ZYGOTE = 4_000_002
PROGRAM = 4_000_003


def claims(n: int) -> list[Claim]:
    return [
        Claim(0, None, UUID(int=7 << 64 | i), 1 << 32 | i, "q", "k", b"{}", 1, 5, 60, True, False) for i in range(n)
    ]


# What children say that keep to the rules, to be changed a little; and values to change it with.

IDS = [claim.id.hex for claim in claims(3)]
ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    1.5,
    1e300,
    2**63,
    2**64 - 1,
    "",
    "x",
    "\0",
    "é" * 300,
    [],
    [[]],
    {},
    {"a": {}},
    WORKER,
    os.getpid(),
    *IDS,
]
DONE = b"".join(b'{"id":"%b","status":"ok","took":0.000100}\n' % id.encode() for id in IDS[:2])


def record(**known: Any) -> dict[str, Any]:
    return {"id": IDS[2], "kind": "k", "payload": {"a": [1]}, **known}


WORKER_LINES: list[dict[str, Any]] = [
    {"hello": WORKER, "capacity": 1},
    {"id": IDS[0], "status": "ok", "took": 0.25, "result": {"a": 1}},
    {"id": IDS[1], "status": "error", "message": "m", "delay": 1.5, "traceback": "t", "took": 0.1},
    {"id": IDS[0], "status": "dead", "message": "m"},
    {"id": IDS[0], "status": "snoozed", "seconds": 5.0},
    {"id": IDS[1], "status": "throttled", "retry_after": 5.0, "job_only": True},
    {"id": IDS[1], "status": "cancelled", "message": "m"},
    {"id": IDS[2], "status": "released"},
    {"id": IDS[2], "status": "released", "message": "m", "give_up_after": 5},
    {"id": IDS[2], "status": "written", "took": 1.0},
    {"id": IDS[0], "status": "ok", "took": 0.1, "children": [record(queue="q", tags=["a"])]},
    {"say": "progress", "id": IDS[0], "percent": 50, "message": "m"},
    {"say": "leaving", "why": "10 jobs"},
    {
        "ask": 1,
        "for": "enqueue",
        "id": IDS[0],
        "jobs": [record(run_at="2026-01-01T00:00:00Z", line=["a", None, "b", 2])],
    },
    {"ask": 2, "for": "acquire", "id": IDS[0], "scope": "slack", "tokens": 3},
    {"ask": 3, "for": "drain", "scope": "slack"},
]
SCHEDULE = {
    "name": "n",
    "expression": "* * * * *",
    "kind": "k",
    "payload": "null",
    "timezone": "UTC",
    "queue": "q",
    "priority": 0,
    "max_attempts": 5,
    "timeout": 600,
    "keep_result": None,
    "dedupe_key": None,
    "unique_for": None,
    "tags": ["a"],
    "catch_up": "one",
    "jitter": 0.0,
    "source": "code",
    "line": None,
    "project": "",
}
KINDS = {"k": {"curve": "fixed", "base": 1.0, "cap": 2.0}}
ZYGOTE_LINES: list[dict[str, Any]] = [
    {"ready": True, "kinds": KINDS, "unsafe": ["u"], "remarks": ["r"], "schedules": [SCHEDULE]},
    {"failed": "no such module", "code": 3},
    {"forked": "q/0", "serial": 1, "pid": WORKER},
    {"forked": "q/0", "serial": 1, "pid": 0, "error": "no room"},
    {"started": 1, "pid": PROGRAM},
    {"started": 1, "pid": 0, "error": "no room"},
    {"exited": WORKER, "status": -9},
    {"exited": PROGRAM, "status": 0},
    {"pong": True},
]
PROGRAM_LINES: list[dict[str, Any]] = [
    {"id": str(claims(1)[0].id), "status": "ok", "result": 1},
    {"status": "ok"},
    {"status": "error", "message": "m"},
    {"status": "error", "message": {"code": 7}},
    {"status": "dead", "message": "m"},
    {"status": "throttled", "retry_after_secs": 5},
]


@contextmanager
def no_kills(*, bugs: bool = False) -> Iterator[list[int]]:
    """The pids that would have been killed. Unless there are to be `bugs`, an error that only the last net catches is
    one here."""
    killed: list[int] = []
    with ExitStack() as stack:
        for name in ("kill", "killpg"):
            stack.enter_context(patch.object(os, name, lambda pid, _: killed.append(pid)))
        for module in (descendants, zygote_process):
            stack.enter_context(patch.object(module, "parent_of", _parent_of))
        for module in (replies_module, zygotes_module, process_table) if not bugs else ():
            stack.enter_context(patch.object(module, "a_bug", _raise))
        yield killed


def _parent_of(pid: int) -> int | None:
    return ZYGOTE if pid in (WORKER, PROGRAM) else _real_parent_of(pid)


_real_parent_of = descendants.parent_of


def _raise(where: str) -> None:
    raise AssertionError(where) from sys.exception()


class Gone:
    """A process that only has a number, and ends when it is killed."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, -signal.SIGKILL
        self.killed = False

    def kill(self) -> None:
        self.killed = True

    def wait(self, _: float | None = None) -> int:
        return self.returncode


class StubZygote(ZygoteProcess):
    """A zygote that is whoever writes to `theirs`."""

    def __init__(self, *, ready: bool = True) -> None:
        self.control, self.theirs = socket.socketpair()
        self.control.setblocking(False)
        self.theirs.setblocking(False)
        self.process: Any = Gone(ZYGOTE)
        self.ready, self.gone, self.started_at = ready, False, time.monotonic()
        self.kinds, self.unsafe, self.schedules = {}, [], ()
        self._may_be_empty, self._lines = True, FrameSplitter()
        self._pids, self._orders = set(), deque()
        self._pinged_at, self._overdue = None, False

    def close(self) -> None:
        super().close()
        self.theirs.close()


class Books:
    """What has become of claims: each must be somewhere, once."""

    def __init__(self) -> None:
        self.endings: list[Ending] = []
        self.wrote = self.ended = 0
        self.chains = Chains()

    def done(self, endings: Sequence[Ending]) -> None:
        self.endings += endings

    def end(self, ending: Ending) -> None:
        self.endings.append(ending)

    def written(self, _: Claim) -> None:
        self.wrote += 1

    def release(self, given: Sequence[Claim], why: str | None = None) -> None:
        self.endings += [Ending(claim, Released(why)) for claim in given]

    def balance(self, sent: Sequence[Claim], *elsewhere: Sequence[Claim]) -> None:
        """Every claim that was given out is in one place, or has one ending."""
        found = Counter(ending.claim.id for ending in self.endings)
        for place in elsewhere:
            found.update(claim.id for claim in place)
        assert max(found.values(), default=1) == 1, found
        assert set(found) <= {claim.id for claim in sent}
        assert len(found) + self.wrote == len(sent), (found, self.wrote)


class SideThread:
    """Nobody's errands are run."""

    def send(self, _: Any, then: Any) -> None:
        then(None, "no database here")


class NoBudgets:
    def acquire(self, scope: str, tokens: int, reply: Any) -> None:
        assert type(scope) is str and 1 <= tokens < 2**31
        reply(1.0, None)

    def drain(self, _: str, reply: Any) -> None:
        reply(None, None)

    def tick(self, now: float) -> None: ...


class WorkerRig:
    """The master's side of one worker of a queue, which has some jobs in hand."""

    def __init__(self, jobs: int, *, settings: QueueConfig | None = None, hello: bool = True) -> None:
        self.books, self.selector = Books(), selectors.DefaultSelector()
        self.queue = LocalQueue("q", settings or QueueConfig(max_workers=1), 10.0)
        self.sent = claims(jobs)
        self.zygote = StubZygote()
        storage, side_thread, budgets = _Refuses(), SideThread(), NoBudgets()
        self.requests = Requests(storage, side_thread, budgets)  # type: ignore[arg-type]
        queues, state, zygotes = {"q": self.queue}, PodState(Config()), _Current(self.zygote)
        replies = Replies(queues, state, zygotes, self.books, self.requests, Meter())  # type: ignore[arg-type]
        self.workers = Workers(queues, state, zygotes, replies, self.selector, self.books.end)  # type: ignore[arg-type]
        (self.slot,) = self.queue.slots
        ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.slot.open(ours, self.zygote)
        self.selector.register(ours, selectors.EVENT_READ)
        self.workers.heard(self.zygote, {"forked": self.slot.label, "serial": self.slot.serial, "pid": WORKER})
        if hello:
            self.write(frame_of({"hello": WORKER, "capacity": self.queue.settings.concurrency}))
            assert self.slot.ready
        if jobs:
            self.slot.send(self.sent, time.monotonic())

    def write(self, data: bytes) -> None:
        """What the worker says; the master reads as it comes."""
        while data and self.reads:
            with suppress(BlockingIOError):
                data = data[self.theirs.send(data) :]
            self.read()
        self.read()

    @property
    def reads(self) -> bool:
        return self.slot.channel is not None and self.slot.channel in self.selector.get_map()

    def read(self) -> None:
        while self.reads and self.workers._hear(self.slot):
            pass

    @property
    def places(self) -> list[list[Claim]]:
        """Where claims may be that have not ended."""
        return [list(self.queue.claims())]

    def check(self) -> None:
        self.books.balance(self.sent, *self.places)

    def end(self) -> None:
        """The process is gone: nothing stays in its hands."""
        self.theirs.close()
        self.read()
        self.requests.tick(time.monotonic())
        self.workers.tick(time.monotonic() + 5.0)
        assert not self.slot.in_hand
        self.check()

    def close(self) -> None:
        for slot in self.queue.all_slots():
            slot.close()
        self.workers.outputs.close_all()
        self.theirs.close()
        self.zygote.close()
        self.selector.close()


class _Current:
    def __init__(self, zygote: ZygoteProcess) -> None:
        self.current = zygote


class _Refuses:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nobody may ask the database for {name} here")


class ZygoteRig:
    """The master's side of a zygote: the one that its worker and its program come from, or one that is on its way."""

    def __init__(self, *, coming: bool) -> None:
        self.workers, self.pools = WorkerRig(2), PoolRig()
        self.settled: list[Any] = []
        current, self.selector = self.workers.zygote, self.workers.selector
        current._pids = {WORKER, PROGRAM}
        self.pools.adopt(current)
        self.zygotes = Zygotes(current, _Settings(), self.selector, self._heard, self.settled.append)  # type: ignore[arg-type]
        self.workers.workers._zygotes = self.workers.workers._replies._zygotes = self.zygotes
        self.zygote = current
        if coming:
            self.zygote = StubZygote(ready=False)
            self.zygotes._coming = self.zygote, _Settings()  # type: ignore[assignment]
            self.zygotes._watch(self.zygote)

    def _heard(self, zygote: ZygoteProcess, message: dict[str, Any]) -> None:
        if not self.pools.table.heard(zygote, message):
            self.workers.workers.heard(zygote, message)

    def write(self, data: bytes) -> None:
        """What the zygote says; the master reads as it comes."""
        while data and self.reads:
            with suppress(BlockingIOError):
                data = data[self.zygote.theirs.send(data) :]
            self.selector.get_key(self.zygote.control).data()

    @property
    def reads(self) -> bool:
        return self.zygote.control.fileno() >= 0 and self.zygote.control in self.selector.get_map()

    def check(self) -> None:
        self.workers.check()
        self.pools.check()

    def end(self) -> None:
        """Once its workers are gone, all they had is settled."""
        self.pools.table.tick(time.monotonic())
        self.workers.end()
        self.pools.check()

    def close(self) -> None:
        self.zygote.close()
        self.pools.close()
        self.workers.close()


class _Settings:
    ready_within = 30.0
    fork_safety = "warn"


class PoolRig:
    """The master's side of a pool's child that has a job, while another one waits."""

    def __init__(self) -> None:
        self.books, self.log, self.selector = Books(), list[str](), selectors.DefaultSelector()
        self.zygote = StubZygote()
        self.table = ProcessTable(self.selector, self.zygote, lambda text, who: self.log.append(text))
        self.sent = claims(2)
        self.places = Places(lambda _: 10, self.books.end)
        config = PoolConfig(kind="k", argv=("x",), size=1)
        self.pool = Pool("p", config, Recipe(("x",), {}, "/"), self.table, self.places)
        self.ends: list[tuple[int, int, int]] = []  # of each child: what it has for stdin, stdout and stderr
        self.adopt(self.zygote)
        for claim in self.sent:
            self.places.take(claim)
            self.pool.take(claim)
        self.turn()

    def adopt(self, zygote: StubZygote) -> None:
        """Be the programs of that zygote."""
        zygote.exec = self._exec  # type: ignore[method-assign,assignment]
        self.table.zygote = zygote
        for child in self.pool.children():
            child.zygote = zygote

    def _exec(self, number: int, _: Any, __: Any, ___: str, fds: Any) -> None:
        self.ends.append(fds)
        os.set_blocking(fds[1], False)
        self.table.heard(self.table.zygote, {"started": number, "pid": PROGRAM})

    def turn(self) -> None:
        """What the loop does: look at the clock, give jobs."""
        self.pool.tick(time.monotonic())
        self.pool.give()

    @property
    def child(self) -> Child | None:
        return next(self.pool.children(), None)

    def read_job(self) -> None:
        """As a child does that takes its job."""
        with suppress(BlockingIOError):
            os.set_blocking(self.ends[-1][0], False)
            os.read(self.ends[-1][0], 65_536)

    def write(self, data: bytes) -> None:
        """What the child writes to its stdout; the master reads as it comes."""
        child = self.child
        while data and child is not None and child is self.child and not child.killed:
            try:
                data = data[os.write(self.ends[-1][1], data) :]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                return
            child.look()

    def check(self) -> None:
        running = [child.job for child in self.pool.running() if child.job is not None]
        self.books.balance(self.sent, list(self.pool.waiting), running)

    def close(self) -> None:
        for child in list(self.pool.children()):
            child.kill()
        for fds in self.ends:
            for fd in fds:
                os.close(fd)
        self.zygote.close()
        self.selector.close()
