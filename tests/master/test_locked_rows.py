"""Somebody's transaction has locked the row of a running job: only that job's end waits, and the log says for whom."""

from __future__ import annotations

from typing import Any

import apsw
import psycopg
import pytest

from forge.job import Status

from .conftest import TASKS, Project, eventually

pytestmark = pytest.mark.impl_free


def test_one_locked_row_stalls_no_other_ending(project_on_postgres: Project) -> None:
    project = project_on_postgres
    pod = project.start()
    job: Any = project.enqueue("wait_for", "go")
    eventually(lambda: project.events("START"))
    with psycopg.connect(project.url, application_name="somebody") as conn:
        conn.execute("select from forge.job where id = %s for update", (job.id,))
        (project.folder / "go").touch()
        eventually(lambda: project.events("END"))
        others: list[Any] = [project.enqueue("add", n, 1) for n in range(20)]
        assert [other.result(timeout=30) for other in others] == [n + 1 for n in range(20)]
        eventually(lambda: pod.says(f"the end of tasks.wait_for {job.id} has waited"))
        assert pod.says("somebody has locked its row by process")
        assert pod.says("(somebody, idle in transaction")
        assert job.status is Status.IN_PROGRESS
        conn.rollback()
    assert job.result(timeout=30) == "went"
    assert len(project.events("START")) == 1
    assert pod.stop() == 0


PARENT = """

@app.handler("parent")
def parent(ctx, payload):
    ctx.enqueue("tasks.add", {"args": [1, 1], "kwargs": {}}, dedupe_key=payload)
    note("END", "parent")
"""


def test_a_key_that_somebody_is_about_to_store_stalls_no_other_ending(project_on_postgres: Project) -> None:
    project = project_on_postgres
    (project.folder / "tasks.py").write_text(TASKS + PARENT)
    pod = project.start()
    with psycopg.connect(project.url, application_name="somebody") as conn:
        project.app.enqueue("tasks.add", {"args": [5, 5], "kwargs": {}}, dedupe_key="k", conn=conn)
        parent = project.app.enqueue("parent", "k")
        eventually(lambda: project.events("END"))
        others: list[Any] = [project.enqueue("add", n, 1) for n in range(20)]
        free = project.app.enqueue("parent", "another")
        assert [other.result(timeout=30) for other in others] == [n + 1 for n in range(20)]
        eventually(lambda: free.status is Status.DONE)
        eventually(lambda: pod.says(f"the end of parent {parent.id} has waited"))
        assert pod.says("somebody has locked what it needs, perhaps process")
        assert pod.says("(somebody, idle in transaction")
        assert parent.status is Status.IN_PROGRESS
        conn.commit()
    eventually(lambda: parent.status is Status.DONE)
    assert pod.stop() == 0


def test_a_stop_says_that_a_locked_ending_could_not_be_written(project_on_postgres: Project) -> None:
    project = project_on_postgres
    project.settings("shutdown_timeout = 1\n[queues.default]\n")
    pod = project.start()
    job: Any = project.enqueue("wait_for", "go")
    eventually(lambda: project.events("START"))
    with psycopg.connect(project.url) as conn:
        conn.execute("select from forge.job where id = %s for update", (job.id,))
        (project.folder / "go").touch()
        eventually(lambda: project.events("END"))
        assert pod.stop() == 4
        assert pod.says("1 result could not be written")
        conn.rollback()


def test_on_sqlite_it_is_said_that_endings_wait_for_who_writes(tmp_path: Any, sqlite_url: str) -> None:
    from .conftest import making

    for project in making(tmp_path, sqlite_url):
        pod = project.start()
        job: Any = project.enqueue("wait_for", "go")
        eventually(lambda: project.events("START"))  # noqa: B023
        conn = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
        conn.set_busy_timeout(10_000)
        conn.execute("begin immediate")
        (project.folder / "go").touch()
        eventually(lambda: pod.says("s to be written so far"))  # noqa: B023
        assert pod.says(f"tasks.wait_for {job.id}")
        conn.execute("rollback")
        conn.close()
        assert job.result(timeout=30) == "went"
        assert pod.stop() == 0
