"""After an outage of the database only those are taken for dead who are; but a pod cannot tell an outage from being cut
off, and ends its handlers when it has lasted too long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.common import CrashingServer as Server
from forge.storage import open_storage
from tests.master.conftest import Project, eventually, making
from tests.master.test_outage import server

pytestmark = pytest.mark.impl_free
__all__ = ["server"]  # a fixture of theirs
STALE, OUTAGE = 6.0, 20.0  # seconds


@pytest.fixture
def project(tmp_path: Path, server: Server) -> Iterator[Project]:
    with open_storage(server.url) as storage:
        storage.migrate()
    for made in making(tmp_path, server.url):
        made.settings(f"heartbeat = 0.2\nstale_after = {STALE}\nleader_ttl = 2.0\n[queues.default]\nmax_workers = 1\n")
        yield made


@pytest.mark.slow
def test_a_restart_of_the_database_is_not_a_massacre(project: Project, server: Server) -> None:
    pods = [project.launch() for _ in range(3)]
    for pod in pods:
        pod.ready()
    job: Any = project.enqueue("wait_for", "go")
    eventually(lambda: project.events("START"))
    project.enqueue("add", 2, 3, delay=3600)  # a claim need not wait for the disk, but this does, with all before it
    worker = int(project.events("START")[0][2])
    dead = next(pod for pod in pods if worker not in pod.children())
    project.app.close()
    dead.process.kill()
    server.stop()
    down = time.monotonic()
    alive = [pod for pod in pods if pod is not dead]
    eventually(lambda: all(pod.says("going on when it is back") for pod in alive))
    eventually(lambda: time.monotonic() > down + OUTAGE)  # every pod has been silent for too long
    server.start()
    eventually(lambda: any(pod.says("had gone silent") for pod in alive))
    said = [line for pod in alive for line in pod.lines if "had gone silent" in line]
    assert len(said) == 1 and "1 pod had gone silent; 0 jobs" in said[0]
    assert all(pod.says("what it ran is killed") and pod.says("workers start anew") for pod in alive)
    (project.folder / "go").touch()
    assert job.result(timeout=30) == "went"
    assert len(project.events("START")) == 2
    assert (job.job().attempts, job.job().crashes, job.job().errors) == (1, 0, ())
    assert not any(pod.says("had been taken for dead") for pod in alive)
    eventually(lambda: {pod.pid for pod in project.app.storage.pods()} == {pod.process.pid for pod in alive})
