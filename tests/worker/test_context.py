"""What a handler knows of its job and can say while it runs, in a real worker and inline."""

from __future__ import annotations

import asyncio
import decimal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pytest

from forge import Context, Failed, Forge, InvalidJob, Status, UsageError, current_job
from forge.inline import drain, execute
from tests.worker.conftest import Drive
from tests.worker.test_inline import claim
from tests.worker.test_orders import KINDS

ID = "0198c0de000070008000000000000009"


@pytest.fixture
def stored(url: str) -> Iterator[Forge]:
    with Forge(url) as opened:
        yield opened


def run(app: Forge, kind: str, **changes: Any) -> Any:
    return execute(claim(kind, **changes), app.tasks)


# -- what it is told -------------------------------------------------------------------------------------------


def test_a_deadline_is_a_moment_for_people_and_seconds_for_the_handler(app: Forge) -> None:
    @app.task(name="k")
    def task(ctx: Context) -> None:
        assert 59 < ctx.remaining <= 60
        assert timedelta(0) < ctx.deadline - datetime.now(UTC) <= timedelta(seconds=60)
        assert not ctx.cancelled
        ctx.raise_if_cancelled()

    assert run(app, "k").traceback is None


def test_a_task_gets_the_context_if_its_first_parameter_is_annotated_so(app: Forge) -> None:
    @app.task(name="k")
    def task(ctx: Context, a: int, *, b: int = 2) -> list[Any]:
        return [ctx.kind, ctx.attempt, a, b]

    @app.task(name="quoted")
    async def quoted(ctx: "Context", a: int) -> list[Any]:  # noqa: UP037 (as it is without the __future__)
        return [ctx.kind, a]

    assert run(app, "k", payload={"args": [5], "kwargs": {"b": 3}}).result == b'["k",2,5,3]'
    assert run(app, "quoted", payload={"args": [5], "kwargs": {}}).result == b'["quoted",5]'


def test_who_enqueues_such_a_task_does_not_pass_the_context(stored: Forge) -> None:
    @stored.task(dedupe="k:{a}")
    def task(ctx: Context, a: int) -> str:
        return f"{ctx.queue} {a}"

    job = task.enqueue(5)
    assert job.job().payload == {"args": [5], "kwargs": {}}
    assert job.job().dedupe_key == "k:5"
    with pytest.raises(InvalidJob, match=r"too many positional arguments \(2\); it takes \(a\)"):
        task.enqueue(1, 2)  # type: ignore[call-arg]
    drain(stored)
    assert job.result(timeout=0) == "default 5"


def test_a_first_parameter_of_another_type_is_an_argument_like_any_other(app: Forge) -> None:
    @app.task(name="k")
    def task(ctx: decimal.Context | dict[str, int], b: int = 0) -> Any:
        return ctx

    assert not task._handler.ctx_first
    assert run(app, "k", payload={"args": [{"x": 1}], "kwargs": {}}).result == b'{"x":1}'


def test_a_plain_call_of_such_a_task_takes_the_context_of_the_job_it_is_made_in(app: Forge) -> None:
    @app.task(name="inner")
    def inner(ctx: Context, a: int) -> str:
        return f"{ctx.kind} {a}"

    @app.task(name="outer")
    def outer() -> str:
        return inner(7)

    assert run(app, "outer").result == b'"outer 7"'
    with pytest.raises(UsageError, match=r"inner takes the context of a job, and none runs here"):
        inner(7)


def test_current_job_is_known_in_whatever_a_handler_calls(app: Forge) -> None:
    @app.task(name="sync")
    def sync() -> str:
        return current_job().kind

    @app.task(name="async")
    async def awaited() -> list[str]:
        async def kind() -> str:
            return current_job().kind

        return [await asyncio.create_task(kind()), await asyncio.to_thread(lambda: current_job().kind)]

    assert run(app, "sync").result == b'"sync"'
    assert run(app, "async").result == b'["async","async"]'
    with pytest.raises(UsageError, match="no job runs here"):
        current_job()


def test_jobs_that_run_at_the_same_time_each_know_themselves(app: Forge, drive: Drive) -> None:
    @app.task(name="k")
    async def task(n: int) -> list[str]:
        await asyncio.sleep(0.01 * (n % 3))
        return [current_job().id.hex]

    worker = drive(app, worker="async", concurrency=10)
    ids = [worker.job("k", args=(n,)) for n in range(10)]
    assert [worker.reply(id)["result"] for id in ids] == [[id] for id in ids]


# -- jobs that commit with it ----------------------------------------------------------------------------------


def test_what_a_context_enqueues_goes_with_the_reply(app: Forge, drive: Drive) -> None:
    @app.task(name="add", queue="sums")
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="k")
    def task(ctx: Context, fail: bool) -> None:
        ctx.enqueue(add, 1, b=2)
        ctx.enqueue(add.using(delay=5, id=ID), 3, 4)
        ctx.enqueue("raw", {"x": 1}, tags=["t"])
        ctx.enqueue_many(add, [(5, 6), add.call(7, b=8)])
        handles = ctx.enqueue_many([app.job("raw", 9)])
        assert len(handles) == 1
        if fail:
            raise Failed("after all")

    worker = drive(app)
    children = worker.reply(worker.job("k", args=(False,)))["children"]
    assert [(c["kind"], c.get("queue"), c["payload"]) for c in children] == [
        ("add", "sums", {"args": [1, 2], "kwargs": {}}),
        ("add", "sums", {"args": [3, 4], "kwargs": {}}),
        ("raw", None, {"x": 1}),
        ("add", "sums", {"args": [5, 6], "kwargs": {}}),
        ("add", "sums", {"args": [7, 8], "kwargs": {}}),
        ("raw", None, 9),
    ]
    assert (children[1]["id"], children[1]["delay"], children[2]["tags"]) == (ID, 5.0, ["t"])
    assert "children" not in worker.reply(worker.job("k", args=(True,)))


def test_a_child_exists_if_and_only_if_its_parent_is_done(stored: Forge) -> None:
    @stored.task(name="child")
    def child(n: int) -> int:
        return n

    @stored.task(name="parent", max_attempts=1)
    def parent(ctx: Context, fail: bool) -> str:
        handle = ctx.enqueue(child, 7)
        if fail:
            raise ValueError("no")
        return handle.id.hex

    good, bad = parent.enqueue(False), parent.enqueue(True)
    drain(stored)
    (made,) = stored.jobs(kind="child")
    assert (made.id.hex, made.result) == (good.result(timeout=0), 7)
    assert bad.status is Status.DEAD


def test_wrong_arguments_to_a_child_fail_the_parent_where_it_enqueues(app: Forge) -> None:
    add = app.task(name="add")(lambda a, b: a + b)

    @app.task(name="k")
    def task(ctx: Context) -> None:
        with pytest.raises(InvalidJob):
            ctx.enqueue(add, 1)
        with pytest.raises(UsageError, match="takes a task or a kind first, not int"):
            ctx.enqueue(5)  # type: ignore[call-overload]
        with pytest.raises(UsageError, match="conn= is for enqueues in a transaction of yours"):
            ctx.enqueue(add.using(conn=object()), 1, 2)

    assert run(app, "k").traceback is None


# -- questions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", KINDS, ids=lambda kind: str(kind["worker"]))
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_asks_the_master_and_waits_for_the_answer(
    app: Forge, drive: Drive, settings: dict[str, Any], kind: str
) -> None:
    @app.task(name="sync")
    def sync(ctx: Context) -> list[Any]:
        job = ctx.enqueue_now("raw", {"x": 1})
        permits = [ctx.rate_limit.acquire("slack"), ctx.rate_limit.acquire("slack", tokens=3)]
        ctx.rate_limit.drain("gh")
        return [job.id.hex, job.deduped, [bool(p) for p in permits], [p.retry_after for p in permits]]

    @app.task(name="async")
    async def awaited(ctx: Context) -> list[Any]:
        job = await ctx.aenqueue_now("raw", {"x": 1})
        permits = [await ctx.rate_limit.aacquire("slack"), await ctx.rate_limit.aacquire("slack", tokens=3)]
        await ctx.rate_limit.adrain("gh")
        return [job.id.hex, job.deduped, [bool(p) for p in permits], [p.retry_after for p in permits]]

    worker = drive(app, **settings)
    id = worker.job(kind)
    asked = worker.line(ask=None)
    assert (asked["for"], asked["id"], asked["jobs"][0]["payload"]) == ("enqueue", id, {"x": 1})
    worker.answer(asked["ask"], receipts=[[False, ID]])
    asked = worker.line(ask=None)
    assert (asked["for"], asked["scope"], asked["tokens"], asked["id"]) == ("acquire", "slack", 1, id)
    worker.answer(asked["ask"], granted=True)
    worker.answer(worker.line(ask=None)["ask"], retry_after=2.5)
    asked = worker.line(ask=None)
    assert (asked["for"], asked["scope"]) == ("drain", "gh")
    worker.answer(asked["ask"])
    assert worker.reply(id)["result"] == [ID, True, [True, False], [None, 2.5]]


def test_a_question_that_cannot_be_answered_raises(app: Forge, drive: Drive) -> None:
    @app.task(name="k", backoff="none")
    def task(ctx: Context) -> None:
        ctx.enqueue_now("raw", 1)

    worker = drive(app)
    id = worker.job("k")
    worker.answer(worker.line(ask=None)["ask"], error="the database is away")
    assert worker.reply(id)["message"] == "ForgeError: the database is away"


def test_a_budget_that_is_empty_can_end_the_job_as_throttled(app: Forge, drive: Drive) -> None:
    @app.task(name="k")
    def task(ctx: Context) -> None:
        ctx.rate_limit.acquire("slack").raise_if_throttled()

    worker = drive(app)
    id = worker.job("k")
    worker.answer(worker.line(ask=None)["ask"], retry_after=12.0)
    reply = worker.reply(id)
    assert (reply["status"], reply["retry_after"]) == ("throttled", 12.0)


def test_an_async_handler_that_waits_for_an_answer_does_not_hold_up_others(app: Forge, drive: Drive) -> None:
    @app.task(name="asks")
    async def asks(ctx: Context) -> bool:
        return bool(await ctx.rate_limit.aacquire("slack"))

    @app.task(name="quick")
    async def quick() -> str:
        return "ran"

    worker = drive(app, worker="async", concurrency=2)
    first = worker.job("asks")
    asked = worker.line(ask=None)
    assert worker.reply(worker.job("quick"))["result"] == "ran"
    worker.answer(asked["ask"], granted=True)
    assert worker.reply(first)["result"] is True


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda ctx: ctx.rate_limit.acquire("slack", 0), "tokens must be a whole number above 0, not 0"),
        (lambda ctx: ctx.rate_limit.acquire("a,b"), "has a comma in it"),
        (lambda ctx: ctx.progress(101), "percent must be a number from 0 to 100, not 101"),
        (lambda ctx: ctx.progress(float("nan")), "percent must be a number from 0 to 100, not nan"),
        (lambda ctx: ctx.progress("5"), "percent must be a number from 0 to 100, not '5'"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_limit(app: Forge, call: Any, words: str) -> None:
    app.handler("k")(lambda ctx, payload: call(ctx))
    assert words in run(app, "k").outcome.message


def test_inline_questions_are_answered_by_the_app(stored: Forge) -> None:
    @stored.task(name="k")
    def task(ctx: Context) -> list[Any]:
        job = ctx.enqueue_now("raw", {"x": 1}, queue="elsewhere")
        ctx.rate_limit.drain("slack")
        ctx.progress(50, "half")
        return [job.job().queue, bool(ctx.rate_limit.acquire("slack"))]

    job = task.enqueue()
    drain(stored)
    assert job.result(timeout=0) == ["elsewhere", True]


# -- progress and logging --------------------------------------------------------------------------------------


def test_progress_is_passed_on_but_not_more_often_than_useful(app: Forge, drive: Drive) -> None:
    @app.task(name="k")
    def task(ctx: Context) -> None:
        for n in range(100):
            ctx.progress(n, f"row {n}")
        ctx.progress(100)

    worker = drive(app)
    id = worker.job("k")
    assert worker.line(say="progress") == {
        "say": "progress", "id": id, "percent": 0, "message": "row 0",
    }  # fmt: skip
    worker.line(say="progress", percent=100)
    worker.reply(id)
    assert len(worker.seen) < 50


def test_log_records_carry_the_job_whoever_emits_them(app: Forge, drive: Drive, log_file: Path) -> None:
    @app.task(name="k")
    def task(ctx: Context) -> None:
        import logging

        logging.getLogger("library").warning("by contextvar")
        ctx.log.info("by ctx", extra={"order": 7})
        thread = threading.Thread(target=lambda: ctx.log.info("in a thread"))
        thread.start()
        thread.join()
        try:
            raise ValueError("no luck")
        except ValueError:
            ctx.log.exception("caught")

    worker = drive(app)
    id = str(UUID(worker.job("k")))
    worker.reply(UUID(id).hex)
    lines = [orjson.loads(line) for line in log_file.read_text().splitlines()]
    assert [line["message"] for line in lines] == ["by contextvar", "by ctx", "in a thread", "caught"]
    for line in lines:
        assert (line["job_id"], line["kind"], line["queue"], line["attempt"]) == (id, "k", "mail", 2)
        assert line["who"] == "mail/3"
    assert lines[1]["order"] == 7
    assert lines[1]["logger"] == "k"
    assert lines[3]["exception"].endswith("ValueError: no luck")
