"""Two services that both believe to lead."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forge.cluster import schedules
from forge.cluster.cron import FireTimes
from forge.job import JobFilter
from forge.storage import Storage
from forge.storage.contract.schedules import NewSchedule, Seeded
from tests.storage import children
from tests.storage.helpers import clock, lead

from .children import fire_all

pytestmark = pytest.mark.impl_free

TERM = 9
EACH = 2_500  # of four schedules


def test_two_leaders_at_work_fire_every_fire_time_of_every_schedule_once(storage: Storage, url: str) -> None:
    lead(url, TERM)
    now = clock(storage).replace(microsecond=0)
    first = {name: now - timedelta(seconds=EACH + n) for n, name in enumerate("abcd")}
    for name, at in first.items():
        new = NewSchedule(name=name, expression="* * * * * *", kind=name, catch_up="all")
        storage.schedules.put(Seeded(new, at))
    fired = children.race(fire_all, [(url, TERM), (url, TERM)])
    total = 0
    for name, at in first.items():
        found = schedules.find(storage, name)
        assert found.next_at is not None and found.last_fire_time is not None
        expected = list(FireTimes("* * * * * *").between(at - timedelta(seconds=1), found.last_fire_time))
        assert ids(storage, name) == {schedules.job_at(found, fire_time).id for fire_time in expected}
        assert [each.at for each in storage.schedules.fire_times(name, 10_000)] == expected[::-1]
        assert found.next_at > found.last_fire_time >= now - timedelta(seconds=1)
        total += len(expected)
    assert sum(fired) == total >= 4 * EACH


def ids(storage: Storage, kind: str) -> set[object]:
    return {job.id for job in storage.find(JobFilter(kinds=[kind]), limit=100_000).jobs}
