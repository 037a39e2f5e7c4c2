"""A pod that cannot say that it lives ends what it runs before others may take it: nothing runs twice at once, and no
limit is exceeded. Real pods, cut off from their database or stopped."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from forge.descendants import parent_of
from forge.job import Status
from tests.master.conftest import Pod, Project, alive, eventually, making

from . import faults
from .faults import Wire, continuing, most_at_once, runs, stop_tree

pytestmark = pytest.mark.impl_free

STALE = 4.0
SETTINGS = f"heartbeat = 0.2\nstale_after = {STALE}\nleader_ttl = 2.0\n[queues.default]\nmax_workers = {{}}\n"

Fault = Callable[[Pod, Wire, ExitStack], None]


def cut(_: Pod, wire: Wire, healed: ExitStack) -> None:
    healed.callback(wire.heal)
    wire.cut()


def frozen(_: Pod, wire: Wire, healed: ExitStack) -> None:
    healed.callback(wire.heal)
    wire.freeze()


def stopped(pod: Pod, _: Wire, healed: ExitStack) -> None:
    healed.enter_context(continuing([pod.process.pid]))
    pod.process.send_signal(signal.SIGSTOP)


FAULTS = [cut, frozen, stopped]


def project_at(folder: Path, url: str, workers: int) -> Iterator[Project]:
    for made in making(folder, url):
        with (folder / "tasks.py").open("a") as file:
            file.write(faults.TASKS)
        (folder / "says.py").write_text(faults.SAYS)
        made.settings(SETTINGS.format(workers))
        yield made


@pytest.fixture
def project(tmp_path: Path, url: str) -> Iterator[Project]:
    yield from project_at(tmp_path, url, 2)


@pytest.fixture
def wired(tmp_path: Path, pg_url: str) -> Iterator[tuple[Project, Wire]]:
    wire = Wire(pg_url)
    for made in project_at(tmp_path, pg_url, 2):
        yield made, wire
    wire.close()


def launch(project: Project, url: str) -> Pod:
    """A pod that goes this way to the database."""
    before, project.env["FORGE_DATABASE_URL"] = project.env["FORGE_DATABASE_URL"], url
    try:
        return project.launch()
    finally:
        project.env["FORGE_DATABASE_URL"] = before


def run_in(project: Project, pod: Pod) -> int:
    """Jobs that this pod's own processes have begun to run."""
    return sum(run.pid in pod.children() for run in runs(project))


def shares(project: Project) -> list[int]:
    return sorted(share.applied for share in project.app.storage.shares.cluster().shares)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_limit_holds_while_a_pod_cannot_say_that_it_lives(wired: tuple[Project, Wire], fault: Fault) -> None:
    project, wire = wired
    lost = launch(project, wire.url).ready()
    jobs: list[Any] = [project.enqueue("runs", n, concurrency="2", max_attempts=50) for n in range(4)]
    eventually(lambda: run_in(project, lost) == 2)
    old = [run.pid for run in runs(project)]
    with ExitStack() as healed:
        fault(lost, wire, healed)
        other = project.start()
        eventually(lambda: run_in(project, other) == 2)
        assert most_at_once(runs(project)) == 2
        assert not any(alive(pid) for pid in old)
    eventually(lambda: lost.says("starting over as a new one"))
    (project.folder / "go").touch()
    assert sorted(job.result(timeout=60) for job in jobs) == [0, 1, 2, 3]
    assert most_at_once(runs(project)) == 2
    assert {job.job().crashes for job in jobs} == {0}
    eventually(lambda: len(project.app.storage.pods()) == 2)
    assert (lost.stop(), other.stop()) == (0, 0)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_workers_of_a_queue_are_not_too_many_while_a_pod_cannot_say_that_it_lives(
    wired: tuple[Project, Wire], fault: Fault
) -> None:
    project, wire = wired
    project.settings(SETTINGS.format(6))
    lost, other = launch(project, wire.url).ready(), project.start()
    eventually(lambda: shares(project) == [3, 3])
    eventually(lambda: len(lost.children()) == len(other.children()) == 4)
    for n in range(12):
        project.enqueue("runs", n, max_attempts=50)
    eventually(lambda: (run_in(project, lost), run_in(project, other)) == (3, 3))
    with ExitStack() as healed:
        fault(lost, wire, healed)
        eventually(lambda: run_in(project, other) == 6)
        assert most_at_once(runs(project)) == 6


@pytest.mark.parametrize("how", ["master", "tree"])
def test_when_a_stopped_pods_jobs_may_be_taken_nothing_of_them_runs(project: Project, how: str) -> None:
    """At the first moment that a reaper could."""
    pod = project.start()
    job: Any = project.enqueue("detaches", 1, max_attempts=50)
    eventually(lambda: len(runs(project)) == 2)  # the handler, and what it has detached
    old = [run.pid for run in runs(project)]
    zygote = next(pid for pid in pod.children() if parent_of(pid) == pod.process.pid)
    stopping = [pod.process.pid] if how == "master" else [pod.process.pid, zygote, *old]
    with continuing(stopping):
        project.freeze(pod)
        for pid in stopping[1:]:
            os.kill(pid, signal.SIGSTOP)
        eventually(lambda: project.app.storage.reap(STALE).jobs)
        taken = time.monotonic()
        if how == "master":
            assert not any(alive(pid) for pid in old)
    eventually(lambda: not any(alive(pid) for pid in old))
    eventually(lambda: len([run for run in runs(project) if run.pid not in old]) == 2)
    late = [words for words in project.events("RUN") if int(words[2]) in old and float(words[3]) > taken]
    assert len(late) <= (0 if how == "master" else 2 * 20), "the tree is ended as it wakes"
    (project.folder / "go").touch()
    assert job.result(timeout=60) == 1
    assert job.job().crashes == 0
    assert pod.says("starting over as a new one")  # as its heart may hear before its loop sees how late it is


def test_a_whole_tree_that_was_stopped_ends_its_jobs_as_it_wakes(wired: tuple[Project, Wire]) -> None:
    project, _ = wired
    lost = project.start()
    jobs: list[Any] = [project.enqueue("runs", n, concurrency="2", max_attempts=50) for n in range(2)]
    eventually(lambda: run_in(project, lost) == 2)
    old = [run.pid for run in runs(project)]
    with continuing(stop_tree(lost)):
        other = project.start()
        eventually(lambda: run_in(project, other) == 2)
        woken = time.monotonic()
    eventually(lambda: not any(alive(pid) for pid in old))
    late = [words for words in project.events("RUN") if int(words[2]) in old and float(words[3]) > woken]
    assert len(late) <= 2 * 20
    (project.folder / "go").touch()
    assert sorted(job.result(timeout=60) for job in jobs) == [0, 1]


@pytest.mark.parametrize("fault", [cut, stopped])
def test_programs_end_like_handlers_and_nobody_is_to_blame(wired: tuple[Project, Wire], fault: Fault) -> None:
    project, wire = wired
    python = f'"{sys.executable}", "says.py", "{project.ledger}"'
    pool = f'[pools.says]\nkind = "says"\nargv = [{python}, "pool"]\nsize = 2\n'
    command = f'[commands.says]\nargv = [{python}, "command"]\n'
    project.settings(SETTINGS.format(3) + pool + command)
    pod = launch(project, wire.url).ready()
    jobs: list[Any] = [project.app.enqueue("says", {}, max_attempts=1)]
    jobs.append(project.app.enqueue("cmd_exec", {"command": "says"}, max_attempts=1))
    eventually(lambda: {run.job for run in runs(project)} == {"pool", "command"})
    old = runs(project)
    with ExitStack() as healed:
        fault(pod, wire, healed)
        eventually(lambda: not any(alive(run.pid) for run in old))
    eventually(lambda: len({(run.job, run.pid) for run in runs(project)}) == 4)
    assert most_at_once(runs(project)) == 2
    assert {(job.status, job.job().attempts, job.job().errors) for job in jobs} == {(Status.IN_PROGRESS, 1, ())}
    assert not pod.says("SIGKILL"), "the idle one of the pool neither"


@pytest.mark.parametrize("what", ["reload", "shutdown"])
def test_a_pod_that_reloads_or_stops_fences_itself_too(project: Project, what: str) -> None:
    project.settings("shutdown_timeout = 600\n" + SETTINGS.format(2))
    pod = project.start()
    project.enqueue("runs", 1, max_attempts=50)
    eventually(lambda: runs(project))
    (old,) = runs(project)
    pod.process.send_signal(signal.SIGHUP if what == "reload" else signal.SIGTERM)
    if what == "reload":
        before = parent_of(old.pid)
        eventually(lambda: [pid for pid in pod.children() if parent_of(pid) == before] == [old.pid])
        project.enqueue("runs", 2, max_attempts=50)  # in a worker of the new zygote
        eventually(lambda: len(runs(project)) == 2)
        assert parent_of(runs(project)[1].pid) not in (before, None)
    else:
        eventually(lambda: pod.says("stopping: 1 jobs in hand"))
    with continuing([pod.process.pid]):
        project.freeze(pod)
        eventually(lambda: project.app.storage.reap(STALE).jobs)
        assert not any(alive(run.pid) for run in runs(project))
    (project.folder / "go").touch()


@pytest.mark.parametrize("fault", [cut, stopped])
@pytest.mark.parametrize("worker", ["process", "threads", "async"])
def test_handlers_are_told_before_they_are_killed(wired: tuple[Project, Wire], fault: Fault, worker: str) -> None:
    project, wire = wired
    project.settings(SETTINGS.format(1) + f'worker = "{worker}"\nconcurrency = {1 if worker == "process" else 2}\n')
    pod = launch(project, wire.url).ready()
    jobs: list[Any] = [project.enqueue("is_told", 1)]
    if worker != "process":
        jobs.append(project.enqueue("is_cancelled", 2))
    eventually(lambda: len(runs(project)) == len(jobs))
    with ExitStack() as healed:
        fault(pod, wire, healed)
        eventually(lambda: not any(alive(run.pid) for run in runs(project)))
        assert len(project.events("TOLD")) == len(jobs)
        assert project.events("INTERRUPTED") == [["INTERRUPTED", "1"]]
    eventually(lambda: len(runs(project)) == 2 * len(jobs))  # given back, or never anybody else's
    assert {(job.job().attempts, job.job().crashes) for job in jobs} == {(1, 0)}


def test_a_pod_that_nobody_took_for_dead_goes_on_with_its_jobs(wired: tuple[Project, Wire]) -> None:
    """Nobody else is there. What it could not end goes back when the database can be reached, and runs again; what had
    ended before is written, and does not."""
    project, wire = wired
    lost = launch(project, wire.url).ready()
    done: Any = project.enqueue("wait_for", "come")
    job: Any = project.enqueue("runs", 1, max_attempts=50)
    eventually(lambda: runs(project) and project.events("START"))
    (old,) = runs(project)
    wire.cut()
    (project.folder / "come").touch()
    eventually(lambda: lost.says("what it ran is killed"))
    eventually(lambda: not alive(old.pid))
    assert lost.says("what runs is told to stop")
    wire.heal()
    eventually(lambda: lost.says("beats are confirmed again; workers start anew"))
    assert done.result(timeout=30) == "went"
    eventually(lambda: len(runs(project)) == 2)
    (project.folder / "go").touch()
    assert job.result(timeout=30) == 1
    assert (job.job().attempts, job.job().crashes, job.job().errors) == (1, 0, ())
    assert len(project.events("START")) == 1
    assert not lost.says("alone") and not lost.says("SIGKILL"), "nobody is to blame"
    assert project.app.storage.ended_counts() == {"default": {Status.DONE: 2}}
    assert lost.stop() == 0
