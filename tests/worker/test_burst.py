"""The fast way to run jobs: natively and in its twin, and against the way that can do everything."""

from __future__ import annotations

import importlib
import math
import socket
import time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import orjson
import pytest

from forge import Context, Done, Failed, Forge, Snooze, _fastpath_py, fastpath
from forge._reference.frames import done_line
from forge.app.registry import Handler
from forge.app.running.context import Why
from forge.job import Claim
from forge.logs import current_job
from forge.worker.child import Worker
from tests.worker.conftest import Drive, Gate

NATIVE = importlib.import_module("forge._fastpath")


class Picky(Failed):
    """Its bare class is no outcome."""

    def __init__(self, needed: str) -> None:
        super().__init__(needed)


class Bench:
    """An inbox, a port and a seat to call `burst` with."""

    def __init__(self, impl: Any) -> None:
        self.impl = impl
        self.app = Forge("sqlite:///unused.db")
        self.jobs: deque[Any] = deque()
        self.plain: dict[str, Any] = {}
        self.port: Any = SimpleNamespace(early={}, closed=False, link=object(), replies=[])
        self.seat = SimpleNamespace(ctx=None, ended=self._ended)
        self.odd: list[tuple[Any, ...]] = []

    def handler(self, fn: Callable[..., Any], *, takes_ctx: bool = True, ctx_first: bool = False) -> None:
        self.plain[fn.__name__] = ("its handler", self.app, fn, takes_ctx, ctx_first)

    def put(self, kind: str, payload: Any = None, *, keep: bool = False) -> UUID:
        id = UUID(int=len(self.jobs) + 1)
        data = payload if type(payload) is bytes else orjson.dumps(payload)
        self.jobs.append(Claim(0, None, id, 7, "q", kind, data, 1, 5, 60, keep, False))
        return id

    def _ended(self, ctx: Context, handler: Any, began: float, returned: Any, error: BaseException | None) -> None:
        assert current_job.get() is ctx and self.seat.ctx is None and handler == "its handler" and began > 0
        self.odd.append((ctx.id.int, returned, error))

    def run(self, *, until: float = math.inf, most: int = 100, clock: Callable[[], float] = time.monotonic) -> int:
        found: int = self.impl.burst(
            self.jobs, self.plain, self.port, self.seat, Context, current_job, clock, until, most
        )
        assert self.seat.ctx is None and current_job.get() is None
        return found

    def replied(self) -> list[tuple[int, str]]:
        messages = [orjson.loads(line) for line in self.port.replies]
        return [(int(message["id"], 16), message["status"]) for message in messages]


@pytest.fixture(params=[NATIVE, _fastpath_py], ids=["c", "py"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param)


pytestmark = pytest.mark.impl_free


def test_jobs_are_run_in_order_each_with_its_context(bench: Bench) -> None:
    seen = []

    def look(ctx: Context, payload: Any) -> None:
        assert type(ctx) is Context and ctx is bench.seat.ctx is current_job.get()
        assert ctx._app is bench.app and ctx._link is bench.port.link and ctx.timeout == 60 and 59 < ctx.remaining <= 60
        ctx.anything = "it is an ordinary object"
        seen.append((ctx.id.int, payload))

    bench.handler(look)
    for n in range(5):
        bench.put("look", {"n": n})
    assert bench.run() == 5
    assert seen == [(n + 1, {"n": n}) for n in range(5)]
    assert bench.replied() == [(n + 1, "ok") for n in range(5)]
    assert not bench.jobs and not bench.odd


def test_tasks_get_their_arguments(bench: Bench) -> None:
    seen: list[Any] = []

    def add(a: int, *, b: int = 0) -> int:
        seen.append(a + b)
        return a + b

    def first(ctx: Context, a: int) -> dict[str, int]:
        seen.append((ctx.id.int, a))
        return {"a": a}

    bench.handler(add, takes_ctx=False)
    bench.handler(first, takes_ctx=False, ctx_first=True)
    bench.put("add", {"args": [2], "kwargs": {"b": 3}})
    bench.put("first", {"args": [4], "kwargs": {}})
    assert bench.run() == 2
    assert seen == [5, (2, 4)]
    assert bench.replied() == [(1, "ok"), (2, "ok")], "results that nobody keeps are dropped"


def test_what_does_not_end_as_usual_is_left_to_the_seat(bench: Bench) -> None:
    def give(ctx: Context, payload: Any) -> Any:
        match payload:
            case "raise":
                raise ValueError("no luck")
            case "exit":
                raise SystemExit(3)
            case "outcome":
                return Snooze(5)
            case "class":
                return Failed
            case "done":
                return Done(1)
            case "child":
                ctx._children = []
            case "written":
                ctx._written = True
        return "a result"

    bench.handler(give)
    words = ["plain", "raise", "exit", "outcome", "class", "done", "child", "written", "plain"]
    for word in words:
        bench.put("give", word)
    bench.put("give", "kept", keep=True)
    bench.put("give", b"no JSON")
    assert bench.run() == 2
    assert bench.replied() == [(1, "ok"), (9, "ok")]
    assert [id for id, _, _ in bench.odd] == [2, 3, 4, 5, 6, 7, 8, 10, 11]
    ends = [repr(error) if error else returned for _, returned, error in bench.odd]
    assert ends[:2] == ["ValueError('no luck')", "SystemExit(3)"]
    assert ends[3] is Failed and ends[5:8] == ["a result"] * 3
    assert "JSONDecodeError" in str(ends[8])


def test_it_stops_before_what_it_cannot_run(bench: Bench) -> None:
    bench.handler(lambda ctx, payload: None)
    bench.plain["noop"] = bench.plain.pop("<lambda>")
    for other in ("unknown", None):
        bench.jobs.clear()
        bench.put("noop")
        bench.put("noop")
        if other is None:
            bench.jobs.append(None)  # there will be no more
        else:
            bench.put(other)
        bench.put("noop")
        assert bench.run() == 2
        assert len(bench.jobs) == 2 and (bench.jobs[0] is None or bench.jobs[0].kind == other)
        assert bench.run() == 0
    bench.jobs.clear()
    assert bench.run() == 0


def test_it_begins_no_more_than_it_may(bench: Bench) -> None:
    def noop(ctx: Context, payload: Any) -> None:
        if payload == "close":
            bench.port.closed = True
        elif payload == "early":
            bench.port.early["somebody"] = Why("cancelled")

    bench.handler(noop)
    for n in range(10):
        bench.put("noop", {4: "close", 6: "early"}.get(n))
    assert bench.run(most=2) == 2
    assert bench.run(most=0) == 0
    ticks = iter([1.0, 2.0, 3.0, 4.0])
    assert bench.run(until=3.0, clock=lambda: next(ticks)) == 2
    assert bench.run(until=3.0, clock=lambda: 3.0) == 0
    assert bench.run() == 1, "closed"
    assert bench.run() == 0
    bench.port.closed = False
    assert bench.run() == 2, "somebody is to stop who may be next"
    assert len(bench.jobs) == 3 and bench.run() == 0


def test_a_line_that_somebody_else_empties_meanwhile(bench: Bench) -> None:
    def steal(ctx: Context, payload: Any) -> None:
        bench.jobs.clear()

    bench.handler(steal)
    for _ in range(3):
        bench.put("steal")
    assert bench.run() == 1


def test_a_reply_that_is_made_while_others_are_sent_is_sent_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader's thread sends what is there whenever it likes: here always between the list and the reply."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker, bench = Worker("q/0", ours, {}), Bench(_fastpath_py)
        bench.port = worker

        def made(id: UUID, seconds: float) -> bytes:
            worker._send(b"")
            return done_line(id, seconds)

        monkeypatch.setattr("forge._reference.burst.done_line", made)

        def noop(ctx: Context, payload: Any) -> None: ...

        bench.handler(noop)
        sent = [bench.put("noop") for _ in range(5)]
        assert bench.run() == 5
        worker._send(b"")
        lines = theirs.recv(65536).splitlines()
    assert [UUID(orjson.loads(line)["id"]) for line in lines] == sent


@pytest.mark.parametrize("impl", [NATIVE, _fastpath_py], ids=["c", "py"])
def test_a_worker_replies_as_it_does_without(
    app: Forge, drive: Drive, impl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same jobs with and without it, many at once: the same replies, but for how long they took."""

    @app.handler("low")
    def low(ctx: Context, payload: Any) -> Any:
        if payload["n"] % 7 == 3:
            raise ValueError(f"no luck with {payload['n']}")
        if payload["n"] % 7 == 4:
            return Picky
        return {"n": payload["n"]} if payload["n"] % 5 == 0 else None

    @app.task(name="typed", backoff="none")
    def typed(n: int) -> Any:
        return Snooze(n) if n % 4 == 0 else n

    @app.task(name="later")
    async def later(n: int) -> int:
        return n

    @app.handler("odd")
    def odd(ctx: Context, payload: Any) -> Any:
        match payload["way"]:
            case "stops":
                raise StopIteration(3)
            case "exits":
                raise SystemExit(3)
            case "dead":
                raise Done({"n": 1})
            case "child":
                ctx.enqueue("low", {"n": 1}, id=UUID(int=5))
                return "with a child"
            case "child of a failure":
                ctx.enqueue("low", {"n": 1})
                raise Failed("after a child")
            case "generator":
                return (n for n in range(3))
            case "awaitable":
                return later.fn(3)
            case "unstorable":
                return object()

    ways = ["stops", "exits", "dead", "child", "child of a failure", "generator", "awaitable", "unstorable"]
    found = []
    for burst in (impl.burst, lambda *_: 0):
        monkeypatch.setattr(fastpath, "burst", burst)
        worker = drive(app)
        ids = [worker.job("low", {"n": n}, keep_result=n % 2 == 0) for n in range(300)]
        ids += [worker.job(("typed", "later", "nobody")[n % 3], args=(n,)) for n in range(60)]
        ids += [worker.job("odd", {"way": way}, keep_result=keep) for way in ways for keep in (True, False)]
        replies = [worker.reply(id) | {"took": 0} for id in ids]
        found.append([reply | ({"delay": 0} if "delay" in reply else {}) for reply in replies])
    assert found[0] == found[1]


@pytest.mark.parametrize("impl", [NATIVE, _fastpath_py], ids=["c", "py"])
def test_a_job_among_many_is_cancelled_and_interrupted(
    app: Forge, drive: Drive, gate: Gate, impl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fastpath, "burst", impl.burst)

    @app.handler("noop")
    def noop(ctx: Context, payload: Any) -> None:
        pass

    @app.handler("patient")
    def patient(ctx: Context, payload: Any) -> None:
        gate.begun(payload)
        gate.wait(ctx if payload == "asks" else None)
        ctx.raise_if_cancelled()

    worker = drive(app)
    for way in ("asks", "deaf"):
        before = [worker.job("noop", {}) for _ in range(100)]
        stuck = worker.job("patient", way)
        after = [worker.job("noop", {}) for _ in range(100)]
        gate.until_begun(way)
        assert {worker.reply(id)["status"] for id in before} == {"ok"}, "none waits for the long one"
        worker.order("cancel", id=stuck)
        if way == "deaf":
            worker.order("interrupt", id=stuck)
        assert worker.reply(stuck)["status"] == "cancelled"
        assert {worker.reply(id)["status"] for id in after} == {"ok"}


def test_handlers_with_hooks_around_them_are_not_for_it() -> None:
    child = importlib.import_module("forge.worker.child")
    app = Forge("sqlite:///unused.db")
    app.handler("plain")(lambda ctx, payload: None)

    @app.task(name="later")
    async def later() -> None: ...

    tasks: dict[str, Handler] = dict(app.tasks)
    assert list(child._plain(tasks)) == ["plain"]
    app._hooks.after.append(lambda ctx, outcome: None)
    assert child._plain(tasks) == {}
