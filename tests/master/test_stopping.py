"""Jobs that must stop, in workers with one job or many: asked, interrupted, killed. And jobs that wait behind some."""

from __future__ import annotations

import time
from typing import Any

import pytest

from forge import JobHandle
from forge.errors import JobIsDead
from forge.job import Status

from .conftest import TASKS, Project, alive, eventually

pytestmark = pytest.mark.impl_free

MORE = """
import asyncio


@app.handler("polite")
def polite(ctx, payload):
    note("START", "polite", os.getpid())
    while not ctx.cancelled:
        time.sleep(0.01)
    note("ASKED", "polite", os.getpid())
    ctx.raise_if_cancelled()


@app.handler("deaf")
def deaf(ctx, payload):
    note("START", "deaf", os.getpid())
    while True:
        try:
            time.sleep(600)
        except BaseException as e:
            note("HEARD", type(e).__name__)


@app.handler("interruptible")
def interruptible(ctx, payload):
    note("START", "interruptible", os.getpid())
    try:
        while True:
            time.sleep(0.01)
    finally:
        note("LEFT", "interruptible", os.getpid())


@app.handler("awaiting")
async def awaiting(ctx, payload):
    note("START", payload, os.getpid())
    while not os.path.exists(os.path.join(os.path.dirname(LEDGER), payload)):
        await asyncio.sleep(0.01)
    note("END", payload, os.getpid())
    return payload


@app.handler("stubborn")
async def stubborn(ctx, payload):
    note("START", "stubborn", os.getpid())
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            note("HEARD", "stubborn")
"""


@pytest.fixture
def project(project: Project) -> Project:
    (project.folder / "tasks.py").write_text(TASKS + MORE)
    return project


def enqueue(project: Project, kind: str, payload: object = None, **options: Any) -> Any:
    return project.app.enqueue(kind, payload, keep_result=True, **options)


def pid_of(project: Project, name: str) -> int:
    """Of the first that started under this name."""
    eventually(lambda: any(line[1] == name for line in project.events("START")))
    return next(int(line[2]) for line in project.events("START") if line[1] == name)


# -- one job at a time


def test_a_handler_that_looks_whether_it_is_cancelled_stops_and_its_worker_stays(project: Project) -> None:
    project.configure(1)
    pod = project.start()
    job = enqueue(project, "polite")
    worker = pid_of(project, "polite")
    assert job.cancel() == "requested"
    eventually(lambda: job.status == Status.CANCELLED)
    assert project.events("ASKED")
    assert alive(worker) and worker in pod.children()


def test_a_handler_that_does_not_look_is_interrupted_and_its_worker_stays(project: Project) -> None:
    project.configure(1)
    pod = project.start()
    job = enqueue(project, "interruptible")
    worker = pid_of(project, "interruptible")
    job.cancel()
    eventually(lambda: job.status == Status.CANCELLED)
    assert project.events("LEFT")
    assert worker in pod.children()


def test_a_handler_that_goes_on_is_killed(project: Project) -> None:
    project.configure(1)
    project.start()
    job = enqueue(project, "deaf", timeout=1, max_attempts=1)
    worker = pid_of(project, "deaf")
    with pytest.raises(JobIsDead, match="timeout after 1 s"):
        job.result(timeout=30)
    assert project.events("HEARD"), "it was interrupted first"
    eventually(lambda: not alive(worker))
    assert job.job().crashes == 0


def test_a_timeout_that_is_obeyed_is_a_failure_and_not_a_cancellation(project: Project) -> None:
    project.configure(1)
    pod = project.start()
    job = enqueue(project, "polite", timeout=1, max_attempts=1)
    with pytest.raises(JobIsDead, match="timeout after 1 s"):
        job.result(timeout=30)
    assert pid_of(project, "polite") in pod.children()


def test_the_queues_timeout_caps_the_jobs_own(project: Project) -> None:
    project.settings("[queues.default]\ntimeout = 1\n")
    project.start()
    job = enqueue(project, "interruptible", timeout=600, max_attempts=1)
    with pytest.raises(JobIsDead, match="timeout after 1 s"):
        job.result(timeout=30)


def test_short_jobs_behind_a_long_one_are_given_to_an_idle_worker(project: Project) -> None:
    project.configure(2)
    project.start()
    # Short jobs, so that the master learns to send ahead.
    project.app.enqueue_many([project.app.job("tasks.add", {"args": [n, 0], "kwargs": {}}) for n in range(3000)])
    eventually(lambda: project.app.storage.counts() == {})
    short = [project.app.job("tasks.slow", {"args": [n, 0], "kwargs": {}}) for n in range(300)]
    project.app.enqueue_many([project.app.job("awaiting", "go"), *short])
    eventually(lambda: len(project.events("END")) == 300)  # while the first still runs
    eventually(lambda: [line[1] for line in project.events("START")].count("go") == 1)
    (project.folder / "go").touch()
    eventually(lambda: project.app.storage.counts() == {})
    assert len(project.events("START")) == 301, "none ran twice"


def test_a_cancellation_from_another_process_does_not_wait_for_the_beat(project: Project) -> None:
    project.settings("heartbeat = 600\nstale_after = 3600\npoll_interval = 600\n[queues.default]\n")
    project.start()
    job = enqueue(project, "polite")
    pid_of(project, "polite")
    job.cancel()
    eventually(lambda: job.status == Status.CANCELLED)


def some_sent_ahead(project: Project, n: int) -> tuple[str, list[JobHandle[Any]]]:
    """The file that a running job waits for, and n jobs behind it, some of them in its worker. Whether the master sends
    jobs ahead depends on how long those before took, and a busy machine makes short ones long: then again."""
    for attempt in range(20):
        go = f"go{attempt}"
        project.app.enqueue_many([project.app.job("tasks.add", {"args": [i, 0], "kwargs": {}}) for i in range(2000)])
        eventually(lambda: project.app.storage.counts() == {})
        slow = (project.app.job("tasks.slow", {"args": [i, 0], "kwargs": {}}) for i in range(n))
        jobs = project.app.enqueue_many([project.app.job("awaiting", go), *slow])  # in the order they are made in
        pid_of(project, go)
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            if project.app.storage.counts()["default"].in_progress > 1:
                return go, jobs[1:]
            time.sleep(0.01)  # none may ever be: there is no event to wait for
        (project.folder / go).touch()
        eventually(lambda: project.app.storage.counts() == {})
    raise AssertionError("nothing was ever sent ahead")


def test_a_cancelled_job_that_waits_in_a_worker_behind_another_never_starts(project: Project) -> None:
    project.configure(1)
    project.start()
    go, behind = some_sent_ahead(project, 50)
    started = len(project.events("START"))
    cancelled = project.app.storage.cancel([job.id for job in behind])
    assert "requested" in cancelled.values(), "some had been sent ahead"
    eventually(lambda: project.app.storage.counts()["default"].in_progress == 1)
    (project.folder / go).touch()
    eventually(lambda: project.app.storage.counts() == {})
    assert len(project.events("START")) == started
    assert project.app.storage.ended_counts()["default"][Status.CANCELLED] == 50


# -- many jobs at a time


IO = '[queues.default]\nmax_workers = 1\nworker = "async"\nconcurrency = 20\n'
THREADS = '[queues.default]\nmax_workers = 1\nworker = "threads"\nconcurrency = 5\n'


def test_an_event_loop_runs_as_many_jobs_at_once_as_it_may(project: Project) -> None:
    project.settings(IO)
    pod = project.start()
    jobs = [enqueue(project, "awaiting", "go") for _ in range(25)]
    eventually(lambda: len(project.events("START")) == 20)
    time.sleep(0.2)  # nothing to wait for: what is looked for is that no more start
    assert len(project.events("START")) == 20
    (project.folder / "go").touch()
    assert [job.result(timeout=30) for job in jobs] == ["go"] * 25
    assert {int(line[2]) for line in project.events("START")} <= pod.children()


def test_a_timeout_on_an_event_loop_stops_that_job_alone(project: Project) -> None:
    project.settings(IO)
    pod = project.start()
    other = enqueue(project, "awaiting", "go")
    worker = pid_of(project, "go")
    late = enqueue(project, "awaiting", "never", timeout=1, max_attempts=1)
    with pytest.raises(JobIsDead, match="timeout after 1 s"):
        late.result(timeout=30)
    (project.folder / "go").touch()
    assert other.result(timeout=30) == "go"
    assert len(project.events("START")) == 2
    assert worker in pod.children()


def test_a_job_that_ignores_its_timeout_costs_its_neighbours_no_attempt(project: Project) -> None:
    project.settings(IO)
    project.start()
    other = enqueue(project, "awaiting", "go", max_attempts=1)
    worker = pid_of(project, "go")
    late = enqueue(project, "stubborn", timeout=1, max_attempts=1)
    with pytest.raises(JobIsDead, match="timeout after 1 s"):
        late.result(timeout=30)
    eventually(lambda: not alive(worker))
    (project.folder / "go").touch()
    assert other.result(timeout=30) == "go"
    assert (other.job().attempts, other.job().crashes, other.job().errors) == (1, 0, ())
    assert late.job().crashes == 0


def test_a_job_given_back_for_a_cancelled_neighbour_carries_nothing_of_it(project: Project) -> None:
    project.settings(IO)
    project.start()
    other = enqueue(project, "awaiting", "go", max_attempts=1)
    worker = pid_of(project, "go")
    cancelled = enqueue(project, "stubborn", max_attempts=1)
    eventually(lambda: len(project.events("START")) == 2)
    cancelled.cancel()
    eventually(lambda: cancelled.status == Status.CANCELLED)
    eventually(lambda: not alive(worker))
    (project.folder / "go").touch()
    assert other.result(timeout=30) == "go"
    assert (other.job().attempts, other.job().crashes, other.job().errors) == (1, 0, ())


def test_a_cancelled_job_in_a_thread_stops_alone(project: Project) -> None:
    project.settings(THREADS)
    pod = project.start()
    other = enqueue(project, "tasks.wait_for", {"args": ["go"], "kwargs": {}})
    worker = pid_of(project, "go")
    job = enqueue(project, "interruptible")
    pid_of(project, "interruptible")
    job.cancel()
    eventually(lambda: job.status == Status.CANCELLED)
    (project.folder / "go").touch()
    assert other.result(timeout=30) == "went"
    assert worker in pod.children()


# -- workers that are replaced


def test_a_worker_is_replaced_after_its_number_of_jobs(project: Project) -> None:
    project.settings("[queues.default]\nmax_workers = 1\nmax_jobs = 10\n")
    pod = project.start()
    jobs = [project.app.job("tasks.slow", {"args": [n, 0], "kwargs": {}}) for n in range(45)]
    project.app.enqueue_many(jobs)
    eventually(lambda: project.app.storage.counts() == {})
    by_worker: dict[str, int] = {}
    for _, _, pid in project.events("END"):
        by_worker[pid] = by_worker.get(pid, 0) + 1
    assert list(by_worker.values()) == [10, 10, 10, 10, 5]
    assert sum("worker default/0 replaced after 10 jobs" in line for line in pod.lines) == 4
    assert project.app.storage.ended_counts() == {"default": {Status.DONE: 45}}


def test_a_worker_that_has_grown_too_large_is_replaced_between_jobs(project: Project) -> None:
    (project.folder / "tasks.py").write_text(
        TASKS
        + """
KEPT = []

@app.task
def leak(n: int) -> None:
    note("START", n, os.getpid())
    KEPT.append(bytearray(os.urandom(1 << 20)) * 30)
"""
    )
    project.settings('[queues.default]\nmax_workers = 1\nmax_rss = "200MB"\n')
    pod = project.start()
    project.app.enqueue_many([project.app.job("tasks.leak", {"args": [n], "kwargs": {}}) for n in range(20)])
    eventually(lambda: project.app.storage.counts() == {})
    assert len(project.events("START")) == 20
    assert len({line[2] for line in project.events("START")}) >= 3
    eventually(lambda: pod.says("MB of memory"))


# -- what handlers ask


def test_a_handlers_questions_are_answered(project: Project) -> None:
    (project.folder / "tasks.py").write_text(
        TASKS
        + """
@app.handler("asking")
def asking(ctx, payload):
    ctx.progress(40, "on the way")
    new = ctx.enqueue_now("tasks.add", {"args": [2, 3], "kwargs": {}}, keep_result=True)
    first, second = ctx.rate_limit.acquire("once"), ctx.rate_limit.acquire("once")
    return {"new": str(new.id), "first": repr(first), "second": repr(second)}
"""
    )
    project.settings("[limits.once]\ncapacity = 1\nrefill_per_sec = 0.1\n[queues.default]\n")
    project.start()
    answer = enqueue(project, "asking").result(timeout=30)
    (new,) = [job for job in project.app.jobs() if str(job.id) == answer["new"]]
    eventually(lambda: project.app.storage.get([new.id])[new.id].result == 5)
    assert "20" in answer["second"], answer
