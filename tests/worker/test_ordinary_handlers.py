"""What ordinary code in handlers takes for granted: work is done before it is called done, and no job sees what another
has set in a context variable."""

from __future__ import annotations

import asyncio
import functools
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from forge import ConfigError, Context, Forge, Middleware, UsageError, _fastpath_py, fastpath, testing
from forge.logs import current_job
from tests.worker.conftest import Drive, Gate

WORKERS = [
    pytest.param({"worker": "process"}, id="process"),
    pytest.param({"worker": "threads", "concurrency": 2}, id="threads"),
    pytest.param({"worker": "async", "concurrency": 2}, id="async"),
]

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
started: ContextVar[str] = ContextVar("started", default="no hook")
awaited: ContextVar[str] = ContextVar("awaited", default="no hook")


def logged(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as they are written every day."""

    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return inner


# -- context variables ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", WORKERS)
def test_a_job_sees_no_context_variable_of_the_one_before(app: Forge, drive: Drive, settings: dict[str, Any]) -> None:
    def swap(ctx: Context, payload: Any) -> Any:
        found = tenant.get()
        tenant.set(payload)
        return found

    app.handler("def")(swap)

    @app.handler("async")
    async def aswap(ctx: Context, payload: Any) -> Any:
        return swap(ctx, payload)

    @app.handler("fails")
    def fails(ctx: Context, payload: Any) -> Any:
        tenant.set(payload)
        raise ValueError

    worker = drive(app, **settings)
    kinds = ["def"] * 20 + ["async", "fails"] * 3 + ["def", "async"] * 10
    ids = [worker.job(kind, f"tenant {n}") for n, kind in enumerate(kinds)]
    found = [worker.reply(id).get("result") for id in ids]
    assert found == [None if kind == "fails" else "nobody" for kind in kinds]


@pytest.mark.parametrize("impl", [importlib.import_module("forge._fastpath"), _fastpath_py], ids=["c", "py"])
def test_nor_in_a_burst_of_jobs_whose_results_nobody_keeps(
    app: Forge, drive: Drive, tmp_path: Path, impl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fastpath, "burst", impl.burst)

    @app.handler("swap")
    def swap(ctx: Context, payload: Any) -> None:
        assert current_job.get() is ctx
        with (tmp_path / "found").open("a") as file:
            file.write(f"{tenant.get()}\n")
        tenant.set("somebody")

    worker = drive(app)
    ids = [worker.job("swap", {}, keep_result=False) for _ in range(200)]
    assert {worker.reply(id)["status"] for id in ids} == {"ok"}
    assert (tmp_path / "found").read_text().split() == ["nobody"] * 200


@pytest.mark.parametrize("settings", WORKERS)
def test_every_job_sees_what_start_hooks_have_set(app: Forge, drive: Drive, settings: dict[str, Any]) -> None:
    app.on_worker_start(lambda: started.set("by a def"))

    @app.on_worker_start
    @logged
    async def start() -> None:
        awaited.set("by an async def")

    @app.handler("def")
    def look(ctx: Context, payload: Any) -> Any:
        return [started.get(), awaited.get()]

    @app.handler("async")
    async def alook(ctx: Context, payload: Any) -> Any:
        return look(ctx, payload)

    worker = drive(app, **settings)
    ids = [worker.job(kind, {}) for kind in ("def", "async", "def", "async")]
    assert [worker.reply(id)["result"] for id in ids] == [["by a def", "by an async def"]] * 4


def test_jobs_of_a_test_have_their_own_context_too(tmp_path: Path) -> None:
    app = Forge("sqlite:///unused.db")
    seen = []

    @app.task
    def look() -> None:
        seen.append(tenant.get())
        tenant.set("somebody")

    with testing.inline(app):
        look.enqueue()
        look.enqueue()
    assert seen == ["nobody", "nobody"] and tenant.get() == "nobody"


# -- what can be awaited is awaited --------------------------------------------------------------------------------


class Doer:
    """Its objects can be called."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __call__(self, ctx: Context, payload: Any) -> str:  # noqa: ARG002 (as a handler is called)
        await asyncio.sleep(0)
        with self._path.open("a") as file:
            file.write(f"{payload}\n")
        return f"did {payload}"


class Promise:
    """Can be awaited, and is no coroutine."""

    def __init__(self, work: Awaitable[str]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, Any, str]:
        return self._work.__await__()


def register_awaitables(app: Forge, path: Path) -> list[str]:
    """A handler of every sort that returns something to await, which then appends its kind to the file."""
    do = Doer(path)

    async def work(ctx: Context, payload: Any) -> str:
        return await do(ctx, payload)

    async def twice(ctx: Context, payload: Any) -> Any:
        return work(ctx, payload)  # an await is missing

    ways: dict[str, Callable[..., Any]] = {
        "decorated": logged(work),
        "partial": functools.partial(logged(work)),
        "object": do,
        "decorated object": functools.partial(do),
        "lambda": lambda ctx, payload: work(ctx, payload),
        "promise": lambda ctx, payload: Promise(work(ctx, payload)),
        "twice": twice,
    }
    for kind, fn in ways.items():
        app.handler(kind)(fn)
    return list(ways)


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize("settings", WORKERS)
def test_what_a_handler_leaves_to_be_awaited_is_awaited(
    app: Forge, drive: Drive, tmp_path: Path, settings: dict[str, Any], keep: bool
) -> None:
    kinds = register_awaitables(app, tmp_path / "done") * 3
    worker = drive(app, **settings)
    replies = [worker.reply(id) for id in [worker.job(kind, kind, keep_result=keep) for kind in kinds]]
    assert [reply["status"] for reply in replies] == ["ok"] * len(kinds)
    assert [reply.get("result") for reply in replies] == [f"did {kind}" if keep else None for kind in kinds]
    assert sorted((tmp_path / "done").read_text().splitlines()) == sorted(kinds)


def test_also_around_hooks_and_in_a_test(tmp_path: Path) -> None:
    app = Forge("sqlite:///unused.db")
    seen = []

    class Around(Middleware):
        @contextmanager
        def around_job(self, ctx: Context) -> Iterator[None]:  # noqa: ARG002 (the same)
            yield
            seen.append((tmp_path / "done").read_text().splitlines()[-1])

    app.add_middleware(Around())
    kinds = register_awaitables(app, tmp_path / "done")
    with testing.inline(app, raises=True):
        for kind in kinds:
            app.enqueue(kind, kind)
    assert seen == kinds, "the work was done within the hook"


@pytest.mark.parametrize("settings", WORKERS)
def test_it_can_be_cancelled_and_has_the_jobs_time_only(
    app: Forge, drive: Drive, gate: Gate, settings: dict[str, Any]
) -> None:
    @app.handler("waits")
    @logged
    async def waits(ctx: Context, payload: Any) -> None:
        gate.begun(payload)
        await asyncio.Event().wait()

    @app.handler("noop")
    def noop(ctx: Context, payload: Any) -> None:
        pass

    worker = drive(app, **settings)
    for n in range(2):  # the second one has begun in a burst
        ids = [worker.job("noop", {}) for _ in range(n * 20)]
        stuck = worker.job("waits", n)
        gate.until_begun(n)
        assert {worker.reply(id)["status"] for id in ids} <= {"ok"}
        worker.order("cancel", id=stuck)
        assert worker.reply(stuck)["status"] == "cancelled"
    late = worker.reply(worker.job("waits", "late", timeout=1))
    assert (late["status"], late["message"]) == ("error", "timeout after 1 s")
    assert worker.reply(worker.job("noop", {}))["status"] == "ok"


def test_on_an_event_loop_it_is_awaited_where_async_handlers_run(app: Forge, drive: Drive) -> None:
    async def where(ctx: Context, payload: Any) -> int:
        return id(asyncio.get_running_loop())

    app.handler("async")(where)
    app.handler("decorated")(logged(where))
    worker = drive(app, worker="async", concurrency=3)
    replies = [worker.reply(worker.job(kind, {})) for kind in ("async", "decorated", "decorated")]
    assert len({reply["result"] for reply in replies}) == 1


def test_a_loop_that_a_handler_closes_or_stops_costs_the_next_job_nothing(app: Forge, drive: Drive) -> None:
    @app.handler("close")
    def close(ctx: Context, payload: Any) -> None:
        asyncio.get_event_loop().close()

    @app.handler("stop")
    async def stop(ctx: Context, payload: Any) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(3600)

    @app.handler("async")
    async def fine(ctx: Context, payload: Any) -> str:
        return "fine"

    worker = drive(app)
    assert worker.reply(worker.job("async", {}))["result"] == "fine"
    for kind, status in (("close", "ok"), ("stop", "error")):
        ended, after = worker.job(kind, {}), worker.job("async", {})
        assert worker.reply(ended)["status"] == status
        assert worker.reply(after)["result"] == "fine"
    worker.order("drain")
    assert worker.wait() == 0


# -- generators ----------------------------------------------------------------------------------------------------


def steps(*_: Any) -> Iterator[int]:
    yield 1


async def asteps(*_: Any) -> AsyncIterator[int]:
    yield 1


class Steps:
    """Its objects are called as a generator function is."""

    def __call__(self, *_: Any) -> Iterator[int]:
        yield 1


GENERATORS: dict[str, Callable[..., Any]] = {
    "plain": steps,
    "async": asteps,
    "decorated": logged(logged(steps)),
    "async decorated": logged(asteps),
    "partial": functools.partial(steps, 1),
    "decorated partial": functools.partial(logged(steps), 1),
    "object": Steps(),
    "method": Steps().__call__,
    "context manager": contextmanager(steps),
}


@pytest.mark.parametrize("way", GENERATORS)
def test_a_generator_function_is_refused_when_it_is_registered(app: Forge, way: str) -> None:
    fn = GENERATORS[way]
    ways: list[Callable[[], Any]] = [
        lambda: app.handler("the.kind")(fn),
        lambda: app.task(name="the.kind")(fn),
        lambda: app.on_worker_start(fn),
        lambda: app.on_worker_stop(fn),
    ]
    for register in ways:
        with pytest.raises(
            UsageError, match=r"^(the\.kind|on_worker_st..?.?.?): .* is a generator function, "
        ) as found:
            register()
        assert "\n" not in str(found.value)
    assert not app.tasks and not app._starting and not app._stopping


@pytest.mark.parametrize("hook", ["before_enqueue", "before_job", "after_job"])
def test_a_hook_that_a_call_would_not_run_is_refused(app: Forge, hook: str) -> None:
    async def later(*_: Any) -> None:
        pass

    for fn in (later, steps, asteps):
        with pytest.raises(ConfigError, match=r"must be a plain function"):
            app.add_middleware(type("Lazy", (Middleware,), {hook: fn})())


def test_what_runs_one_to_its_end_is_not_refused(app: Forge) -> None:
    @app.handler("runs it")
    def runs(ctx: Context, payload: Any) -> list[int]:
        return list(steps())

    app.handler("a class")(dict)
    assert set(app.tasks) == {"runs it", "a class"}


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize("settings", WORKERS)
def test_a_job_whose_handler_returns_a_generator_is_dead_at_once(
    app: Forge, drive: Drive, settings: dict[str, Any], keep: bool
) -> None:
    app.handler("plain")(lambda ctx, payload: steps())
    app.handler("async")(lambda ctx, payload: asteps())

    @app.handler("awaited")
    async def returns(ctx: Context, payload: Any) -> Any:
        return steps()

    worker = drive(app, **settings)
    for kind, name in {"plain": "generator", "async": "async_generator", "awaited": "generator"}.items():
        for _ in range(2):
            reply = worker.reply(worker.job(kind, {}, keep_result=keep))
            assert reply["status"] == "dead"
            assert reply["message"] == (
                f"its handler returned a generator ({name}), of which nothing was run; "
                "run it to its end in the handler, with a for loop or list()"
            )
