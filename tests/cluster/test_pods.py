"""Several masters: one is killed, stopped, followed or replaced, and the jobs do not notice."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge.errors import ExitCode, LostLease
from forge.job import Status
from tests.master.conftest import Pod, Project, alive, eventually, making

from .conftest import leader, term_of

pytestmark = pytest.mark.impl_free


def load(project: Project, jobs: int, seconds: float) -> None:
    many = [project.app.job("tasks.slow", {"args": [n, seconds], "kwargs": {}}) for n in range(jobs)]
    project.app.enqueue_many(many)


def finished(project: Project) -> Counter[str]:
    """How often each job came to its end, once none is left."""
    eventually(lambda: project.app.storage.counts() == {}, within=60)
    return Counter(n for _, n, _ in project.events("END"))


def shares(project: Project) -> list[int]:
    """Workers that each pod goes by."""
    return sorted(share.applied for share in project.app.storage.shares.cluster().shares)


def holder(project: Project) -> tuple[int, int] | None:
    """The term and the pid of who leads."""
    found = project.app.storage.leases.leader()
    return (found.term, found.pid) if found else None


def test_the_jobs_of_a_killed_pod_run_elsewhere_and_none_is_lost(project: Project) -> None:
    pods = [project.launch() for _ in range(3)]
    for pod in pods:
        pod.ready()
    eventually(lambda: shares(project) == [2, 2, 2])
    load(project, 400, 0.03)
    victim, gone = pods[1], pods[1].process.pid
    workers = victim.children()

    def in_hand() -> bool:
        return sum(int(pid) in workers for _, _, pid in project.events("START")) >= 5

    eventually(in_hand)
    victim.process.kill()
    eventually(lambda: shares(project) == [3, 3])
    ends = finished(project)
    assert set(ends) == {str(n) for n in range(400)}
    assert project.app.storage.ended_counts() == {"default": {Status.DONE: 400}}
    theirs = {n for _, n, pid in project.events("START") if int(pid) in workers}
    assert {n for n, times in ends.items() if times > 1} <= theirs
    assert sum(pod.says("1 pod had gone silent") for pod in pods) >= 1
    eventually(lambda: {pod.pid for pod in project.app.storage.pods()} == {p.process.pid for p in pods} - {gone})
    eventually(lambda: not any(alive(pid) for pid in workers))


def test_when_the_leader_is_killed_another_pod_leads_under_a_higher_term(project: Project) -> None:
    project.settings("leader_ttl = 2.0\n[queues.default]\n")  # far sooner than the pod would be taken for dead
    pods = [project.start() for _ in range(3)]
    first = leader(pods)
    term = term_of(first)
    first.process.kill()
    others = [pod for pod in pods if pod is not first]
    eventually(lambda: max(map(term_of, others)) > term)
    eventually(lambda: holder(project) in {(term_of(pod), pod.process.pid) for pod in others})
    assert len(project.app.storage.pods()) == 3, "nobody was reaped for it"


def test_a_leader_that_was_stopped_writes_nothing_under_its_old_term(project: Project) -> None:
    project.settings("leader_ttl = 2.0\n[queues.default]\n")
    pods = [project.start() for _ in range(2)]
    first = leader(pods)
    (other,) = (pod for pod in pods if pod is not first)
    term = term_of(first)
    first.process.send_signal(signal.SIGSTOP)
    eventually(lambda: term_of(other) > term)
    with pytest.raises(LostLease):
        project.app.storage.prune(term=term)
    first.process.send_signal(signal.SIGCONT)
    eventually(lambda: first.says(f"this pod no longer leads (term {term})"))
    assert not first.says("taken for dead")
    assert other.stop() == 0  # and when that one leaves, the first leads again, under a term of its own
    assert other.says("it was given back")
    eventually(lambda: term_of(first) > term_of(other))


def test_a_leader_that_leaves_is_followed_at_once(project: Project) -> None:
    project.settings("leader_ttl = 3600\n[queues.default]\n")  # whoever waited for that would wait for long
    pods = [project.start() for _ in range(2)]
    first = leader(pods)
    (other,) = (pod for pod in pods if pod is not first)
    assert first.stop() == 0
    eventually(lambda: term_of(other) > term_of(first))


def test_the_lease_of_a_killed_master_is_free_for_its_successor_on_the_host(project: Project) -> None:
    project.settings("leader_ttl = 3600\n[queues.default]\n")
    first = project.start()
    leader([first])
    first.process.kill()
    first.process.wait()
    second = project.start()
    eventually(lambda: term_of(second) > term_of(first))


def test_a_rolling_restart_under_load_loses_nothing_and_runs_nothing_twice(project: Project) -> None:
    project.settings("leader_ttl = 2.0\n[queues.default]\nmax_workers = 6\n")
    old = [project.start() for _ in range(3)]
    leader(old)
    eventually(lambda: shares(project) == [2, 2, 2])
    load(project, 600, 0.02)
    eventually(lambda: len(project.events("END")) >= 20)
    new: list[Pod] = []
    for pod in old:
        new.append(project.start())
        assert pod.stop() == 0
        assert pod.says("stopped")
    ends = finished(project)
    assert ends == Counter({str(n): 1 for n in range(600)})
    assert Counter(n for _, n, _ in project.events("START")) == ends
    assert project.app.storage.ended_counts() == {"default": {Status.DONE: 600}}
    assert term_of(leader(new)) > max(map(term_of, old))
    eventually(lambda: shares(project) == [2, 2, 2])
    assert not any(pod.says("gone silent") or pod.says("taken for dead") for pod in [*old, *new])


def test_a_pod_that_was_stopped_for_too_long_finds_its_writes_refused_and_starts_over(project: Project) -> None:
    pods = [project.start() for _ in range(2)]
    job: Any = project.enqueue("wait_for", "go", max_attempts=3)
    eventually(lambda: project.events("START"))
    worker = int(project.events("START")[0][2])
    (first,) = (pod for pod in pods if worker in pod.children())
    (other,) = (pod for pod in pods if pod is not first)
    before = {pod.pid: pod.id for pod in project.app.storage.pods()}
    first.process.send_signal(signal.SIGSTOP)
    eventually(lambda: other.says("1 pod had gone silent; 1 job taken back"))
    eventually(lambda: len(project.events("START")) == 2)
    (project.folder / "go").touch()  # both end it; the one that was taken for dead is not heard
    assert job.result(timeout=30) == "went"
    attempts = job.job().attempts
    first.process.send_signal(signal.SIGCONT)
    eventually(lambda: first.says("this pod had been taken for dead; starting over as a new one"))
    eventually(lambda: not alive(worker))
    eventually(lambda: {pod.pid for pod in project.app.storage.pods()} == set(before))
    assert project.app.storage.pods()[-1].id not in before.values()
    assert (job.status, job.job().attempts) == (Status.DONE, attempts)
    eventually(lambda: first.children() and other.stop() == 0)
    again: Any = project.enqueue("add", 2, 3)
    assert again.result(timeout=30) == 5


# -- SQLite --------------------------------------------------------------------------------------------------------


@pytest.fixture
def on_sqlite(tmp_path: Path, sqlite_url: str) -> Iterator[Project]:
    yield from making(tmp_path, sqlite_url)


def test_a_second_master_on_a_sqlite_file_is_refused_in_one_line(on_sqlite: Project) -> None:
    first = on_sqlite.start()
    leader([first])
    link = on_sqlite.folder / "other.db"
    link.symlink_to(on_sqlite.folder / "forge.db")
    for url in (on_sqlite.url, f"sqlite:///{link}"):
        refused = on_sqlite.run("--database", url)
        assert refused.returncode == ExitCode.LOCKED
        said = refused.stderr.splitlines()[-1]
        assert said.startswith(f"error: another forge-master (pid {first.process.pid}) holds ")
        assert said.endswith("forge.db-master; a SQLite file has room for one: stop that one, or use PostgreSQL")
    assert on_sqlite.run("--check").returncode == 0
    assert first.stop() == 0
    assert not (on_sqlite.folder / "forge.db-master").exists()


def test_a_killed_master_does_not_keep_the_next_one_off_its_sqlite_file(on_sqlite: Project) -> None:
    first = on_sqlite.start()
    workers = first.children()
    first.process.kill()
    first.process.wait()
    second = on_sqlite.start()  # even while workers of the first may still be about to go
    eventually(lambda: not any(alive(pid) for pid in workers))
    job: Any = on_sqlite.enqueue("add", 2, 3)
    assert job.result(timeout=30) == 5
    eventually(lambda: term_of(second) >= 1)


def test_a_leaders_service_by_hand_says_which_pod_leads(on_sqlite: Project) -> None:
    first = on_sqlite.start()
    leader([first])
    command = [str(Path(sys.executable).parent / "forge"), "run", "prune"]
    said = subprocess.run(
        command, cwd=on_sqlite.folder, env=on_sqlite.env, capture_output=True, text=True, timeout=60, check=False
    )
    assert said.returncode == ExitCode.LOCKED
    assert f"(pid {first.process.pid}) leads until " in said.stderr
