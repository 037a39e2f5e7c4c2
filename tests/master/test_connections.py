"""A pod has five connections to PostgreSQL at most, and its workers have some only while they need them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from .conftest import Project, eventually

pytestmark = pytest.mark.impl_free

MOST = 5
WORKERS = 16
OPEN = (
    "select count(*) from pg_stat_activity"
    " where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"
)

TASKS = """

@app.task
def in_a_transaction(ctx: Context, n: int) -> None:
    with ctx.transaction() as tx:
        tx.execute("select 1")
    note("END", n)


@app.task
def on_its_own(ctx: Context, n: int) -> None:
    app.enqueue("tasks.add", {"args": [n, 1], "kwargs": {}})
    note("END", n)
"""


class Counting:
    """The most connections that were there at a time."""

    def __init__(self, url: str) -> None:
        self.most = 0
        self._conn = psycopg.connect(url, autocommit=True)

    def now(self) -> int:
        row = self._conn.execute(OPEN).fetchone()
        assert row is not None
        self.most = max(self.most, row[0])
        return int(row[0])

    def close(self) -> None:
        self._conn.close()


@contextmanager
def counting(url: str) -> Iterator[Counting]:
    """Counts without a break."""
    found, over = Counting(url), threading.Event()

    def count() -> None:
        while not over.wait(0.002):
            found.now()

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
        found.close()


@pytest.fixture
def project(project_on_postgres: Project) -> Project:
    made = project_on_postgres
    tasks = made.folder / "tasks.py"
    tasks.write_text(tasks.read_text().replace("from forge import Dead", "from forge import Context, Dead") + TASKS)
    made.settings(f"heartbeat = 0.1\nstale_after = 2.0\nleader_ttl = 1.0\n[queues.default]\nmax_workers = {WORKERS}\n")
    return made


def test_a_pod_has_five_connections_from_its_start_to_its_end(project: Project) -> None:
    jobs = [project.app.job("tasks.slow", {"args": [n, 0.0], "kwargs": {}}) for n in range(1500)]
    project.app.enqueue_many(jobs)
    project.app.close()
    with counting(project.url) as found:
        pod = project.start()
        eventually(lambda: len(project.events("END")) == len(jobs), within=60)
        eventually(lambda: pod.says("this pod leads"))
        assert pod.stop() == 0
    assert 2 <= found.most <= MOST


def test_a_pod_that_takes_back_the_jobs_of_another_has_no_more(project: Project) -> None:
    project.settings("heartbeat = 0.1\nstale_after = 2.0\nleader_ttl = 1.0\n[queues.default]\nmax_workers = 2\n")
    gone = project.start()
    jobs: list[Any] = [project.enqueue("wait_for", f"go{n}") for n in range(2)]
    eventually(lambda: len(project.events("START")) == 2)
    project.env["FORGE_WORKER_ID"] = "other"
    left = project.start()
    project.app.close()
    gone.process.kill()
    gone.process.wait()
    with psycopg.connect(project.url, autocommit=True) as conn:
        eventually(lambda: conn.execute(OPEN).fetchall()[0][0] <= MOST)
    with counting(project.url) as found:
        eventually(lambda: left.says("had gone silent; 2 jobs taken back") or len(project.events("START")) == 4)
        eventually(lambda: len(project.events("START")) == 4)
    assert 2 <= found.most <= MOST
    for n in range(2):
        (project.folder / f"go{n}").touch()
    assert [job.result(timeout=60) for job in jobs] == ["went"] * 2


@pytest.mark.parametrize("task", ["in_a_transaction", "on_its_own"])
def test_what_workers_open_for_themselves_is_closed_soon_after(project: Project, task: str) -> None:
    project.start()
    jobs = [project.app.job(f"tasks.{task}", {"args": [n], "kwargs": {}}) for n in range(400)]
    project.app.enqueue_many(jobs)
    project.app.close()
    with counting(project.url) as found:
        eventually(lambda: len(project.events("END")) == len(jobs), within=60)
        eventually(lambda: found.most > MOST)
        eventually(lambda: found.now() <= MOST, within=60)
    assert found.most <= MOST + 2 * WORKERS
