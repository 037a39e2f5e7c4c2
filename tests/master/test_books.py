"""A claim that got lost in a living pod is found by its books, given back, and told of."""

from __future__ import annotations

from typing import Any

import pytest

from forge.job import Status

from .conftest import Project, eventually

pytestmark = pytest.mark.impl_free

LOST = "had been claimed by this pod and got lost here"


@pytest.mark.parametrize("kept", [False, True], ids=["plain", "with a result"])
def test_a_job_whose_ending_was_forgotten_is_given_back_and_ends(project: Project, kept: bool) -> None:
    project.env["FORGE_FAILPOINTS"] = "forget_ending:1"
    pod = project.start()
    jobs = [project.app.job("tasks.add", {"args": [n, 1], "kwargs": {}}, keep_result=kept) for n in range(40)]
    project.app.enqueue_many(jobs)
    eventually(lambda: project.app.storage.counts() == {}, within=60)
    assert project.app.storage.ended_counts() == {"default": {Status.DONE: 40}}
    (line,) = [line for line in pod.lines if LOST in line]
    assert "1 job had been claimed by this pod and got lost here (" in line
    assert "of queue default" in line
    assert pod.stop() == 0


def test_books_that_balance_are_let_be(project: Project) -> None:
    """Each way in which a claim can end is counted: workers, transactions, programs, jobs given back."""
    project.settings(
        '[queues.default]\nmax_workers = 2\n[queues.other]\nmax_workers = 2\nworker = "threads"\nconcurrency = 3\n'
        '[commands]\nallow_any = true\n[logging]\nlevel = "debug"\n'
    )
    pod = project.start()
    for n in range(30):
        project.enqueue("add", n, 1)
        project.enqueue("later", n, queue="other")
        project.app.enqueue("nobody.knows", {})
    commands: list[Any] = [project.app.enqueue("cmd_exec", {"argv": ["true"]}) for _ in range(5)]
    project.enqueue("hopeless")
    project.enqueue("die_once", 1)
    long: Any = project.enqueue("wait_for", "go")
    stopped: Any = project.enqueue("patient")
    eventually(lambda: any(line[1] == "patient" for line in project.events("START")))
    stopped.cancel()
    eventually(lambda: stopped.status is Status.CANCELLED)
    looks = [line for line in pod.lines if "books: " in line]
    eventually(lambda: sum("books: " in line for line in pod.lines) >= len(looks) + 2)
    assert all(line.endswith(", 0 missing") for line in pod.lines if "books: " in line)
    (project.folder / "go").touch()
    assert long.result(timeout=30) == "went"
    assert {command.status for command in commands} == {Status.DONE}
    assert not pod.says(LOST)
    assert pod.stop() == 0
