# ruff: noqa: ARG002 (a hook is given what it is given)
"""Hooks of workers and around jobs, recycling, and the kinds that every worker knows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from forge import Context, Dead, Done, Failed, Forge, InvalidJob, Middleware, Throttled
from forge.app.registry import Handler
from forge.errors import ConfigError
from forge.inline import drain, execute
from forge.job import NewJob, Outcome
from forge.worker.builtin import BUILTIN
from forge.worker.recycling import rss
from tests.worker.conftest import Drive
from tests.worker.test_inline import ID, claim
from tests.worker.test_orders import KINDS

with_each_kind = pytest.mark.parametrize("settings", KINDS, ids=lambda kind: str(kind["worker"]))


def messages(log_file: Path) -> list[str]:
    return [orjson.loads(line)["message"] for line in log_file.read_text().splitlines()]


# -- of a worker -----------------------------------------------------------------------------------------------


@with_each_kind
def test_start_and_stop_hooks_run_in_the_worker_around_its_jobs(
    app: Forge, drive: Drive, settings: dict[str, Any], tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    held: dict[str, Any] = {}

    def note(word: str) -> None:
        with notes.open("a") as file:
            file.write(f"{word}\n")

    @app.on_worker_start
    def connect() -> None:
        held["connection"] = "open"
        note("start")

    @app.on_worker_start
    async def connect_too() -> None:
        held["loop"] = asyncio.get_running_loop()
        note("async start")

    app.on_worker_stop(lambda: note("stop"))

    @app.on_worker_stop
    async def disconnect() -> None:
        note("async stop")

    @app.task(name="k")
    async def task() -> list[Any]:
        note("job")
        return [held["connection"], held["loop"] is asyncio.get_running_loop()]

    worker = drive(app, **settings)
    connection, same_loop = worker.reply(worker.job("k"))["result"]
    assert connection == "open"
    assert same_loop == (settings["worker"] != "threads"), "a thread has a loop of its own"
    worker.order("drain")
    assert worker.wait() == 0
    assert notes.read_text().split("\n") == ["start", "async start", "job", "async stop", "stop", ""]
    assert not held, "nothing of it happened here"


def test_a_worker_whose_start_hook_fails_does_not_begin(app: Forge, drive: Drive, log_file: Path) -> None:
    @app.on_worker_start
    def connect() -> None:
        raise ConnectionError("no route")

    worker = drive(app, hello=False)
    assert worker.wait() == 78
    (said,) = messages(log_file)
    assert said.endswith("connect failed: ConnectionError: no route")


def test_a_stop_hook_that_fails_is_logged_and_the_others_run(app: Forge, drive: Drive, log_file: Path) -> None:
    import logging

    app.on_worker_stop(lambda: logging.getLogger("x").info("the other"))

    @app.on_worker_stop
    def disconnect() -> None:
        raise OSError("gone")

    worker = drive(app)
    worker.order("drain")
    assert worker.wait() == 0
    first, second = messages(log_file)
    assert first.endswith("disconnect failed")
    assert second == "the other"


# -- around a job ----------------------------------------------------------------------------------------------


class Notes(Middleware):
    """Writes down what is called."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name, self._log = name, log

    @contextlib.contextmanager
    def around_job(self, ctx: Context) -> Iterator[None]:
        self._log.append(f"{self._name} in")
        try:
            yield
        finally:
            self._log.append(f"{self._name} out")

    def before_job(self, ctx: Context) -> None:
        self._log.append(f"{self._name} before {ctx.kind}")

    def after_job(self, ctx: Context, outcome: Outcome) -> None:
        self._log.append(f"{self._name} after {type(outcome).__name__}")


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_hooks_are_called_around_the_handler_outermost_first(app: Forge, is_async: bool, fails: bool) -> None:
    log: list[str] = []
    app.add_middleware(Notes("a", log))
    app.add_middleware(Notes("b", log))

    def run() -> None:
        log.append("run")
        if fails:
            raise ValueError("x")

    async def arun() -> None:
        run()

    app.task(name="k")(arun if is_async else run)
    execute(claim("k"), app.tasks)
    end = "Failed" if fails else "Done"
    assert log == [
        "a in", "b in", "a before k", "b before k", "run", "b out", "a out", f"b after {end}", f"a after {end}",
    ]  # fmt: skip


def test_a_hook_before_the_job_can_end_it(app: Forge) -> None:
    class Refuse(Middleware):
        def before_job(self, ctx: Context) -> None:
            raise Dead("not today")

    log: list[str] = []
    app.add_middleware(Notes("a", log))
    app.add_middleware(Refuse())
    app.task(name="k")(lambda: log.append("run"))
    ending = execute(claim("k"), app.tasks)
    assert isinstance(ending.outcome, Dead)
    assert log == ["a in", "a before k", "a out", "a after Dead"]


def test_a_hook_after_the_job_that_fails_is_logged_only(app: Forge, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Middleware):
        def after_job(self, ctx: Context, outcome: Outcome) -> None:
            raise RuntimeError("broken")

    app.add_middleware(Broken())
    app.task(name="k")(lambda: 5)
    ending = execute(claim("k"), app.tasks)
    assert isinstance(ending.outcome, Done)
    assert ending.result == b"5"
    assert "a hook after it failed" in caplog.text


def test_the_surroundings_may_swallow_an_exception_and_the_job_is_done(app: Forge) -> None:
    class Forgive(Middleware):
        def around_job(self, ctx: Context) -> contextlib.AbstractContextManager[object]:
            return contextlib.suppress(KeyError)

    app.add_middleware(Forgive())

    @app.task(name="k")
    def task() -> None:
        raise KeyError("x")

    assert isinstance(execute(claim("k"), app.tasks).outcome, Done)


def test_every_enqueue_goes_through_the_hook_before_it(url: str) -> None:
    class Tag(Middleware):
        def before_enqueue(self, job: NewJob) -> NewJob:
            if job.kind == "refused":
                raise InvalidJob("not here")
            return job._replace(tags=(*job.tags, "seen"))

    with Forge(url) as app:
        app.add_middleware(Tag())

        @app.task(name="k", keep_result=False)
        def task(ctx: Context, n: int) -> None:
            if n == 1:
                ctx.enqueue(task, 10)
                ctx.enqueue_now(task, 11)

        task.enqueue(1)
        task.enqueue_many([(2,), (3,)])
        app.enqueue("k", {"args": [4], "kwargs": {}})
        asyncio.run(task.aenqueue(5))
        with pytest.raises(InvalidJob, match="not here"):
            app.enqueue("refused", None)
        drain(app)
        jobs = list(app.jobs())
        assert sorted(job.payload["args"][0] for job in jobs) == [1, 2, 3, 4, 5, 10, 11]
        assert {job.tags for job in jobs} == {("seen",)}


def test_what_is_no_middleware_is_refused(app: Forge) -> None:
    with pytest.raises(ConfigError, match=r"must be an object of a subclass of forge\.Middleware"):
        app.add_middleware(Notes)  # type: ignore[arg-type]


# -- recycling -------------------------------------------------------------------------------------------------


@with_each_kind
def test_after_max_jobs_a_worker_gives_back_the_rest_and_waits_to_be_told_to_go(
    app: Forge, drive: Drive, settings: dict[str, Any]
) -> None:
    app.task(name="k")(lambda: None)
    worker = drive(app, max_jobs=2, **settings)
    for _ in range(2):
        assert worker.reply(worker.job("k"))["status"] == "ok"
    assert worker.line(say="leaving")["why"] == "2 jobs"
    assert worker.reply(worker.job("k"))["status"] == "released"
    worker.order("drain")
    assert worker.wait() == 0


def test_what_was_sent_ahead_comes_back_when_it_leaves(app: Forge, drive: Drive) -> None:
    app.task(name="k")(lambda: None)
    worker = drive(app, max_jobs=1)
    ids = [worker.job("k") for _ in range(20)]
    assert sorted(worker.reply(id)["status"] for id in ids) == ["ok"] + ["released"] * 19


def test_a_worker_that_has_grown_leaves_between_jobs(app: Forge, drive: Drive) -> None:
    kept: list[bytes] = []

    @app.task(name="leak")
    def leak(size: int) -> None:
        kept.append(bytes(bytearray(b"x") * size))

    worker = drive(app, max_rss=rss() + 60_000_000)
    assert worker.reply(worker.job("leak", args=(1000,)))["status"] == "ok"
    assert worker.reply(worker.job("leak", args=(100_000_000,)))["status"] == "ok"
    assert worker.line(say="leaving")["why"].endswith(" MB of memory")


# -- built in --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "outcome"),
    [
        ({"sleep_ms": 0}, Done({"sleep_ms": 0})),
        ({"sleep_ms": 0, "fail": True}, Failed("demo-fail")),
        ({"sleep_ms": 0, "throttle_ms": 1500}, Throttled(1.5)),
    ],
)
def test_noop_echo_does_as_it_is_told(payload: Any, outcome: Outcome) -> None:
    ending = execute(claim("noop_echo", payload), BUILTIN)
    assert (type(ending.outcome), ending.outcome.__dict__) == (type(outcome), outcome.__dict__)


def test_simulated_kinds_fail_on_their_first_attempt_only() -> None:
    first = execute(claim("resize_image", {}, attempt=1), BUILTIN)
    again = execute(claim("resize_image", {}, attempt=2), BUILTIN)
    assert isinstance(again.outcome, Done)
    assert isinstance(first.outcome, (Done, Failed))
    assert set(BUILTIN) == {"noop_echo", "send_email", "resize_image", "summarize_text", "webhook_delivery"}


def test_a_kind_of_the_users_own_takes_the_place_of_a_built_in_one(url: str) -> None:
    with Forge(url) as app:
        app.handler("noop_echo", keep_result=True)(lambda ctx, payload: "mine")
        mine = app.enqueue("noop_echo", {})
        theirs = app.enqueue("summarize_text", {"text": "x"}, id=ID, max_attempts=3)
        drain(app)
        assert mine.result(timeout=0) == "mine"
        assert theirs.status in ("done", "failed")
        handlers: dict[str, Handler] = {**BUILTIN, **app.tasks}
        assert handlers["noop_echo"].app is app
