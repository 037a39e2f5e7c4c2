"""A job seen from the program that enqueued it: waiting for its result, and operating on it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from forge import (
    Dead,
    Failed,
    Forge,
    Job,
    JobHandle,
    JobIsDead,
    JobNotFound,
    JobWasCancelled,
    ResultTimeout,
    Status,
    UsageError,
)
from forge.app.handle import FIRST_WAIT, LONGEST_WAIT

from .helpers import run, work_off


@pytest.fixture
def app(url: str) -> Iterator[Forge]:
    with Forge(url) as app:

        @app.task(name="add")
        def add(a: int, b: int) -> int | None:
            return a + b or None

        yield app


def added(app: Forge, a: int = 2, b: int = 3, **options: Any) -> JobHandle[Any]:
    """A job that adds."""
    return app.enqueue("add", {"args": [a, b], "kwargs": {}}, **options)


def both_ways(handle: JobHandle[Any], timeout: float | None = 0) -> tuple[Any, Any]:
    """The result or the error, asked for by `result` and by `aresult`."""

    def caught(ask: Any) -> Any:
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 (it is compared)
            return type(error), str(error)

    return caught(lambda: handle.result(timeout)), caught(lambda: run(handle.aresult(timeout)))


def test_a_result_is_what_the_handler_returned(app: Forge) -> None:
    handle = added(app)
    work_off(app)
    assert both_ways(handle) == (5, 5)


def test_a_result_of_none_is_a_result(app: Forge) -> None:
    handle = added(app, 0, 0)
    work_off(app)
    assert both_ways(handle) == (None, None)


def test_a_waiting_program_gets_the_result_when_the_job_ends(app: Forge) -> None:
    handles = [added(app, n, 1) for n in range(2)]
    found: list[Any] = []
    waiters = [
        threading.Thread(target=lambda: found.append(handles[0].result(timeout=60))),
        threading.Thread(target=lambda: found.append(run(handles[1].aresult(timeout=60)))),
    ]
    for waiter in waiters:
        waiter.start()
    work_off(app)
    for waiter in waiters:
        waiter.join()
    assert sorted(found) == [1, 2]


def test_patience_that_ends_first_says_where_the_job_stands(app: Forge) -> None:
    handle = added(app)
    kind, message = both_ways(handle, 0)[0]
    assert kind is ResultTimeout
    assert message == f"job {handle.id} (add) is still pending after 0 s"
    assert both_ways(handle, 0.01)[1] == (ResultTimeout, f"job {handle.id} (add) is still pending after 0.01 s")
    with pytest.raises(TimeoutError):
        handle.result(timeout=0)


def test_a_dead_jobs_result_is_its_last_error(app: Forge) -> None:
    handle = added(app)
    work_off(app, outcome=Dead("no such account"))
    dead = (JobIsDead, f"job {handle.id} (add) is dead: no such account")
    assert both_ways(handle) == (dead, dead)


def test_a_failed_job_is_still_waited_for(app: Forge) -> None:
    handle = added(app)
    work_off(app, outcome=Failed("not yet"))
    assert both_ways(handle)[0] == (ResultTimeout, f"job {handle.id} (add) is still failed after 0 s")


def test_a_cancelled_jobs_result_says_so(app: Forge) -> None:
    handle = added(app)
    assert handle.cancel() == "cancelled"
    assert both_ways(handle)[0] == (JobWasCancelled, f"job {handle.id} (add) was cancelled: cancelled by user")


def test_an_unknown_jobs_result_is_not_found(app: Forge) -> None:
    nothing = uuid.uuid4()
    missing = (JobNotFound, f"no job {nothing}; it may have been deleted, or not committed yet")
    assert both_ways(JobHandle(app, nothing)) == (missing, missing)


def test_a_result_that_was_not_kept_says_how_to_keep_it(app: Forge) -> None:
    handle = added(app, keep_result=False)
    work_off(app)
    assert both_ways(handle)[1] == (
        UsageError,
        f"job {handle.id} (add) is done, but its result was not kept; enqueue with keep_result",
    )


def test_a_result_that_was_kept_too_short_says_so(app: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = added(app, keep_result=60)
    work_off(app)
    later = app.storage.now() + 61
    record = handle.job()
    monkeypatch.setattr(app.storage, "now", lambda: later)
    monkeypatch.setattr(JobHandle, "job", lambda self: _with(record, result=None))
    with pytest.raises(UsageError, match="its result was kept for 60 s only; enqueue with a longer keep_result"):
        handle.result()


def _with(job: Job, **changes: Any) -> Job:
    return Job(**{name: getattr(job, name) for name in Job.__slots__} | changes)


def test_waits_grow_from_short_to_long_and_end_with_the_deadline(app: Forge) -> None:
    job = added(app).job()
    steps = JobHandle(app, job.id)._watch(None)
    waits = [next(steps), *(steps.send(job) for _ in range(30))]
    assert waits[:2] == [0.0, FIRST_WAIT]
    assert waits[1:] == sorted(waits[1:])
    assert waits[-1] == LONGEST_WAIT
    short = JobHandle(app, job.id)._watch(FIRST_WAIT / 2)
    next(short)
    assert short.send(job) <= FIRST_WAIT / 2


def test_a_handle_reads_the_job_afresh_each_time(app: Forge) -> None:
    handle = added(app)
    assert (handle.status, run(handle.ajob()).status) == (Status.PENDING, Status.PENDING)
    work_off(app)
    assert (handle.status, handle.job().result) == (Status.DONE, 5)
    assert handle == app.get(handle.id)
    assert hash(handle) == hash(app.get(str(handle.id)))
    assert repr(handle) == f"<JobHandle {handle.id}>"


def test_a_running_job_is_asked_to_stop_and_cannot_be_retried(app: Forge) -> None:
    handle = added(app)
    who = app.storage.register("p", ["default"], "h", 1)
    app.storage.claim(who, "default", 1)
    with pytest.raises(UsageError, match="is running; cancel it first"):
        handle.retry()
    assert (handle.cancel(), handle.delete()) == ("requested", "requested")
    assert handle.status == "in_progress"


def test_a_dead_job_is_retried_from_the_start_or_requeued_once(app: Forge) -> None:
    one, two = added(app), added(app)
    work_off(app, outcome=Dead("x"))
    one.retry()
    run(two.arequeue())
    assert [(h.status, h.job().attempts) for h in (one, two)] == [("pending", 0), ("pending", 1)]
    work_off(app)
    assert [one.result(), two.result(), one.cancel(), run(two.acancel())] == [5, 5, "ended", "ended"]
    run(one.aretry())
    assert one.status == "pending"


def test_a_job_whose_key_another_has_taken_cannot_run_again(app: Forge) -> None:
    handle = added(app, dedupe_key="sum")
    work_off(app)
    other = added(app, dedupe_key="sum")
    assert not other.deduped
    with pytest.raises(UsageError, match="another has its dedupe key 'sum'"):
        handle.retry()


def test_what_is_deleted_is_gone(app: Forge) -> None:
    one, two = added(app), added(app)
    work_off(app)
    assert (one.delete(), run(two.adelete())) == ("deleted", "deleted")
    for verb in (one.job, one.cancel, one.delete, one.retry, one.requeue, one.result):
        with pytest.raises(JobNotFound):
            verb()


def test_a_deduped_handle_is_that_of_the_job_that_has_the_key(app: Forge) -> None:
    first = added(app, 1, 1, dedupe_key="k")
    second = added(app, 9, 9, dedupe_key="k")
    assert (first.deduped, second.deduped, second.id) == (False, True, first.id)
    work_off(app)
    assert second.result() == 2


def test_the_same_id_again_is_the_same_job(app: Forge) -> None:
    id = uuid.uuid4()
    first, again = added(app, id=id), added(app, 7, 7, id=str(id))
    assert (first.id, again.id, again.deduped) == (id, id, False)
    assert work_off(app) == 1
    assert (again.result(), added(app, id=id).result()) == (5, 5)


def test_a_scheduled_job_waits_for_its_time(app: Forge) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    timed, delayed = added(app, run_at=at), added(app, delay=3600)
    assert work_off(app) == 0
    assert abs(timed.job().run_at - at) < timedelta(milliseconds=2)
    assert abs(delayed.job().run_at - at) < timedelta(minutes=5)
    assert app.requeue([timed, delayed]) == {timed.id, delayed.id}
    assert work_off(app) == 2
