"""A database connection that a module opens when it is imported is no worker's: none is given another's answer."""

from __future__ import annotations

import psycopg
import pytest

from forge.job import Status

from .conftest import TASKS, Project, eventually

pytestmark = pytest.mark.impl_free

# As an engine of SQLAlchemy's does it: one connection is kept, and made anew when it is found to be broken.
ENGINE = """

import psycopg


class Engine:
    def __init__(self):
        self.connect()

    def connect(self):
        self.conn = psycopg.connect(os.environ["FORGE_DATABASE_URL"], autocommit=True)

    def value(self, n):
        try:
            return self.conn.execute("select %s::int from pg_sleep(0.002)", [n]).fetchone()[0]
        except psycopg.OperationalError:
            note("AGAIN", os.getpid())
            self.connect()
            return self.value(n)


engine = Engine()
engine.value(0)
note("BACKEND", engine.conn.info.backend_pid)


@app.task(timeout=5, max_attempts=1)
def value(n: int) -> None:
    note("VALUE", n, engine.value(n))
"""


def test_jobs_are_not_given_each_others_values(project_on_postgres: Project) -> None:
    project = project_on_postgres
    (project.folder / "tasks.py").write_text(TASKS + ENGINE)
    pod = project.start()
    assert pod.says("which workers are cut off from; connect in a function of @app.on_worker_start")
    project.app.enqueue_many([project.app.job("tasks.value", {"args": [n], "kwargs": {}}) for n in range(200)])

    def values() -> list[tuple[int, int]]:
        return [(int(asked), int(given)) for _, asked, given in project.events("VALUE")]

    eventually(lambda: project.app.storage.counts() == {} or any(asked != given for asked, given in values()))
    assert sorted(values()) == [(n, n) for n in range(200)]
    assert project.app.storage.ended_counts() == {"default": {Status.DONE: 200}}
    workers = [pid for (_, pid) in project.events("AGAIN")]
    assert len(workers) == len(set(workers)) <= 4, "each worker saw once that the connection was broken"


def test_the_connection_itself_is_not_ended_by_a_worker_that_lets_go_of_it(project_on_postgres: Project) -> None:
    project = project_on_postgres
    project.configure(1)
    (project.folder / "tasks.py").write_text(
        f"{TASKS}{ENGINE}\n\n@app.task\ndef let_go() -> None:\n    engine.conn.close()\n    engine.connect()\n"
    )
    pod = project.start()
    project.enqueue("let_go")
    eventually(lambda: project.app.storage.ended_counts() == {"default": {Status.DONE: 1}})
    ((_, backend),) = project.events("BACKEND")
    with psycopg.connect(project.url) as conn:
        found = conn.execute("select count(*) from pg_stat_activity where pid = %s", [int(backend)]).fetchone()
    assert found == (1,), "the zygote's own is still there"
    assert pod.stop() == 0


LOOP = """
import asyncio
from forge import Forge

app = Forge()
loop = asyncio.new_event_loop()


@app.task
def add(a: int, b: int) -> int:
    async def in_threads() -> int:
        for _ in range(20):
            await loop.run_in_executor(None, int)
        return a + b

    return loop.run_until_complete(in_threads())
"""


def test_nobody_takes_the_wake_ups_of_a_loop_that_was_made_at_import(project: Project) -> None:
    (project.folder / "tasks.py").write_text(LOOP)
    pod = project.start()
    jobs = [project.enqueue("add", n, 1) for n in range(100)]
    assert [job.result(timeout=30) for job in jobs] == list(range(1, 101))  # type: ignore[attr-defined]
    assert not pod.says("not safe to fork")
