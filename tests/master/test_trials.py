"""Functions of `on_worker_start` that cannot: at a reload, at the first start, and later."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from forge.errors import ExitCode

from .conftest import TASKS, Pod, Project, alive, eventually
from .test_reloading import reload

pytestmark = pytest.mark.impl_free

HOOK = """

@app.on_worker_start
def connect():
    import sys
    note("HOOK", os.getpid())
    TROUBLE
"""
# What a function may do, and what is said of it.
TROUBLES = {
    'raise ConnectionError("no\\nroute")': "tasks.connect failed: ConnectionError: no route",
    "sys.exit(3)": "tasks.connect failed: SystemExit: 3",
    "os._exit(0)": "exited with 0",
    'die("segfault")': "killed by SIGSEGV",
    "time.sleep(600)": "not ready within 1 s",
}
troubles = pytest.mark.parametrize(
    ("trouble", "said"), TROUBLES.items(), ids=["raise", "exit", "_exit", "segv", "hang"]
)
ONCE = "assert os.path.exists('fine')"
BY_LABEL = "assert 'WORDS' not in open('/proc/self/cmdline').read()"


def write(project: Project, trouble: str | None, more: str = "") -> None:
    """tasks.py with such a function. Its time is set apart: bytecode of the same second would be taken for it."""
    path = project.folder / "tasks.py"
    path.write_text(TASKS + (HOOK.replace("TROUBLE", trouble) if trouble else "") + more)
    later = path.stat().st_mtime + 100 * (1 + len(path.read_text()))
    os.utime(path, (later, later))


def ran(project: Project) -> int:
    """A job's answer."""
    job: Any = project.enqueue("add", 2, 3)
    return int(job.result(timeout=30))


def refusals(pod: Pod) -> list[str]:
    return [line for line in pod.lines if "not reloaded" in line]


@troubles
def test_code_whose_workers_cannot_start_does_not_replace_workers_that_can(
    project: Project, trouble: str, said: str
) -> None:
    project.settings("ready_within = 1\n[queues.default]\nmax_workers = 2\n")
    pod = project.start()
    before = pod.children()
    write(project, trouble)
    reload(pod, "not reloaded")
    (line,) = refusals(pod)
    assert "not reloaded: a worker of default cannot start: " in line
    assert said in line and line.endswith("; going on as before")
    eventually(lambda: pod.children() == before)
    assert ran(project) == 5
    assert not pod.says("replaced")
    assert len(project.events("HOOK")) == 1, "it was tried in one worker"
    write(project, "pass")
    reload(pod)
    assert ran(project) == 5
    eventually(lambda: not any(map(alive, before)))
    assert pod.stop() == 0


def test_a_job_in_hand_does_not_notice_a_reload_that_cannot_be(project: Project) -> None:
    project.configure(1)
    pod = project.start()
    job: Any = project.enqueue("wait_for", "go")
    eventually(lambda: project.events("START"))
    write(project, "raise ConnectionError")
    reload(pod, "not reloaded")
    (project.folder / "go").touch()
    assert job.result(timeout=30) == "went"
    assert [event[2] for event in project.events("START")] == [event[2] for event in project.events("END")]


def test_each_kind_of_worker_is_tried(project: Project) -> None:
    project.settings('[queues.default]\n[queues.mail]\n[queues.io]\nworker = "async"\nconcurrency = 5\n')
    pod = project.start()
    write(project, BY_LABEL.replace("WORDS", "io/"))
    reload(pod, "not reloaded: a worker of io cannot start: tasks.connect failed: AssertionError")
    assert len(project.events("HOOK")) == 2, "of processes and of asyncio, one each"


def test_what_the_functions_of_a_worker_on_trial_start_ends_with_it(project: Project) -> None:
    project.configure(1)
    pod = project.start()
    daemon = "if os.fork() == 0: os.setsid(); note('DAEMON', os.getpid()); time.sleep(600)"
    write(project, f"{daemon}\n    while not open(LEDGER).read().count('DAEMON'): time.sleep(0.01)\n    1 / 0")
    reload(pod, "not reloaded")
    ((_, pid),) = project.events("DAEMON")
    eventually(lambda: not alive(int(pid)))


def test_the_old_workers_go_on_while_new_ones_fail_after_all(project: Project) -> None:
    pod = project.start()
    before = pod.children()
    write(project, f"assert 'trial' in open('/proc/self/cmdline').read() or {ONCE.removeprefix('assert ')}")
    pod.process.send_signal(signal.SIGHUP)
    eventually(lambda: pod.says("exited with 78: tasks.connect failed: AssertionError"))
    eventually(lambda: len(project.events("HOOK")) >= 4)
    assert sum(map(alive, before)) == 4, "one worker of four was to be replaced; the zygote stays with the others"
    assert ran(project) == 5
    (project.folder / "fine").touch()
    eventually(lambda: pod.says("4 workers replaced"))
    eventually(lambda: not any(map(alive, before)))


# -- several words at once -------------------------------------------------------------------------------------


def test_a_reload_that_hangs_gives_way_to_the_next_one(project: Project) -> None:
    pod = project.start()
    write(project, "time.sleep(600)")
    pod.process.send_signal(signal.SIGHUP)
    eventually(lambda: project.events("HOOK"))
    write(project, None)
    reload(pod)
    ((_, pid),) = project.events("HOOK")
    eventually(lambda: not alive(int(pid)))
    assert ran(project) == 5


def test_a_word_to_stop_ends_a_reload_that_hangs(project: Project) -> None:
    pod = project.start()
    write(project, "time.sleep(600)")
    pod.process.send_signal(signal.SIGHUP)
    eventually(lambda: project.events("HOOK"))
    everybody = pod.children()
    assert pod.stop() == 0
    eventually(lambda: not any(map(alive, everybody)))
    assert project.app.storage.pods() == []


# -- the first start -------------------------------------------------------------------------------------------


@troubles
def test_a_first_start_that_cannot_be_ends_with_the_reason(project: Project, trouble: str, said: str) -> None:
    project.settings("ready_within = 1\n[queues.default]\nmax_workers = 2\n")
    write(project, trouble)
    found = project.run()
    assert found.returncode == ExitCode.START
    (line,) = [line for line in found.stderr.splitlines() if "could start" in line]
    assert "no worker of default could start: worker default/" in line
    assert said in line and line.endswith("; stopping")
    assert project.app.storage.pods() == []
    assert "ready in" not in found.stderr


def test_one_queue_of_which_no_worker_can_start_is_enough(project: Project) -> None:
    project.settings("[queues.default]\n[queues.mail]\nmax_workers = 2\n")
    write(project, BY_LABEL.replace("WORDS", "mail/"))
    found = project.run()
    assert found.returncode == ExitCode.START
    assert "no worker of mail could start: worker mail/" in found.stderr


def test_a_start_that_is_off_lets_jobs_of_other_queues_end(project: Project) -> None:
    project.settings("[queues.default]\n[queues.mail]\n")
    wait = "while 'mail/' in open('/proc/self/cmdline').read() and 'START' not in open(LEDGER).read(): time.sleep(0.01)"
    write(project, f"{wait}\n    {BY_LABEL.replace('WORDS', 'mail/')}")
    job: Any = project.enqueue("wait_for", "go")
    pod = project.launch()
    eventually(lambda: pod.says("no worker of mail could start"))
    (project.folder / "go").touch()
    assert pod.process.wait(60) == ExitCode.START
    assert job.result(timeout=30) == "went"


def test_one_worker_that_starts_is_enough_to_go_on(project: Project) -> None:
    project.configure(2)
    write(project, f"assert os.path.exists('fine') or {BY_LABEL.replace('WORDS', '/1').removeprefix('assert ')}")
    pod = project.launch()
    eventually(lambda: pod.says("default/1 (") and pod.says("worker starts in"))
    assert ran(project) == 5
    (project.folder / "fine").touch()
    pod.ready()
    assert pod.stop() == 0


def test_a_reload_may_mend_what_cannot_start(project: Project) -> None:
    project.settings("ready_within = 3\n[queues.default]\n")
    write(project, "time.sleep(600)")
    pod = project.launch()
    eventually(lambda: project.events("HOOK"))
    write(project, None, "\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\n")
    pod.process.send_signal(signal.SIGHUP)
    eventually(lambda: pod.says("was not ready within 3 s"))
    (project.folder / "go").touch()
    pod.ready()
    assert ran(project) == 5


# -- later -----------------------------------------------------------------------------------------------------


def test_a_function_that_fails_later_is_called_again_until_it_can(project: Project) -> None:
    project.configure(2)
    fine = project.folder / "fine"
    fine.touch()
    write(project, ONCE)
    pod = project.start()
    fine.unlink()
    for _, pid in project.events("HOOK"):
        os.kill(int(pid), signal.SIGKILL)
    eventually(lambda: len(project.events("HOOK")) >= 8)
    assert pod.process.poll() is None
    assert pod.says("exited with 78: tasks.connect failed: AssertionError")
    fine.touch()
    assert ran(project) == 5
    assert pod.stop() == 0
