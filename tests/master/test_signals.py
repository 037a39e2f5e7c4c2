"""The signals that change a running master, or have it tell about itself."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from .conftest import Pod, Project, alive, eventually

pytestmark = pytest.mark.impl_free


def workers(pod: Pod) -> int:
    """All below the master but the zygote."""
    return len(pod.children()) - 1


def test_ttin_and_ttou_add_and_take_one_worker_of_every_queue(project: Project) -> None:
    project.settings("[queues.default]\nmax_workers = 2\n[queues.mail]\nmax_workers = 1\n")
    pod = project.start()
    pod.process.send_signal(signal.SIGTTIN)
    eventually(lambda: pod.says("default: 3 workers, mail: 2 workers"))
    eventually(lambda: workers(pod) == 5)
    for left in ("default: 2 workers, mail: 1 worker", "default: 1 worker, mail: 1 worker"):
        pod.process.send_signal(signal.SIGTTOU)
        eventually(lambda left=left: pod.says(left))  # type: ignore[misc]
    pod.process.send_signal(signal.SIGTTOU)  # never below one
    eventually(lambda: sum("default: 1 worker, mail: 1 worker" in line for line in pod.lines) == 2)
    eventually(lambda: workers(pod) == 2)
    job: Any = project.enqueue("add", 2, 3)
    assert job.result(timeout=30) == 5


def test_a_worker_that_is_taken_away_finishes_its_job(project: Project) -> None:
    project.settings("[queues.default]\nmax_workers = 2\n")
    pod = project.start()
    jobs: list[Any] = [project.enqueue("wait_for", "go"), project.enqueue("wait_for", "go")]
    eventually(lambda: len(project.events("START")) == 2)
    pod.process.send_signal(signal.SIGTTOU)
    eventually(lambda: pod.says("default: 1 worker"))
    (project.folder / "go").touch()
    assert [job.result(timeout=30) for job in jobs] == ["went", "went"]
    assert len(project.events("START")) == 2
    eventually(lambda: workers(pod) == 1)
    pod.process.send_signal(signal.SIGTTIN)
    eventually(lambda: workers(pod) == 2)
    assert pod.stop() == 0


def test_usr2_writes_the_stacks_of_every_process_to_the_log(project: Project) -> None:
    project.configure(1)
    pod = project.start()
    project.enqueue("wait_for", "go")
    eventually(lambda: project.events("START"))
    pod.process.send_signal(signal.SIGUSR2)
    eventually(lambda: pod.says("thread MainThread"))
    eventually(lambda: pod.says("thread beat"))
    eventually(lambda: pod.says("the zygote ("))
    eventually(lambda: pod.says("in wait_for"))  # the worker's
    (_, _, pid), *_ = project.events("START")
    assert alive(int(pid))
