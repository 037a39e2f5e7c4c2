"""A master with real workers: what runs, what dies, what is left. Nothing here is simulated."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from forge.errors import JobIsDead
from forge.job import Status

from .conftest import Project, alive, eventually


def handle(job: object) -> Any:
    return job


def test_tasks_of_every_form_run_and_answer(project: Project) -> None:
    project.start()
    add, later = handle(project.enqueue("add", 2, 3)), handle(project.enqueue("later", 7))
    raw = project.app.enqueue("raw.kind", {"x": [1]}, keep_result=True)
    assert add.result(timeout=30) == 5
    assert later.result(timeout=30) == 7
    assert raw.result(timeout=30) == {"attempt": 1, "payload": {"x": [1]}}


def test_a_failing_job_retries_with_its_errors_and_dies(project: Project) -> None:
    pod = project.start()
    job = handle(project.enqueue("fail", "no luck", max_attempts=2))
    with pytest.raises(JobIsDead, match="ValueError: no luck"):
        job.result(timeout=30)
    errors = job.job().errors
    assert [error["attempt"] for error in errors] == [1, 2]
    assert "raise ValueError(text)" in errors[0]["traceback"]
    eventually(lambda: pod.says("failed, dead: ValueError: no luck"))


@pytest.mark.parametrize(("how", "said"), [("kill", "SIGKILL"), ("segfault", "SIGSEGV"), ("exit", "exited with 7")])
def test_a_job_that_always_kills_its_worker_is_dead_at_three_crashes(project: Project, how: str, said: str) -> None:
    project.start()
    job = handle(project.enqueue("die", how))
    with pytest.raises(JobIsDead, match=said):
        job.result(timeout=60)
    found = job.job()
    assert found.crashes == 3
    assert len(project.events("START")) == 3
    assert handle(project.enqueue("add", 1, 1)).result(timeout=30) == 2  # the others are none the worse


def test_a_job_whose_worker_was_killed_runs_again_without_losing_an_attempt(project: Project) -> None:
    pod = project.start()
    job = handle(project.enqueue("die_once", 1))
    assert job.result(timeout=30) == "survived"
    found = job.job()
    assert (found.attempts, found.crashes) == (1, 1)
    eventually(lambda: pod.says("killed by SIGKILL; 1 job released"))


def test_a_handler_past_its_timeout_is_stopped_and_its_job_fails(project: Project) -> None:
    project.configure(1)
    project.start()
    job = handle(project.enqueue("hang", timeout=1, max_attempts=1))
    with pytest.raises(JobIsDead, match="timeout after 1 s"):
        job.result(timeout=30)
    assert len(project.events("START")) == 1
    assert handle(project.enqueue("add", 1, 1)).result(timeout=30) == 2  # the only worker is free again


def test_cancelling_a_running_job_stops_its_handler(project: Project) -> None:
    project.configure(1)
    project.start()
    job = handle(project.enqueue("patient"))
    eventually(lambda: project.events("START"))
    assert job.cancel() == "requested"
    eventually(lambda: job.status == Status.CANCELLED)
    assert len(project.events("START")) == 1
    assert job.job().last_error == "cancelled by user"
    assert handle(project.enqueue("add", 1, 1)).result(timeout=30) == 2


def test_what_a_handler_started_dies_with_its_worker(project: Project) -> None:
    project.start()
    job = handle(project.enqueue("grandchild"))
    eventually(lambda: project.events("GRANDCHILD"))
    grandchild = int(project.events("GRANDCHILD")[0][1])
    assert alive(grandchild)
    job.cancel()
    eventually(lambda: not alive(grandchild))


def test_a_stop_under_load_loses_nothing_and_runs_nothing_twice(project: Project) -> None:
    pod = project.start()
    project.app.enqueue_many([project.app.job("tasks.slow", {"args": [n, 0.01], "kwargs": {}}) for n in range(300)])
    eventually(lambda: len(project.events("END")) >= 20)
    assert pod.stop() == 0
    assert pod.says("stopped")
    counts = project.app.storage.counts()["default"]
    assert counts.in_progress == 0
    assert counts.pending == 300 - len(project.events("END"))
    project.start()
    eventually(lambda: len(project.events("END")) >= 300)
    eventually(lambda: project.app.storage.counts() == {})
    ran = [n for _, n, _ in project.events("END")]
    assert sorted(ran, key=int) == [str(n) for n in range(300)]
    assert project.app.storage.ended_counts() == {"default": {Status.DONE: 300}}


def test_a_second_interrupt_gives_back_what_still_runs_with_its_attempt(project: Project) -> None:
    pod = project.start()
    job = handle(project.enqueue("patient"))
    eventually(lambda: project.events("START"))
    pod.process.send_signal(signal.SIGINT)
    eventually(lambda: pod.says("stopping: 1 jobs in hand"))
    assert pod.stop(signal.SIGINT) == 0  # the second one: now
    found = job.job()
    assert (found.status, found.attempts, found.last_error) == (Status.PENDING, 0, "the master was stopped")
    (_, _, pid), *_ = project.events("START")
    eventually(lambda: not alive(int(pid)))


def test_nothing_outlives_a_killed_master_and_its_successor_runs_its_jobs(project: Project) -> None:
    pod = project.start()
    job = handle(project.enqueue("patient"))
    eventually(lambda: project.events("START"))
    below = pod.children()
    assert len(below) == 5  # the zygote and four workers
    os.kill(pod.process.pid, signal.SIGKILL)
    eventually(lambda: not any(alive(pid) for pid in below))
    successor = project.start()
    eventually(lambda: len(project.events("START")) == 2)  # at once, not after the stale threshold
    assert successor.says("predecessor")
    assert job.status == Status.IN_PROGRESS
