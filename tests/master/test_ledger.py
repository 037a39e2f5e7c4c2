"""Many jobs while workers die, and handlers that let nothing else in their process run; the ledger tells."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

import pytest

from forge.job import Status

from .conftest import Project, eventually

pytestmark = pytest.mark.impl_free


def test_workers_killed_over_and_over_lose_no_job_and_double_only_what_they_had_in_hand(project: Project) -> None:
    project.configure(8)
    pod = project.start()
    jobs, step = 5_000, 600
    project.app.enqueue_many([project.app.job("tasks.slow", {"args": [n, 0.003], "kwargs": {}}) for n in range(jobs)])
    killed: list[int] = []
    for so_far in range(step, jobs - step, step):
        eventually(lambda so_far=so_far: len(project.events("END")) >= so_far, within=60)  # type: ignore[misc]
        latest = {int(pid) for _, _, pid in project.events("START")[-20:]} & pod.children()
        killed.append(min(latest))
        os.kill(killed[-1], signal.SIGKILL)
    eventually(lambda: project.app.storage.counts() == {}, within=90)
    assert project.app.storage.ended_counts()["default"] == {Status.DONE: jobs}  # lost 0
    ends = Counter(n for _, n, _ in project.events("END"))
    assert set(ends) == {str(n) for n in range(jobs)}
    by_killed = {n for _, n, pid in project.events("START") if int(pid) in killed}
    assert {n for n, times in ends.items() if times > 1} <= by_killed


HOG = """

import ctypes


@app.task(timeout=600, max_attempts=1)
def hog(seconds: int) -> str:
    note("START", "hog", os.getpid())
    ctypes.PyDLL(None).sleep(seconds)  # unlike CDLL it keeps the interpreter's lock: no other thread runs meanwhile
    note("END", "hog", os.getpid())
    return "done"
"""


def hogged(project: Project, seconds: int) -> Any:
    with (project.folder / "tasks.py").open("a") as tasks:
        tasks.write(HOG)
    pods = [project.start(), project.start()] if project.url.startswith("postgres") else [project.start()]
    job: Any = project.enqueue("hog", seconds)
    assert job.result(timeout=seconds + 60) == "done"
    assert len(project.events("START")) == 1
    assert not any(pod.says("gone silent") or pod.says("taken for dead") for pod in pods)
    return job.job()


def test_a_handler_that_keeps_the_interpreters_lock_is_not_taken_for_dead(project: Project) -> None:
    project.settings("heartbeat = 0.2\nstale_after = 2.5\n[queues.default]\nmax_workers = 2\n")
    assert hogged(project, seconds=4).attempts == 1


@pytest.mark.slow
def test_nor_is_one_that_keeps_it_for_ninety_seconds(project: Project) -> None:
    assert hogged(project, seconds=90).attempts == 1
