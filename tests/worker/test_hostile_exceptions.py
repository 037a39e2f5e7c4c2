"""Exceptions that do something when they are looked at, or that end an event loop: their own job fails, in words."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from forge import Context, Forge, Middleware
from forge.inline import execute
from forge.job import Failed
from tests.worker.conftest import Drive, Gate
from tests.worker.test_inline import claim, raises, run


class Untrue(Exception):
    """Asked whether it is true it ends the process, as an empty `__len__` of a library's own error may."""

    def __bool__(self) -> bool:
        raise SystemExit(3)


class Lengthy(Failed):
    def __len__(self) -> int:
        raise SystemExit(3)


def broken(attempt: int) -> float:
    raise SystemExit(attempt)


@pytest.mark.parametrize("kind", [Untrue, Lengthy])
def test_nothing_asks_an_exception_whether_it_is_true(kind: type[Exception]) -> None:
    ending = run(raises(kind("x")), backoff=broken)
    assert isinstance(ending.outcome, Failed)
    assert ending.outcome.message.endswith("x (and its backoff failed: SystemExit: 2)")


def test_a_hook_may_raise_it_too() -> None:
    app = Forge("sqlite:///unused.db")

    class Spoil(Middleware):
        def after_job(self, ctx: Context, outcome: Any) -> None:  # noqa: ARG002
            raise Untrue("x")

    app.add_middleware(Spoil())
    task: Any = app.task(name="k")(raises(Failed("x")))
    ending = execute(claim(), {"k": task._handler})
    assert isinstance(ending.outcome, Failed) and ending.outcome.message == "x"


def test_an_ending_that_cannot_be_worked_out_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last net: whatever goes wrong there, no job stays without an end."""
    monkeypatch.setattr("forge.worker.outcomes.traceback_of", raises(SystemExit("no words")))
    ending = run(raises(ValueError("x")))
    assert isinstance(ending.outcome, Failed) and ending.outcome.message


@pytest.mark.parametrize("worker", ["process", "threads", "async"])
def test_a_worker_lives_through_them_in_every_way_it_runs_jobs(drive: Drive, app: Forge, worker: str) -> None:
    app.task(name="called", backoff=broken)(raises(Untrue("x")))

    @app.task(name="awaited", backoff=broken)
    async def awaited() -> None:
        raise Untrue("x")

    app.task(name="good")(lambda: 1)
    driven = drive(app, worker=worker, concurrency=1)
    for kind in ("called", "awaited", "called"):
        reply = driven.reply(driven.job(kind))
        assert (reply["status"], reply["message"]) == (
            "error",
            "Untrue: x (and its backoff failed: SystemExit: 2)",
        )
    assert driven.reply(driven.job("good"))["result"] == 1


async def leave() -> None:
    sys.exit(5)


async def in_a_task() -> None:
    await asyncio.gather(leave())


async def in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(leave())


async def in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(sys.exit)
    await asyncio.sleep(0.01)


async def stopping_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)


WAYS = [(worker, way) for worker in ("process", "threads", "async") for way in (in_a_task, in_a_group, in_a_callback)]


@pytest.mark.parametrize(
    ("worker", "way"), [*WAYS, ("async", stopping_the_loop)], ids=lambda value: getattr(value, "__name__", value)
)
def test_who_leaves_the_event_loop_takes_nobody_along(
    drive: Drive, app: Forge, gate: Gate, worker: str, way: Callable[[], Any]
) -> None:
    app.task(name="leaves")(way)

    @app.task(name="stays")
    async def stays() -> str:
        gate.begun()
        await asyncio.to_thread(gate.wait)
        return "stayed"

    driven = drive(app, worker=worker, concurrency=1 if worker == "process" else 3)
    beside = None
    if worker != "process":
        beside = driven.job("stays")
        gate.until_begun()
    reply = driven.reply(driven.job("leaves"))
    if way in (in_a_task, in_a_group):
        assert reply["status"] == "error" and "SystemExit" in reply["message"] + reply["traceback"]
    else:
        assert reply["status"] == "ok"
    gate.open()
    for each in (beside, driven.job("stays")):
        assert each is None or driven.reply(each)["result"] == "stayed"
    driven.order("drain")
    assert driven.wait() == 0


def test_a_loop_that_cannot_run_fails_the_job(drive: Drive, app: Forge) -> None:
    @app.task(name="leaves")
    def leaves() -> None:
        asyncio._set_running_loop(asyncio.new_event_loop())

    @app.task(name="awaited")
    async def awaited() -> None: ...

    driven = drive(app)
    driven.reply(driven.job("leaves"))
    reply = driven.reply(driven.job("awaited"))
    assert (reply["status"], reply["message"].split(":")[0]) == ("error", "RuntimeError")
