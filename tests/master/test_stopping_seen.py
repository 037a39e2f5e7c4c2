"""A pod that stops, as its handlers see it: at once by `ctx.stopping`, and by a word to stop when time is nearly up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge import Status
from forge.master.workers import stop_job

from .conftest import TASKS, Project, eventually, making

HANDLERS = """

import asyncio
from forge import Context, Interrupted

@app.task
def looks(ctx: Context) -> str:
    note("START", "looks", ctx.stopping)
    while not ctx.stopping:
        time.sleep(0.01)
    note("SAW", ctx.stopping, ctx.cancelled)
    return "went early"

@app.task
def busy(ctx: Context) -> None:
    note("START", "busy", ctx.attempt)
    try:
        while True:
            time.sleep(0.01)
    except Interrupted as e:
        note("SAW", ctx.stopping, ctx.cancelled, str(e) or type(e).__name__)
        raise

@app.task
def asks(ctx: Context) -> None:
    note("START", "asks", ctx.attempt)
    while True:
        time.sleep(0.01)
        ctx.raise_if_cancelled()

@app.task
async def awaits(ctx: Context) -> None:
    note("START", "awaits", ctx.attempt)
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError as e:
        note("SAW", ctx.stopping, ctx.cancelled, *e.args)
        raise

@app.task
async def tidies(ctx: Context) -> str:
    note("START", "tidies", ctx.attempt)
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        return "tidied"

@app.task
def fails(ctx: Context) -> None:
    note("START", "fails", ctx.attempt)
    while not ctx.cancelled:
        time.sleep(0.01)
    raise ValueError("it broke off")
"""

WORKERS = {
    "process": "",
    "threads": 'worker = "threads"\nconcurrency = 3\n',
    "async": 'worker = "async"\nconcurrency = 3\n',
}


@pytest.fixture
def here(tmp_path: Path, sqlite_url: str) -> Iterator[Project]:
    """On one storage, where the other would do the same."""
    yield from making(tmp_path, sqlite_url)


@pytest.fixture(params=WORKERS)
def worker(request: pytest.FixtureRequest) -> str:
    return WORKERS[request.param]


def prepare(project: Project, worker: str = "", seconds: float = 3.0) -> None:
    (project.folder / "tasks.py").write_text(TASKS + HANDLERS)
    project.settings(f"shutdown_timeout = {seconds}\n[queues.default]\nmax_workers = 1\n{worker}")


def running(project: Project, task: str) -> Any:
    job: Any = project.enqueue(task)
    eventually(lambda: any(words[1] == task for words in project.events("START")))
    return job


def test_ctx_stopping_is_seen_at_once(here: Project, worker: str) -> None:
    prepare(here, worker, 60.0)
    pod = here.start()
    job = running(here, "looks")
    assert here.events("START") == [["START", "looks", "False"]]
    assert pod.stop() == 0
    assert here.events("SAW") == [["SAW", "True", "False"]]
    assert job.result(timeout=0) == "went early"


@pytest.mark.parametrize(
    ("task", "saw"),
    [
        ("awaits", ["True", "True", "the", "pod", "is", "stopping"]),
        ("busy", ["True", "True"]),
        ("asks", None),
        ("fails", None),
    ],
)
def test_what_is_told_to_stop_goes_back_without_an_error(
    here: Project, worker: str, task: str, saw: list[str] | None
) -> None:
    prepare(here, worker)
    pod = here.start()
    job = running(here, task)
    assert pod.stop() == 0
    found = job.job()
    assert (found.status, found.attempts, found.errors, found.crashes) == (Status.PENDING, 0, (), 0)
    if saw is not None:
        (seen,) = here.events("SAW")
        assert seen[1 : 1 + len(saw)] == saw
    assert not pod.says("killed"), pod.lines


def test_a_def_handler_in_the_main_thread_is_told_why(here: Project) -> None:
    prepare(here)
    pod = here.start()
    running(here, "busy")
    assert pod.stop() == 0
    assert here.events("SAW") == [["SAW", "True", "True", "the", "pod", "is", "stopping"]]


def test_what_is_done_by_then_is_done(here: Project, worker: str) -> None:
    prepare(here, worker)
    pod = here.start()
    job = running(here, "tidies")
    assert pod.stop() == 0
    assert job.result(timeout=0) == "tidied"


def test_that_is_so_on_both_storages(project: Project) -> None:
    prepare(project)
    pod = project.start()
    job = running(project, "awaits")
    assert pod.stop() == 0
    found = job.job()
    assert (found.status, found.attempts, found.errors, found.crashes) == (Status.PENDING, 0, (), 0)
    project.start()
    eventually(lambda: len(project.events("START")) == 2)
    assert project.events("START")[1] == ["START", "awaits", "1"]


def test_with_no_time_to_stop_nothing_is_told_and_all_goes_back(project: Project) -> None:
    prepare(project, seconds=0.0)
    pod = project.start()
    job = running(project, "awaits")
    assert pod.stop() == 0
    assert (job.status, job.job().attempts) == (Status.PENDING, 0)


def test_the_word_comes_when_a_fifth_of_the_time_is_left_and_five_seconds_at_most() -> None:
    assert [stop_job.notice(seconds) for seconds in (0.0, 1.0, 25.0, 3600.0)] == [0.0, 0.2, 5.0, 5.0]
