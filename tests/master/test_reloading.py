"""SIGHUP: new code and settings under load; and what cannot be loaded changes nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from forge.errors import ExitCode
from forge.job import Status

from .conftest import TASKS, Pod, Project, alive, eventually

pytestmark = pytest.mark.impl_free


def reload(pod: Pod, words: str = "replaced") -> None:
    """Send HUP and wait until it is done."""
    seen = sum(words in line for line in pod.lines)
    pod.process.send_signal(signal.SIGHUP)
    eventually(lambda: sum(words in line for line in pod.lines) > seen)


def zygotes(pod: Pod) -> list[int]:
    """Those that run."""
    pid = pod.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split() if alive(int(child))]


def rewrite(project: Project, **changed: str) -> None:
    """tasks.py with words replaced. Its time is set apart: bytecode of the same second would be taken for it."""
    text = TASKS
    for old, new in changed.items():
        assert old in text
        text = text.replace(old, new)
    path = project.folder / "tasks.py"
    path.write_text(text)
    os.utime(path, (path.stat().st_atime + 100, path.stat().st_mtime + 100))


def test_new_code_runs_under_load_and_no_job_is_lost_or_run_twice(project: Project) -> None:
    pod = project.start()
    jobs = 400
    load = [project.app.job("tasks.slow", {"args": [n, 0.01], "kwargs": {}}) for n in range(jobs)]
    project.app.enqueue_many(load[:300])
    eventually(lambda: len(project.events("END")) >= 20)
    before = zygotes(pod)
    rewrite(project, **{'note("END", n, os.getpid())': 'note("END", n, os.getpid(), "new")'})
    reload(pod)
    project.app.enqueue_many(load[300:])  # if the others had all ended before
    eventually(lambda: project.app.storage.counts() == {})
    ends = project.events("END")
    assert sorted((line[1] for line in ends), key=int) == [str(n) for n in range(jobs)]
    assert {len(line) for line in ends} == {3, 4}, "both the old code and the new one ran"
    assert project.app.storage.ended_counts() == {"default": {Status.DONE: jobs}}
    eventually(lambda: not any(alive(pid) for pid in before))
    assert len(zygotes(pod)) == 1
    assert len(pod.children()) == 5


def test_a_long_job_finishes_in_its_old_worker_while_the_others_are_replaced(project: Project) -> None:
    pod = project.start()
    job: Any = project.enqueue("wait_for", "go")
    eventually(lambda: project.events("START"))
    old = pod.children()
    rewrite(project, **{"return a + b": "return a + b + 1000"})
    pod.process.send_signal(signal.SIGHUP)

    def answer() -> int:
        add: Any = project.enqueue("add", 2, 3)
        return int(add.result(timeout=30))

    eventually(lambda: answer() == 1005)
    assert alive(int(project.events("START")[0][2]))
    (project.folder / "go").touch()
    assert job.result(timeout=30) == "went"
    eventually(lambda: not any(alive(pid) for pid in old))
    assert [answer() for _ in range(8)] == [1005] * 8


def test_what_cannot_be_loaded_leaves_all_as_it_was(project: Project) -> None:
    pod = project.start()
    workers = pod.children()
    project.settings("[queues.default]\nmax_worker = 2\n")
    reload(pod, "not reloaded: ")
    assert pod.says("unknown key queues.default.max_worker")
    project.configure(4)
    rewrite(project, **{"app = Forge()": "app = Forge(\n"})
    reload(pod, "not reloaded: cannot import tasks: SyntaxError")
    assert pod.children() == workers
    job: Any = project.enqueue("add", 2, 3)
    assert job.result(timeout=30) == 5


def test_queues_and_workers_follow_the_settings(project: Project) -> None:
    pod = project.start()
    project.settings("[queues.default]\nmax_workers = 1\n[queues.mail]\nmax_workers = 2\n")
    reload(pod)
    eventually(lambda: len(pod.children()) == 4)
    job: Any = project.enqueue("add", 2, 3, queue="mail")
    assert job.result(timeout=30) == 5
    assert project.app.storage.queues()["mail"].max_workers == 2
    project.settings("[queues.mail]\nmax_workers = 3\n")
    reload(pod)
    eventually(lambda: len(pod.children()) == 4)
    left: Any = project.enqueue("add", 2, 3)
    job = project.enqueue("add", 2, 4, queue="mail")
    assert job.result(timeout=30) == 6
    assert left.status == Status.PENDING
    assert pod.stop() == 0


def test_modules_that_leave_a_thread_running_are_told_of_or_refused(project: Project) -> None:
    text = (
        TASKS
        + "\nimport threading\nthreading.Thread(target=time.sleep, args=[600], name='poller', daemon=True).start()\n"
    )
    (project.folder / "tasks.py").write_text(text)
    pod = project.start()
    assert pod.says("not safe to fork: tasks: left the thread poller running")
    assert pod.stop() == 0
    project.settings('fork_safety = "strict"\n[queues.default]\n')
    ran = project.run()
    assert ran.returncode == ExitCode.CONFIG
    assert "error: tasks: left the thread poller running" in ran.stderr


def test_the_pods_own_settings_follow_too(project: Project) -> None:
    project.settings("heartbeat = 30\nstale_after = 600\n[queues.default]\n")
    pod = project.start()
    (row,) = project.app.storage.pods()
    assert row.queues == ("default",)
    project.settings('heartbeat = 0.05\nstale_after = 5\n[queues.default]\n[queues.mail]\n[logging]\nformat = "json"\n')
    reload(pod)
    assert pod.lines[-1].startswith("{"), "the log has changed its format"
    eventually(lambda: project.app.storage.pods()[0].queues == ("default", "mail"))
    beat = project.app.storage.pods()[0].beat_at
    eventually(lambda: project.app.storage.pods()[0].beat_at > beat)  # the next one would have come in 30 s


def test_a_log_that_cannot_be_opened_stays_as_it_was(project: Project) -> None:
    project.settings("[queues.default]\n")
    pod = project.start()
    project.settings('[queues.default]\n[logging]\nfile = "no/such/folder/log"\n')
    pod.process.send_signal(signal.SIGHUP)
    eventually(lambda: pod.says("cannot write the log file"))
    job: Any = project.enqueue("add", 2, 3)
    assert job.result(timeout=30) == 5
