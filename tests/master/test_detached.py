"""Processes that handlers and programs detach, in every way there is: they go with the worker or program that they come
from, and no sooner; and all of them with the zygote or the master."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge.descendants import parent_of
from forge.job import Status

from .conftest import TASKS, Pod, Project, alive, eventually
from .test_programs import pool, sh
from .test_surviving import zygote

pytestmark = [pytest.mark.impl_free, pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own means")]

DETACHING = r"""
import subprocess, sys

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def told(pid):
    note("DETACHED", pid, os.getpid())


def daemon():
    # As a daemon of old is made: two forks, a session of its own, a look at nothing that was open before.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            os.closerange(0, 256)
            told(os.getpid())
            time.sleep(600)
        os._exit(0)
    os.wait()


def family():
    # One that has children which are detached in turn.
    if os.fork() == 0:
        os.setsid()
        for _ in range(2):
            daemon()
        told(os.getpid())
        time.sleep(600)


WAYS = {
    "session": lambda: told(subprocess.Popen(SLEEP, start_new_session=True).pid),
    "group": lambda: told(subprocess.Popen(SLEEP, process_group=0).pid),
    "no environment": lambda: told(subprocess.Popen(SLEEP, start_new_session=True, env={}).pid),
    "shell": lambda: os.system("setsid sleep 600 & echo DETACHED $! >> $LEDGER"),
    "daemon": daemon,
    "family": family,
}


def detach_all():
    for way in WAYS.values():
        way()


@app.task
def detach(name: str) -> str:
    detach_all()
    note("START", name, os.getpid())
    while True:  # whoever asks
        try:
            while not os.path.exists(os.path.join(os.path.dirname(LEDGER), name)):
                time.sleep(0.01)
            return "went"
        except BaseException:
            pass


@app.task
def obedient(name: str) -> None:
    detach_all()
    note("START", name, os.getpid())
    time.sleep(600)


@app.task
async def obedient_async(name: str) -> None:
    import asyncio

    detach_all()
    note("START", name, os.getpid())
    await asyncio.sleep(600)
"""
EACH = 8  # processes that one job detaches: family is three of them


@pytest.fixture
def project(sqlite_url: str, tmp_path: Path) -> Any:
    """On one database: this is about processes."""
    from .conftest import making

    for made in making(tmp_path, sqlite_url):
        (made.folder / "tasks.py").write_text(TASKS + DETACHING)
        yield made
        for pid in filter(alive, detached(made)):  # of a test that has failed
            os.kill(pid, signal.SIGKILL)


class Running:
    """A job that has detached processes, and goes on."""

    def __init__(self, project: Project, name: str, task: str = "detach", **options: object) -> None:
        before = set(detached(project))
        self.job: Any = project.enqueue(task, name, max_attempts=1, **options)
        eventually(lambda: any(words[1] == name for words in project.events("START")))
        (self.worker,) = (int(words[2]) for words in project.events("START") if words[1] == name)
        eventually(lambda: len(set(detached(project)) - before) == EACH)
        self.strays = set(detached(project)) - before
        assert all(map(alive, self.strays))

    def gone(self) -> bool:
        return not any(alive(pid) for pid in (self.worker, *self.strays))

    def untouched(self) -> bool:
        return all(alive(pid) for pid in (self.worker, *self.strays))


def detached(project: Project) -> list[int]:
    return [int(words[1]) for words in project.events("DETACHED")]


def cancelled(project: Project, running: Running) -> None:
    running.job.cancel()


def killed(project: Project, running: Running) -> None:
    os.kill(running.worker, signal.SIGKILL)


def timed_out(project: Project, running: Running) -> None:
    """By itself."""


@pytest.mark.parametrize("how", [cancelled, killed, timed_out], ids=lambda how: how.__name__)
def test_what_a_handler_detached_goes_with_its_worker_and_no_other(
    project: Project, how: Callable[[Project, Running], None]
) -> None:
    project.settings("max_crashes = 1\n[queues.default]\nmax_workers = 3\n")
    pod = project.start()
    beside = Running(project, "beside")
    ends = Running(project, "ends", timeout=2 if how is timed_out else 600)
    how(project, ends)
    eventually(ends.gone, within=15)
    eventually(lambda: ends.job.status in (Status.CANCELLED, Status.DEAD))
    assert beside.untouched()
    (project.folder / "beside").touch()
    assert beside.job.result(timeout=30) == "went"
    assert beside.untouched()  # the worker lives, and what its job left may be of use to the next
    assert pod.stop() == 0
    eventually(beside.gone, within=15)


@pytest.mark.parametrize("worker", ["process", "threads", "async"])
@pytest.mark.parametrize("task", ["obedient", "obedient_async"])
@pytest.mark.parametrize("how", [cancelled, timed_out], ids=lambda how: how.__name__)
def test_what_a_job_detached_goes_when_it_is_stopped_though_its_handler_obeys(
    project: Project, how: Callable[[Project, Running], None], task: str, worker: str
) -> None:
    """Its worker need not be killed then, but it is replaced."""
    project.settings(f'[queues.default]\nmax_workers = 1\nworker = "{worker}"\n')
    pod = project.start()
    ends = Running(project, "ends", task, timeout=2 if how is timed_out else 600)
    how(project, ends)
    eventually(ends.gone, within=15)
    eventually(lambda: ends.job.status in (Status.CANCELLED, Status.DEAD))
    after: Any = project.enqueue("add", 2, 3)
    assert after.result(timeout=30) == 5
    assert after.job().attempts == 1
    assert pod.stop() == 0


def test_a_job_that_was_stopped_and_left_nothing_keeps_its_worker(project: Project) -> None:
    project.configure(1)
    pod = project.start()
    before = pod.children()
    job: Any = project.enqueue("patient")
    eventually(lambda: project.events("START"))
    job.cancel()
    eventually(lambda: job.status is Status.CANCELLED)
    after: Any = project.enqueue("add", 2, 3)
    assert after.result(timeout=30) == 5
    assert pod.children() == before
    assert pod.stop() == 0


@pytest.mark.parametrize("whom", ["master", "zygote"])
def test_what_handlers_detached_goes_with_the_zygote_and_the_master(project: Project, whom: str) -> None:
    project.configure(2)
    pod = project.start()
    both = Running(project, "one"), Running(project, "two")
    before = pod.process.pid if whom == "master" else zygote(pod)
    os.kill(before, signal.SIGKILL)
    eventually(lambda: all(running.gone() for running in both), within=15)
    if whom == "zygote":
        for name in ("one", "two"):
            (project.folder / name).touch()
        assert [running.job.result(timeout=30) for running in both] == ["went", "went"]
        assert pod.stop() == 0
        eventually(lambda: not any(map(alive, detached(project))), within=15)


def test_a_stopped_worker_and_what_it_detached_go_with_the_master(project: Project) -> None:
    project.configure(1)
    pod = project.start()
    running = Running(project, "one")
    os.kill(running.worker, signal.SIGSTOP)
    os.kill(pod.process.pid, signal.SIGKILL)
    eventually(running.gone, within=15)


def test_the_zygote_sees_the_masters_death_though_somebody_holds_its_socket(project: Project) -> None:
    """A copy of the master's end, as a process that inherited it would have."""
    project.configure(1)
    pod = project.start()
    running = Running(project, "one")
    copies = copies_of_sockets(pod)
    os.kill(pod.process.pid, signal.SIGKILL)
    eventually(running.gone, within=15)
    for copy in copies:
        os.close(copy)


def copies_of_sockets(pod: Pod) -> list[int]:
    """Descriptors of ours for every socket of the master's."""
    import ctypes

    libc, found = ctypes.CDLL(None, use_errno=True), []
    master = libc.syscall(434, pod.process.pid, 0)  # pidfd_open
    assert master >= 0
    for entry in Path(f"/proc/{pod.process.pid}/fd").iterdir():
        if os.readlink(entry).startswith("socket:"):
            copy = libc.syscall(438, master, int(entry.name), 0)  # pidfd_getfd
            assert copy >= 0, os.strerror(ctypes.get_errno())
            found.append(copy)
    os.close(master)
    return found


def test_when_both_are_killed_at_once_all_goes_but_what_was_detached(project: Project) -> None:
    """As far as the kernel goes: nobody is left whom it would tell."""
    project.configure(1)
    pod = project.start()
    running = Running(project, "one")
    below = {pid for pid in pod.children() if pid not in running.strays}
    for number in (signal.SIGSTOP, signal.SIGKILL):  # so that neither can act on the other's death
        for pid in (zygote(pod), pod.process.pid):
            os.kill(pid, number)
    eventually(lambda: not any(map(alive, below)), within=15)
    for pid in running.strays:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_orphans_do_not_pile_up_in_the_zygote_while_their_worker_lives(project: Project) -> None:
    brief = "\n\n@app.task\ndef brief() -> None:\n    os.system('setsid true & setsid true &')\n"
    (project.folder / "tasks.py").write_text(TASKS + brief)
    project.configure(1)
    pod = project.start()
    jobs: list[Any] = [project.enqueue("brief") for _ in range(20)]
    for job in jobs:
        job.result(timeout=30)
    eventually(lambda: len(pod.children()) == 2)  # the zygote and the worker: no zombies
    assert pod.stop() == 0


def test_what_a_program_detached_goes_with_it(project: Project) -> None:
    detaches = "setsid sleep 600 & echo DETACHED $! >> $LEDGER; "
    answers = """while read -r l; do echo '{"status":"ok"}'; [ -e leave ] && exit; done"""
    text = pool("keeps", *sh(detaches + answers)) + f'[commands.once]\nargv = ["sh", "-c", "{detaches}"]\n'
    project.settings(f"[queues.default]\n{text}")
    pod = project.start()
    eventually(lambda: len(detached(project)) == 1)
    once = project.app.enqueue("cmd_exec", {"command": "once"}, keep_result=True)
    once.result(timeout=30)
    eventually(lambda: len(detached(project)) == 2)
    first, second = detached(project)
    eventually(lambda: not alive(second), within=15)
    project.app.enqueue("keeps", {}, keep_result=True).result(timeout=30)
    assert alive(first)
    (project.folder / "leave").touch()
    project.app.enqueue("keeps", {}, keep_result=True).result(timeout=30)
    eventually(lambda: not alive(first), within=15)
    assert pod.stop() == 0


def test_processes_that_come_from_no_worker_stay(project: Project) -> None:
    """One that was there before it, as the child of a shell that became the master. And one that a module has started
    lives as long as the zygote."""
    helper = "\n\nimport subprocess\nnote('HELPER', subprocess.Popen(['sleep', '600']).pid)\n"
    (project.folder / "tasks.py").write_text(TASKS + DETACHING + helper)
    script = project.folder / "start"
    script.write_text(f'sleep 600 &\necho "BEFORE $!" >> "$LEDGER"\nexec {sys.executable} -m forge.cli.master "$@"\n')
    from . import conftest

    usual, conftest.MASTER[:1] = conftest.MASTER[:1], ["sh", str(script)]
    try:
        pod = project.start()
    finally:
        conftest.MASTER[:2] = usual
    (before,), (helper_pid, *_) = ([int(words[1]) for words in project.events(word)] for word in ("BEFORE", "HELPER"))
    running = Running(project, "one")
    os.kill(running.worker, signal.SIGKILL)
    eventually(running.gone, within=15)
    assert alive(before) and alive(helper_pid)
    # A worker that has just been forked still has the zygote's title.
    mine = [pid for pid in pod.children() if parent_of(pid) == pod.process.pid]
    os.kill(next(pid for pid in mine if "zygote" in Path(f"/proc/{pid}/cmdline").read_text()), signal.SIGKILL)
    eventually(lambda: pod.says("and its workers with it"))
    eventually(lambda: len(project.events("HELPER")) == 2)
    eventually(lambda: not alive(helper_pid), within=15)
    assert alive(before)
    os.kill(before, signal.SIGKILL)
    assert pod.stop() == 0
    eventually(lambda: not any(alive(int(pid)) for _, pid in project.events("HELPER")), within=15)
