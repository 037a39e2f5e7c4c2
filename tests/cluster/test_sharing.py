"""Real pods split the workers of their queues, whoever comes and goes."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from forge.job import Status
from tests.master.conftest import Pod, Project, alive, eventually

pytestmark = pytest.mark.impl_free

SOON = "heartbeat = 0.2\nstale_after = 2.0\nleader_ttl = 2.0\n"  # pods find out soon what becomes of each other


@pytest.fixture
def project(project: Project) -> Project:
    """Ten workers to split."""
    project.settings(SOON + "[queues.default]\nmax_workers = 10\n")
    return project


def workers(pod: Pod) -> int:
    """All below the master but the zygote."""
    return max(0, len(pod.children()) - 1)


def split(pods: Sequence[Pod]) -> list[int]:
    return sorted(workers(pod) for pod in pods)


def start(project: Project, n: int) -> list[Pod]:
    """So many pods, each with its share."""
    pods = [project.launch() for _ in range(n)]
    return [pod.ready() for pod in pods]


def load(project: Project, n: int, seconds: float) -> None:
    jobs = [project.app.job("tasks.slow", {"args": [i, seconds], "kwargs": {}}) for i in range(n)]
    project.app.enqueue_many(jobs)


def most_at_once(project: Project, dead: Collection[int] = (), since: str = "") -> int:
    """Jobs that ran at the same time, by the ledger (from the line `since` on). From the line KILLED on, those of dead
    workers do not count."""
    running: set[tuple[str, str]] = set()
    most = 0
    for line in project.ledger.read_text().splitlines():
        word, *rest = line.split()
        if word == since:
            most, since = 0, ""
        if word == "START":
            running.add((rest[0], rest[1]))
        elif word == "END":
            running.discard((rest[0], rest[1]))
        elif word == "KILLED":
            running = {(job, pid) for job, pid in running if int(pid) not in dead}
        most = max(most, len(running))
    return most


def note(project: Project, word: str) -> None:
    """In the ledger, between what jobs write."""
    with project.ledger.open("a") as ledger:
        ledger.write(word + "\n")


def test_three_pods_have_four_three_and_three_of_ten_workers(project: Project) -> None:
    pods = start(project, 3)
    eventually(lambda: split(pods) == [3, 3, 4])
    shares = project.app.storage.shares
    eventually(lambda: sorted(tuple(row[2:]) for row in shares.cluster().shares) == [(3, 3, 3), (3, 3, 3), (4, 4, 4)])


def test_a_pod_killed_under_load_leaves_its_workers_to_the_others_and_none_is_too_many(project: Project) -> None:
    pods = start(project, 3)
    eventually(lambda: split(pods) == [3, 3, 4])
    load(project, 300, 0.1)
    eventually(lambda: len(project.events("END")) >= 20)
    victim, *left = pods
    dead = victim.children()
    os.kill(victim.process.pid, signal.SIGKILL)
    eventually(lambda: not any(alive(pid) for pid in dead))
    note(project, "KILLED")
    eventually(lambda: split(left) == [5, 5])
    eventually(lambda: project.app.storage.counts() == {}, within=60)
    assert 5 < most_at_once(project, dead) <= 10
    assert {int(line[1]) for line in project.events("END")} == set(range(300))


def test_a_pod_that_comes_under_load_takes_over_from_those_whose_jobs_have_ended(project: Project) -> None:
    """The bound of a rolling deploy: one share of the newcomer too many, until the others have let go."""
    pods = start(project, 2)
    eventually(lambda: split(pods) == [5, 5])
    load(project, 300, 0.1)
    eventually(lambda: len(project.events("END")) >= 20)
    pods.append(project.launch())
    eventually(lambda: split(pods) == [3, 3, 4])
    assert most_at_once(project) <= 10 + 4
    note(project, "SETTLED")
    assert pods[0].stop() == 0
    eventually(lambda: split(pods[1:]) == [5, 5])
    eventually(lambda: project.app.storage.counts() == {}, within=60)
    assert most_at_once(project, since="SETTLED") <= 10
    assert {int(line[1]) for line in project.events("END")} == set(range(300))
    assert len(project.events("END")) == 300, "none was run twice"


def test_a_pod_that_leaves_gives_its_workers_up_one_by_one_as_their_jobs_end(project: Project) -> None:
    project.settings(SOON + "[queues.default]\nmax_workers = 4\n")
    pods = start(project, 2)
    eventually(lambda: split(pods) == [2, 2])
    for name in "abcd":
        project.enqueue("wait_for", name)
    eventually(lambda: len(project.events("START")) == 4)
    leaving, stays = pods
    first, last = (name for _, name, pid in project.events("START") if int(pid) in leaving.children())
    leaving.process.send_signal(signal.SIGTERM)
    eventually(lambda: project.app.storage.pods()[0].queues == () or project.app.storage.pods()[1].queues == ())
    assert workers(stays) == 2, "all workers are busy, here or there"
    (project.folder / first).touch()
    eventually(lambda: workers(stays) == 3)
    assert leaving.process.poll() is None
    (project.folder / last).touch()
    eventually(lambda: workers(stays) == 4)
    assert leaving.process.wait(30) == 0
    assert most_at_once(project) == 4


def test_what_is_set_at_run_time_spreads(project: Project) -> None:
    pods = start(project, 3)
    storage = project.app.storage
    for total, expected in ((4, [1, 1, 2]), (20, [6, 7, 7])):
        storage.set_queue("default", max_workers=total)
        eventually(lambda expected=expected: split(pods) == expected)  # type: ignore[misc]


def test_a_pause_stops_all(project: Project) -> None:
    pods = start(project, 3)
    storage = project.app.storage
    eventually(lambda: split(pods) == [3, 3, 4])
    storage.set_queue("default", paused=True)
    eventually(lambda: split(pods) == [0, 0, 0])
    job: Any = project.enqueue("add", 2, 3)
    storage.set_queue("default", max_workers=6)
    eventually(lambda: sorted(row.workers or 0 for row in storage.shares.cluster().shares) == [2, 2, 2])
    assert job.status == Status.PENDING
    storage.set_queue("default", paused=False)
    eventually(lambda: split(pods) == [2, 2, 2])
    assert job.result(timeout=30) == 5


def test_a_pod_of_more_capacity_has_more(project: Project) -> None:
    project.settings(SOON + "[queues.default]\nmax_workers = 8\n")
    small = project.launch()
    project.env["FORGE_CAPACITY"] = "3"
    large = project.launch()
    for pod in (small, large):
        pod.ready()
    eventually(lambda: (workers(small), workers(large)) == (2, 6))


def test_workers_come_with_work_and_go_without_it_and_no_job_is_interrupted(project: Project) -> None:
    project.settings("[queues.default]\nmax_workers = 6\nmin_workers = 1\nidle_shrink = 0.5\n")
    pod = project.start()
    assert workers(pod) == 1
    jobs: list[Any] = [project.enqueue("wait_for", "go") for _ in range(6)]
    eventually(lambda: len(project.events("START")) == 6)
    assert workers(pod) == 6
    (project.folder / "go").touch()
    assert [job.result(timeout=30) for job in jobs] == ["went"] * 6
    eventually(lambda: workers(pod) == 1)
    assert len(project.events("START")) == 6
    assert pod.stop() == 0


def test_at_a_start_the_databases_number_stands_and_a_line_says_so(project: Project) -> None:
    pod = project.start()
    assert workers(pod) == 10
    assert not pod.says("in the database")
    assert pod.stop() == 0
    project.configure(2)
    pod = project.start()
    assert pod.says(
        "queue default has max_workers 10 in the database, not 2 (forge.toml:4); to change it: forge queue set"
    )
    assert workers(pod) == 10
