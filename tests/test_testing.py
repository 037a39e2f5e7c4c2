"""What users test with: the helpers of `forge.testing`. The pytest plugin is in test_testing_plugin.py."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from forge import Backoff, Forge, InvalidJob, Snooze, Throttled, UsageError
from forge.app.lazy_storage import lend
from forge.errors import JobIsDead
from forge.testing import (
    Summary,
    advance,
    assert_enqueued,
    drain,
    inline,
    refute_enqueued,
    temporary_database,
)
from forge.testing.database import open_for_test, url_in

own = Forge("postgresql://nobody@127.0.0.1:1/production", router={"routed.": "elsewhere"})  # to open it would fail
tries: list[str] = []


@own.task(name="add")
def add(a: int, b: int = 1) -> int:
    return a + b


@own.task(name="twice", queue="second")
def twice(a: int) -> int:
    return add.enqueue(a, a).result(timeout=5)


@own.task(name="aadd")
async def aadd(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@own.task(name="flaky", max_attempts=3, backoff=Backoff("fixed", base=3600))
def flaky(times: int = 99) -> str:
    tries.append("flaky")
    if len(tries) <= times:
        raise ValueError("no luck")
    return "luck"


@own.task(name="limited", queue="limited")
def limited() -> None:
    tries.append("limited")
    if len(tries) == 1:
        raise Throttled


@own.task(name="poll")
def poll() -> Snooze:
    return Snooze(60)


@own.task(name="chain")
def chain(n: int) -> None:
    if n:
        chain.using(queue=f"link{n}").enqueue(n - 1)


@own.handler("raw")
def raw(ctx: object, payload: object) -> None:
    """Nothing."""


@pytest.fixture
def app() -> Iterator[Forge]:
    tries.clear()
    with temporary_database(own):
        yield own


def said(error: pytest.ExceptionInfo[AssertionError]) -> list[str]:
    return str(error.value).splitlines()


def test_a_temporary_database_is_gone_afterwards_and_the_app_is_as_it_was() -> None:
    with temporary_database(own) as url:
        file = Path(url.removeprefix("sqlite:///"))
        add.enqueue(1, 2)
        own.close()
        assert len(list(own.jobs())) == 1, "closing does not lead back to the configured database"
        assert file.exists()
    assert not file.exists()
    assert own._lazy_storage.shown == "postgresql://nobody@127.0.0.1:1/production"
    assert not own._lazy_storage.is_lent


def test_an_app_that_was_in_use_is_on_its_own_database_again(sqlite_url: str) -> None:
    app = Forge(sqlite_url)
    job = app.enqueue("x", {})
    with temporary_database(app):
        assert list(app.jobs()) == []
        app.enqueue("y", {})
    assert [found.id for found in app.jobs()] == [job.id]
    app.close()


def test_a_storage_lent_to_all_serves_apps_made_meanwhile_until_the_end(tmp_path: Path) -> None:
    with open_for_test(url_in(tmp_path)) as storage:
        with lend(storage):
            made = Forge("postgresql://nobody@127.0.0.1:1/other")
            assert made.storage is own.storage is storage
            with temporary_database(own):
                assert own.storage is not storage
            assert own.storage is storage
        assert not made._lazy_storage.is_lent
        assert not own._lazy_storage.is_lent
        assert not Forge()._lazy_storage.is_lent


def test_a_database_of_ones_own_is_migrated_and_stays(empty_pg_url: str) -> None:
    with temporary_database(own, empty_pg_url):
        job = add.enqueue(2, 3)
        assert drain(own).outcomes == {"done": 1}
        assert job.result(timeout=5) == 5
        for needs_a_clock in (lambda: drain(own, later=True), lambda: advance(own, 1)):
            with pytest.raises(UsageError, match="puts the clock forward"):
                needs_a_clock()
        with pytest.raises(UsageError, match="inline needs a test database on SQLite"), inline(own):
            pass


def test_the_helpers_refuse_an_app_on_its_own_database() -> None:
    for work in (
        lambda: drain(own),
        lambda: advance(own, 1),
        lambda: assert_enqueued(own, add),
        lambda: refute_enqueued(own),
    ):
        with pytest.raises(UsageError, match=r"would work on the app's own database; use the fixture forge_app"):
            work()


def test_drain_runs_what_is_due_until_nothing_is(app: Forge) -> None:
    assert drain(app) == Summary()
    add.enqueue_many([(1, 2), (3, 4)])
    later = add.using(delay=3600).enqueue(5, 6)
    chain.enqueue(3)  # each link is in a queue that did not exist before
    summary = drain(app)
    assert (summary.ran, summary.outcomes) == (6, {"done": 6})
    assert later.status == "pending"


def test_drain_can_be_told_which_queues(app: Forge) -> None:
    add.enqueue(1, 2)
    other = add.using(queue="other").enqueue(1, 2)
    assert drain(app, queues=["default"]).ran == 1
    assert other.status == "pending"
    add.using(delay=60).enqueue(1, 2)
    assert drain(app, queues=["default"], later=True).ran == 1
    assert other.status == "pending"


def test_later_jobs_run_in_their_order_when_the_clock_is_put_forward(app: Forge) -> None:
    late, soon = add.using(delay=7200).enqueue(1, 2), flaky.using(delay=60).enqueue(2)
    assert drain(app, later=True).outcomes == {"failed": 2, "done": 2}
    assert soon.result(timeout=5) == "luck"
    ended = [late.job().finished_at, soon.job().finished_at]
    assert None not in ended
    assert ended == sorted(filter(None, ended)), "the retry an hour after the second failure came last"


def test_advance_makes_due_what_is_due_by_then(app: Forge) -> None:
    add.using(delay=3600).enqueue(1, 2)
    add.using(delay=86_400).enqueue(1, 2)
    advance(app, 3601)
    assert drain(app).ran == 1
    advance(app, timedelta(days=1))
    assert drain(app).ran == 1


def test_a_queue_that_cools_down_goes_on_later(app: Forge) -> None:
    limited.enqueue()
    limited.enqueue()
    assert drain(app).outcomes == {"throttled": 1}
    assert drain(app, later=True).outcomes == {"done": 2}


def test_what_cannot_run_here_is_left_alone(app: Forge) -> None:
    unknown = app.enqueue("unknown", {})
    paused = add.using(queue="paused").enqueue(1, 2)
    app.storage.set_queue("paused", paused=True)
    assert drain(app, later=True).outcomes == {"released": 1}
    assert unknown.job().last_error == "no handler for kind unknown"
    assert paused.status == "pending"


def test_a_task_that_goes_on_for_ever_is_stopped_and_named(app: Forge) -> None:
    add.enqueue(1, 2)
    poll.enqueue()
    with pytest.raises(AssertionError, match=r"more than 20 jobs ran \(20 of poll, 1 of add\): does one"):
        drain(app, later=True, limit=20)


def test_a_failure_is_let_out_if_asked_for_with_its_own_traceback(app: Forge) -> None:
    job = flaky.enqueue()
    with pytest.raises(ValueError, match="no luck") as error:
        drain(app, raises=True)
    assert error.traceback[-1].name == "flaky"
    assert job.status == "failed", "it was finalized all the same"


def test_inline_runs_each_job_at_its_enqueue() -> None:
    with inline(own) as app:
        assert app is own
        assert add.enqueue(2, 3).result() == 5
        assert aadd.enqueue(2, 3).result() == 5
        assert twice.enqueue(4).result() == 8
        assert add.using(delay=86_400).enqueue(1, 1).result() == 2
        assert [job.result(timeout=5) for job in add.enqueue_many([(1, 2), (3, 4)])] == [3, 7]
        assert app.enqueue("raw", {"x": 1}).status == "done"
    assert not own._lazy_storage.is_lent


def test_inline_takes_a_failing_job_to_its_end_at_once(app: Forge) -> None:
    with inline(app):
        assert flaky.enqueue(2).result() == "luck"
        tries.clear()
        job = flaky.enqueue()
        assert len(tries) == 3
        with pytest.raises(JobIsDead, match="ValueError: no luck"):
            job.result()
    with inline(app, raises=True), pytest.raises(ValueError, match="no luck"):
        flaky.enqueue()


def test_inline_uses_the_test_database_there_is_and_stops_at_its_end(app: Forge) -> None:
    waiting = add.enqueue(1, 2)
    with inline(app):
        add.enqueue(3, 4)
        assert waiting.status == "done"
    assert add.enqueue(5, 6).status == "pending"
    assert_enqueued(app, add, count=3)


def test_a_job_in_a_transaction_of_the_callers_waits_for_the_commit_and_the_next_run(app: Forge) -> None:
    conn = apsw.Connection(app.storage.url.removeprefix("sqlite:///"))
    with inline(app):
        conn.execute("begin immediate")
        job = add.using(conn=conn).enqueue(1, 2)
        conn.execute("commit")
        assert job.status == "pending"
        add.enqueue(3, 4)
        assert job.result() == 3
    conn.close()


def test_inside_an_event_loop_everything_works_the_same(app: Forge) -> None:
    async def scenario() -> None:
        waiting = await aadd.aenqueue(1, 2)
        assert drain(app).outcomes == {"done": 1}
        assert await waiting.aresult() == 3
        with inline(app):
            assert aadd.enqueue(2, 3).result() == 5
            assert await (await aadd.aenqueue(3, 4)).aresult() == 7
        flaky.enqueue()
        with pytest.raises(ValueError, match="no luck"):
            drain(app, raises=True)

    asyncio.run(scenario())


def test_assert_enqueued_answers_the_jobs_that_fit_whatever_became_of_them(app: Forge) -> None:
    first, second = add.enqueue(2, 3), add.using(queue="other", tags=["x"]).enqueue(2, b=3)
    drain(app, queues=["default"])
    assert [job.id for job in assert_enqueued(app, add, args=(2, 3), count=2)] == [first.id, second.id]
    (job,) = assert_enqueued(app, add.using(priority=3), queue="other")
    assert (job.id, job.tags) == (second.id, ("x",))
    assert_enqueued(app, "add", count=2)


def test_arguments_are_compared_as_a_call(app: Forge) -> None:
    add.enqueue(2)
    assert_enqueued(app, add, args=(2, 1))
    assert_enqueued(app, add, kwargs={"b": 1, "a": 2})
    app.enqueue("raw", {"pair": (1, 2)})
    assert_enqueued(app, "raw", payload={"pair": (1, 2)})
    refute_enqueued(app, "raw", payload={"pair": (2, 1)})
    with pytest.raises(InvalidJob, match=r"add: missing a required argument: 'a'"):
        assert_enqueued(app, add, args=())
    with pytest.raises(UsageError, match="the app has no task or handler ad; did you mean add"):
        assert_enqueued(app, "ad")
    with pytest.raises(UsageError, match="args and kwargs are those of a task"):
        assert_enqueued(app, "raw", args=(1,))


def test_a_failed_assertion_lists_what_was_enqueued_instead(app: Forge) -> None:
    with pytest.raises(AssertionError) as error:
        assert_enqueued(app, add)
    assert said(error) == ["no job was enqueued as add; nothing was enqueued at all"]
    flaky.enqueue()
    drain(app)
    app.enqueue("raw", {"x": "y" * 200})
    add.enqueue(2, b=4)
    with pytest.raises(AssertionError) as error:
        assert_enqueued(app, add, args=(2, 3), queue="mail")
    assert said(error) == [
        "no job was enqueued as add(2, 3) to queue mail; enqueued were:",
        "  add(2, 4) to queue default, pending",
        "  flaky() to queue default, failed after 1 of 3 attempts: ValueError: no luck",
        f"  raw with {{'x': '{'y' * 92}… to queue default, pending",
    ]
    with pytest.raises(AssertionError, match=r"^1 job was enqueued as add, not 2; enqueued were:"):
        assert_enqueued(app, add, count=2)
    add.enqueue_many([(i,) for i in range(30)])
    with pytest.raises(AssertionError) as error:
        assert_enqueued(app, add, count=0)
    assert said(error)[0] == "31 jobs were enqueued as add, not 0; enqueued were:"
    assert said(error)[-1] == "  and 13 more"


def test_refute_enqueued_says_what_should_not_have_been(app: Forge) -> None:
    refute_enqueued(app)
    add.enqueue(2, 3)
    refute_enqueued(app, flaky)
    refute_enqueued(app, add, args=(3, 3))
    refute_enqueued(app, add, queue="other")
    for wanted in ({"task": add, "args": (2, 3)}, {"queue": "default"}, {}):
        with pytest.raises(AssertionError) as error:
            refute_enqueued(app, **wanted)
        assert said(error)[0].startswith("1 job was enqueued as ")
        assert said(error)[1:] == ["  add(2, 3) to queue default, pending"]
