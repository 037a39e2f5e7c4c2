"""What a master lives through: its zygote killed, itself stopped for too long, hundreds of dead workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from forge.job import Status

from .conftest import TASKS, Pod, Project, alive, eventually

pytestmark = pytest.mark.impl_free


def zygote(pod: Pod) -> int:
    pid = pod.process.pid
    (found,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found)


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def age(pid: int) -> float:
    """Seconds since it was started."""
    started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def test_a_killed_zygote_is_replaced_and_its_jobs_run_again_without_a_crash_counted(project: Project) -> None:
    pod = project.start()
    job: Any = project.enqueue("wait_for", "go")
    eventually(lambda: project.events("START"))
    old = pod.children()
    os.kill(zygote(pod), signal.SIGKILL)
    eventually(lambda: len(project.events("START")) == 2)
    assert not any(alive(pid) for pid in old)
    assert pod.says("the zygote killed by SIGKILL, and its workers with it")
    (project.folder / "go").touch()
    assert job.result(timeout=30) == "went"
    assert (job.job().attempts, job.job().crashes) == (1, 0)
    eventually(lambda: len(pod.children()) == 5)
    assert pod.stop() == 0


def test_a_master_that_was_stopped_for_too_long_starts_over_as_a_new_pod(project_on_postgres: Project) -> None:
    project = project_on_postgres
    project.settings("heartbeat = 0.1\nstale_after = 2.0\n[queues.default]\nmax_workers = 2\n")
    first = project.start()
    (pod,) = project.app.storage.pods()
    job: Any = project.enqueue("wait_for", "go", max_attempts=3)
    eventually(lambda: project.events("START"))
    (_, _, worker), *_ = project.events("START")
    first.process.send_signal(signal.SIGSTOP)
    second = project.start()
    eventually(lambda: second.says("1 pod had gone silent; 1 job taken back"))
    eventually(lambda: len(project.events("START")) == 2)  # another runs it now
    first.process.send_signal(signal.SIGCONT)
    eventually(lambda: first.says("this pod had been taken for dead; starting over as a new one"))
    eventually(lambda: not alive(int(worker)))
    assert job.status == Status.IN_PROGRESS
    (project.folder / "go").touch()
    assert job.result(timeout=30) == "went"
    assert len(project.events("START")) == 2
    assert len(project.app.storage.pods()) == 2
    assert pod.id not in {pod.id for pod in project.app.storage.pods()}
    assert second.stop() == 0
    again: Any = project.enqueue("add", 2, 3)
    assert again.result(timeout=30) == 5  # by the first


def test_an_ending_that_comes_too_late_is_dropped(project_on_postgres: Project) -> None:
    project = project_on_postgres
    project.settings("heartbeat = 0.1\nstale_after = 2.0\n[queues.default]\nmax_workers = 1\n")
    first = project.start()
    job: Any = project.enqueue("wait_for", "go", max_attempts=3)
    eventually(lambda: project.events("START"))
    first.process.send_signal(signal.SIGSTOP)
    (project.folder / "go").touch()
    eventually(lambda: project.events("END"))  # which the first one does not hear of
    second = project.start()
    eventually(lambda: second.says("taken back"))
    eventually(lambda: job.status == Status.DONE)
    eventually(lambda: len(project.events("END")) == 2)
    attempts = job.job().attempts
    first.process.send_signal(signal.SIGCONT)
    eventually(lambda: first.says("taken for dead"))
    assert (job.status, job.job().attempts) == (Status.DONE, attempts)


def test_two_hundred_dead_workers_leave_no_zombie_and_no_descriptor_behind(project: Project) -> None:
    project.configure(50)
    pod = project.start()
    parent = zygote(pod)
    job: Any = project.enqueue("add", 1, 2)
    assert job.result(timeout=30) == 3  # all connections are open now
    before = descriptors(pod.process.pid), descriptors(parent)
    for _ in range(4):
        workers = pod.children() - {parent}
        eventually(lambda workers=workers: min(map(age, workers)) > 1.1)  # type: ignore[misc]  # none dies young
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda workers=workers: not any(Path(f"/proc/{pid}").exists() for pid in workers))  # type: ignore[misc]
        eventually(lambda: len(pod.children()) == 51)
    job = project.enqueue("add", 2, 3)
    assert job.result(timeout=30) == 5
    # A connection or two may have been opened meanwhile; a descriptor for each of the dead would be 200.
    eventually(lambda: descriptors(pod.process.pid) <= before[0] + 6 and descriptors(parent) == before[1])
    assert zygote(pod) == parent


def test_a_worker_whose_child_outlives_it_is_seen_to_be_gone(project: Project) -> None:
    pod = project.start()
    job: Any = project.enqueue("orphan")
    eventually(lambda: job.status == Status.DEAD)  # the child holds the worker's socket open
    eventually(lambda: not any(alive(int(pid)) for _, pid in project.events("GRANDCHILD")))
    assert job.job().crashes == 3
    assert len(pod.children()) >= 1


def test_a_job_of_a_kind_that_nobody_knows_goes_back_and_is_told_of(project: Project) -> None:
    pod = project.start()
    job = project.app.enqueue("tasks.ad", {"args": [2, 3], "kwargs": {}})
    eventually(lambda: job.status == Status.FAILED)
    assert (job.job().attempts, job.job().last_error) == (0, "no handler for kind tasks.ad")
    eventually(lambda: pod.says("no handler for kind tasks.ad; did you mean tasks.add?"))


def test_a_kind_that_nobody_came_to_know_in_time_is_dead(project: Project) -> None:
    project.settings("unknown_kind_ttl = 0\n[queues.default]\n")
    project.start()
    job = project.app.enqueue("nobody.knows", {})
    eventually(lambda: job.status == Status.DEAD)
    assert job.job().last_error == "no handler for kind nobody.knows"


SLOW_START = """

@app.on_worker_start
def connect():
    note("CONNECT", os.getpid())
    if len([line for line in open(LEDGER) if line.startswith("CONNECT ")]) == 1:
        time.sleep(600)
"""


def test_a_worker_that_does_not_become_ready_is_killed_and_another_is_started(project: Project) -> None:
    project.settings("ready_within = 1.0\n[queues.default]\nmax_workers = 2\n")
    (project.folder / "tasks.py").write_text(TASKS + SLOW_START)
    pod = project.start()
    assert pod.says(" was not ready within 1 s")
    (_, first), *others = project.events("CONNECT")
    assert not alive(int(first)) and [alive(int(pid)) for _, pid in others] == [True, True]
    job: Any = project.enqueue("add", 2, 3)
    assert job.result(timeout=30) == 5


def test_jobs_that_kill_their_worker_at_once_do_not_keep_it_away_for_long(project: Project) -> None:
    project.settings("max_crashes = 7\n[queues.default]\n")
    (project.folder / "tasks.py").write_text(TASKS + "\n\n@app.task\ndef deadly() -> None:\n    os._exit(9)\n")
    pod = project.start()
    job: Any = project.enqueue("deadly")
    eventually(lambda: job.status == Status.DEAD)
    assert job.job().crashes == 7
    assert not pod.says("worker starts in"), "but for the first, it was alone each time: nobody else waits for that"


def test_progress_reaches_the_database_while_the_job_runs(project: Project) -> None:
    handler = """

@app.handler("steps")
def steps(ctx, payload):
    ctx.progress(40, "halfway or so")
    wait_for("go")
"""
    (project.folder / "tasks.py").write_text(TASKS + handler)
    project.configure(1)
    project.start()
    job = project.app.enqueue("steps", None)
    forge = [str(Path(sys.executable).parent / "forge"), "show", str(job.id)]

    def shown() -> str:
        said = subprocess.run(forge, cwd=project.folder, env=project.env, capture_output=True, text=True, check=True)
        return said.stdout

    eventually(lambda: "40 %" in shown() and "halfway or so" in shown())
    (project.folder / "go").touch()
    eventually(lambda: job.status == Status.DONE)
