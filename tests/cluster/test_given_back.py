"""What a pod has claimed and cannot start goes to another pod that can."""

from __future__ import annotations

from pathlib import Path

from forge.job import NewJob, Status
from tests.master.conftest import Project, eventually


def short(project: Project, n: int) -> list[NewJob]:
    return [project.app.job("tasks.add", {"args": [i, 1], "kwargs": {}}) for i in range(n)]


def long(project: Project, name: str) -> NewJob:
    """It ends when a file of that name is there."""
    return project.app.job("tasks.wait_for", {"args": [name], "kwargs": {}})


def done(project: Project) -> int:
    return project.app.storage.ended_counts().get("default", {}).get(Status.DONE, 0)


def two_pods(project: Project) -> None:
    """With one worker each, that have run short jobs, so that they claim and send ahead as many as they ever do. Nobody
    looks at queues by himself: what is given back is told."""
    project.settings("heartbeat = 0.1\npoll_interval = 600\n[queues.default]\nmax_workers = 2\n")
    project.start()
    project.start()
    shares = project.app.storage.shares
    eventually(lambda: sorted(share.running for share in shares.cluster().shares) == [1, 1])
    project.app.enqueue_many(short(project, 6000))
    eventually(lambda: done(project) == 6000)


def test_no_short_job_waits_for_a_long_one_while_another_pod_could_run_it(project: Project, tmp_path: Path) -> None:
    two_pods(project)
    project.app.enqueue_many([*short(project, 500), long(project, "gate"), *short(project, 3500)])
    eventually(lambda: done(project) == 10_000)
    assert len(project.events("START")) == 1
    assert not project.events("END"), "the long one still runs"
    (tmp_path / "gate").touch()
    eventually(lambda: done(project) == 10_001)


def test_two_long_jobs_that_one_pod_has_claimed_run_in_two_pods(project: Project, tmp_path: Path) -> None:
    two_pods(project)
    project.app.enqueue_many([*short(project, 100), long(project, "one"), long(project, "two"), *short(project, 100)])
    eventually(lambda: len(project.events("START")) == 2)
    assert not project.events("END")
    assert len({pid for _, _, pid in project.events("START")}) == 2
    for name in ("one", "two"):
        (tmp_path / name).touch()
    eventually(lambda: done(project) == 6202)


def test_a_job_that_was_given_back_has_lost_nothing(project: Project, tmp_path: Path) -> None:
    two_pods(project)
    jobs = [long(project, "one"), long(project, "two"), *short(project, 50)]
    project.app.enqueue_many(jobs)
    eventually(lambda: len(project.events("START")) == 2)
    (tmp_path / "one").touch()
    eventually(lambda: done(project) == 6051)
    (tmp_path / "two").touch()
    eventually(lambda: done(project) == 6052)
    found = project.app.storage.get([job.id for job in jobs])
    assert {(job.attempts, job.crashes, tuple(job.errors)) for job in found.values()} == {(1, 0, ())}
    assert len(project.events("START")) == 2, "and none ran twice"
