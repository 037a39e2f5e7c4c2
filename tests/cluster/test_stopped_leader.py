"""The leader is stopped in the middle of a firing for longer than its lease lasts, and woken when another pod leads."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from datetime import datetime, timedelta

import psycopg
import pytest

from forge.cluster.cron import FireTimes
from forge.cluster.schedules import job_at
from forge.job import JobFilter
from tests.master.conftest import Pod, Project, eventually

from .conftest import leader, term_of

pytestmark = pytest.mark.impl_free

SCHEDULES = 40  # that all come every second: one round of the leader has so many transactions
STOPS = 3
EVERY_SECOND = "* * * * * *"
# A master whose services' statements, and what they leave open, end sooner: a stopped one holds the lease's row until
# then. In all else it is a real one.
IMPATIENT = "import forge.cli.master as m; m.TIMEOUT = 1.5; raise SystemExit(m.main())"


class Firing:
    """What the database knows of the fire time under way."""

    def __init__(self, conn: psycopg.Connection[tuple[int]]) -> None:
        self._conn = conn

    def fired(self) -> int:
        """Schedules whose latest fire time has fired."""
        row = self._conn.execute(
            "select count(*) from forge.schedule_fire_time"
            " where fire_time = (select max(fire_time) from forge.schedule_fire_time)"
        ).fetchone()
        assert row is not None
        return row[0]

    def is_halfway(self) -> bool:
        return 0 < self.fired() < SCHEDULES


def stop_in_the_middle(pod: Pod, firing: Firing) -> None:
    """Until it stands still with some schedules of a fire time fired and others not."""
    while True:
        eventually(firing.is_halfway)
        pod.process.send_signal(signal.SIGSTOP)
        if firing.is_halfway():
            return
        pod.process.send_signal(signal.SIGCONT)


def missed_and_doubled(project: Project, first: dict[str, datetime]) -> tuple[set[datetime], Counter[str]]:
    """By an oracle: fire times that should have fired and have not; and jobs too many, by schedule."""
    missed: set[datetime] = set()
    doubled: Counter[str] = Counter()
    runs = Counter(n for _, n, _ in project.events("START"))
    for n, (name, at) in enumerate(first.items()):
        schedule = project.app.schedules.get(name)
        assert schedule.last_fire_time is not None
        due = list(FireTimes(EVERY_SECOND).between(at - timedelta(seconds=1), schedule.last_fire_time))
        missed |= set(due) - {each.at for each in project.app.storage.schedules.fire_times(name, 10_000)}
        assert schedule.next_at == schedule.last_fire_time + timedelta(seconds=1)
        jobs = project.app.storage.find(JobFilter(tag=f"cron:{name}"), limit=10_000).jobs
        assert {job.id for job in jobs} == {job_at(schedule, fire_time).id for fire_time in due}
        doubled[name] = len(jobs) - len(due) + runs[str(n)] - len(due)
    return missed, +doubled + -doubled


def test_a_leader_stopped_in_the_middle_of_a_firing_fires_nothing_twice_and_nothing_is_missed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.master.conftest.MASTER", [sys.executable, "-c", IMPATIENT, "-c", "forge.toml"])
    project.settings("leader_ttl = 1.0\n[queues.default]\nmax_workers = 4\n")
    first: dict[str, datetime] = {}
    for n in range(SCHEDULES):
        made = project.app.schedules.set(f"s{n}", EVERY_SECOND, "tasks.slow", args=[n, 0.0], catch_up="all")
        assert made.next_at is not None
        first[made.name] = made.next_at
    pods = [project.start() for _ in range(2)]
    with psycopg.connect(project.url, autocommit=True) as conn:
        firing = Firing(conn)
        for _ in range(STOPS):
            stopped = leader(pods)
            (other,) = (pod for pod in pods if pod is not stopped)
            term, before = term_of(stopped), term_of(other)
            stop_in_the_middle(stopped, firing)
            eventually(lambda: term_of(other) > max(term, before))  # noqa: B023 (awaited here)
            eventually(firing.is_halfway)  # the other one fires, and in the middle of that
            stopped.process.send_signal(signal.SIGCONT)
            eventually(lambda: stopped.says(f"this pod no longer leads (term {term})"))  # noqa: B023
    assert not any(pod.says("taken for dead") for pod in pods)
    assert [pod.stop() for pod in pods] == [0, 0]
    for name in first:
        project.app.schedules.pause(name)
    project.start()  # for jobs that were enqueued and not run yet
    eventually(lambda: project.app.storage.counts() == {}, within=60)
    assert missed_and_doubled(project, first) == (set(), Counter())
