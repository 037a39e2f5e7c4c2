"""A job that runs on one pod is cancelled from elsewhere: it is the notification that stops it, and no poll."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from forge.job import Status
from tests.master.conftest import Project, eventually

pytestmark = pytest.mark.impl_free

# Nothing but a notification can bring the news: a heart that beats every ten minutes brings it far too late.
SETTINGS = """
heartbeat = 600
stale_after = 3600
poll_interval = 600
[queues.here]
[queues.there]
"""
TASKS = """

@app.task
def stop(id: str) -> str:
    return str(app.cancel([id]))
"""


def beats(project: Project) -> dict[int, datetime]:
    return {pod.id: pod.beat_at for pod in project.app.storage.pods()}


@pytest.mark.parametrize("who", ["client", "shell", "pod"])
def test_a_handler_on_another_pod_is_stopped_by_the_notification_and_not_by_a_poll(project: Project, who: str) -> None:
    with (project.folder / "tasks.py").open("a") as file:
        file.write(TASKS)
    project.settings(SETTINGS)
    for queue in ("here", "there"):
        project.env["FORGE_QUEUES"] = queue
        project.start()
    jobs: list[Any] = [project.enqueue("patient", queue="there") for _ in range(3)]
    by_notification = 0
    for n, job in enumerate(jobs, 1):
        eventually(lambda n=n: len(project.events("START")) == n)  # type: ignore[misc]
        before = beats(project)
        cancel(project, str(job.id), who)
        eventually(lambda job=job: job.status == Status.CANCELLED)  # type: ignore[misc]
        assert job.job().last_error == "cancelled by user"
        by_notification += beats(project) == before
    assert by_notification >= 2, "hearts have beaten meanwhile and may have brought it"
    assert project.events("END") == []


def cancel(project: Project, id: str, who: str) -> None:
    if who == "client":
        assert list(project.app.cancel([id]).values()) == ["requested"]
    elif who == "shell":
        command = [str(Path(sys.executable).parent / "forge"), "cancel", id]
        subprocess.run(command, cwd=project.folder, env=project.env, capture_output=True, timeout=60, check=True)
    else:
        asking: Any = project.enqueue("stop", id, queue="here")
        assert "requested" in asking.result(timeout=30)
