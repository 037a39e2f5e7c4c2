"""The database goes away under load and comes back. A server of the tests' own is stopped the hard way."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.common import CrashingServer as Server
from forge.errors import ExitCode
from forge.job import Status
from forge.storage import open_storage

from .conftest import Project, eventually, making

pytestmark = pytest.mark.impl_free


@pytest.fixture
def server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="forge-pg-"))
    made = Server(folder)
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def project(tmp_path: Path, server: Server) -> Iterator[Project]:
    with open_storage(server.url) as storage:
        storage.migrate()
    yield from making(tmp_path, server.url)


def test_a_database_that_restarts_under_load_is_waited_for(project: Project, server: Server) -> None:
    pod = project.start()
    jobs = 300
    project.app.enqueue_many([project.app.job("tasks.slow", {"args": [n, 0.02], "kwargs": {}}) for n in range(jobs)])
    eventually(lambda: len(project.events("END")) >= 30)
    workers = pod.children()
    server.stop()
    eventually(lambda: pod.says("going on when it is back"))
    server.start()
    eventually(lambda: pod.says("the database is back"))
    eventually(lambda: project.app.storage.counts() == {}, within=60)
    assert project.app.storage.ended_counts() == {"default": {Status.DONE: jobs}}
    assert {line[1] for line in project.events("END")} == {str(n) for n in range(jobs)}
    assert pod.children() == workers, "nobody has died of it"
    assert sum("going on when it is back" in line for line in pod.lines) <= 3
    assert pod.stop() == 0


def test_results_are_kept_until_the_database_is_back(project: Project, server: Server) -> None:
    pod = project.start()
    job: Any = project.enqueue("wait_for", "go")
    eventually(lambda: project.events("START"))
    project.enqueue("add", 2, 3, delay=3600)  # a claim need not wait for the disk, but this does, with all before it
    server.stop()
    (project.folder / "go").touch()
    eventually(lambda: project.events("END"))
    eventually(lambda: pod.says("going on when it is back"))
    server.start()
    assert job.result(timeout=60) == "went"
    assert len(project.events("START")) == 1


def test_a_stop_while_the_database_is_away_says_what_could_not_be_written(project: Project, server: Server) -> None:
    project.settings("shutdown_timeout = 1\n[queues.default]\n")
    pod = project.start()
    job: Any = project.enqueue("wait_for", "go")
    eventually(lambda: project.events("START"))
    server.stop()
    (project.folder / "go").touch()
    eventually(lambda: project.events("END"))
    assert pod.stop(signal.SIGTERM) == ExitCode.DATABASE
    assert pod.says("1 result could not be written: their jobs will run again")
    server.start()
    project.start()
    assert job.result(timeout=60) == "went"
    assert len(project.events("START")) == 2
