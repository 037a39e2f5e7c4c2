"""What came before a pause fires behind it, what came during it does not: however often, and whoever looked when."""

from __future__ import annotations

import dataclasses
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from forge.cluster import schedules
from forge.cluster.cron import FireTimes
from forge.cluster.firing import ON_TIME, Cron, times_to_fire
from forge.job import JobFilter
from forge.storage import Storage
from forge.storage.contract.schedules import NewSchedule, Schedule, Seeded
from tests.storage.helpers import age, clock, lead, sql

pytestmark = pytest.mark.impl_free
TERM = 5
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
EVERY_SECOND = "* * * * * *"


def put(storage: Storage, at: datetime, catch_up: Any = "all") -> None:
    storage.schedules.put(Seeded(NewSchedule(name="tick", expression=EVERY_SECOND, kind="k", catch_up=catch_up), at))


def fired(storage: Storage) -> list[datetime]:
    return sorted(fire_time.at for fire_time in storage.schedules.fire_times("tick", 1000))


@pytest.mark.parametrize(("catch_up", "expected"), [("all", range(20, 29)), ("one", ()), ("none", [27, 28])])
def test_times_that_came_before_a_pause_fire_when_it_is_over(
    storage: Storage, url: str, catch_up: Any, expected: Any
) -> None:
    """Of those that were missed before it, `catch_up` says how many."""
    lead(url, TERM)
    now = clock(storage).replace(microsecond=0)
    put(storage, now - 20 * SECOND, catch_up)
    before = schedules.pause(storage, "tick").paused_at
    assert before is not None
    age(url, "schedule", "paused_at", (before - (now - 11.5 * SECOND)) / SECOND)
    assert Cron(storage).run_once(TERM) is None, "it is paused"
    schedules.pause(storage, "tick")  # again, which changes nothing
    resumed = schedules.resume(storage, "tick")
    assert (resumed.state, resumed.next_at, resumed.paused_at) == ("active", now - 20 * SECOND, None)
    over = resumed.pauses[-1].until
    assert schedules.resume(storage, "tick") == resumed, "to resume what is not paused changes nothing"
    Cron(storage).run_once(TERM)
    seen = fired(storage)
    if catch_up == "one":  # one that has come since makes up for those before
        assert len(seen) == 1 and (seen == [now - 12 * SECOND] or seen[0] > over)
    else:
        assert [fire_time for fire_time in seen if fire_time <= over] == [now + (n - 40) * SECOND for n in expected]


def test_what_was_paused_without_a_time_before_it_goes_on_from_now(storage: Storage, url: str) -> None:
    lead(url, TERM)
    put(storage, clock(storage) + 3600 * SECOND)
    schedules.pause(storage, "tick")
    resumed = schedules.resume(storage, "tick")
    assert resumed.pauses == ()
    assert resumed.next_at is not None and resumed.next_at < clock(storage) + 2 * SECOND


def test_one_that_an_earlier_release_paused_goes_on_from_now(storage: Storage, url: str) -> None:
    lead(url, TERM)
    now = clock(storage)
    put(storage, now - 20 * SECOND)
    sql(url, f"update {{schedule}} set paused = {'1' if storage.dialect == 'sqlite' else 'true'}")
    resumed = schedules.resume(storage, "tick")
    assert resumed.next_at is not None and resumed.next_at > now
    assert resumed.pauses == ()


def test_pausing_over_and_over_costs_no_time_but_those_in_the_pauses(storage: Storage, url: str) -> None:
    lead(url, TERM)
    put(storage, (clock(storage) + SECOND).replace(microsecond=0))
    cron, pauses = Cron(storage), []
    end = clock(storage) + 4 * SECOND
    while (now := clock(storage)) < end:
        since = schedules.pause(storage, "tick").paused_at
        cron.run_once(TERM)
        schedules.resume(storage, "tick")
        pauses.append((since, clock(storage)))
        while clock(storage) < now + 0.2 * SECOND:
            pass
    cron.run_once(TERM)
    fire_times = fired(storage)
    assert fire_times
    for fire_time in FireTimes(EVERY_SECOND).between(fire_times[0] - SECOND, fire_times[-1]):
        assert fire_time in fire_times or any(since and since < fire_time <= until for since, until in pauses), (
            fire_time
        )
    assert len(storage.find(JobFilter(kinds=["k"]), limit=100).jobs) == len(fire_times)


@pytest.mark.parametrize("catch_up", ["all", "none", "one"])
@pytest.mark.parametrize("seed", range(10))
def test_every_time_outside_the_pauses_fires_once(seed: int, catch_up: Any) -> None:
    """A leader that looks every second, and somebody who pauses and resumes at any moment: by a clock of our own."""
    chance, fire_times = random.Random(seed), FireTimes(EVERY_SECOND)
    held = Schedule(name="x", expression=EVERY_SECOND, kind="k", catch_up=catch_up, next_at=NOON + SECOND)
    found, expected, since = list[datetime](), set[datetime](), NOON
    now, look_at = NOON, NOON + SECOND
    for _ in range(1000):
        now += timedelta(seconds=chance.choice([0.05, 0.2, 0.7, 4.0]) * chance.random())
        while look_at <= now:
            held = look(held, fire_times, look_at, found)
            look_at += SECOND
        if held.paused:
            next_at, pauses = schedules._going_on(held, now)
            held = dataclasses.replace(held, paused=False, paused_at=None, next_at=next_at, pauses=tuple(pauses))
            since = now
        else:
            held = dataclasses.replace(held, paused=True, paused_at=now)
            expected |= set(fire_times.between(since, now))
    assert not held.paused
    expected |= set(fire_times.between(since, look_at))
    look(held, fire_times, look_at, found)
    assert found == sorted(expected)


def look(held: Schedule, fire_times: FireTimes, now: datetime, found: list[datetime]) -> Schedule:
    """One look of the leader, who has gone on without a break."""
    if held.paused or held.next_at is None or held.next_at > now:
        return held
    fire, next_at = times_to_fire(held, fire_times, now, now - ON_TIME)
    found += fire
    return dataclasses.replace(held, next_at=max(held.next_at, next_at))


def test_pauses_that_nobody_looks_at_are_few(storage: Storage) -> None:
    fire_times = FireTimes(EVERY_SECOND)
    held = Schedule(name="x", expression=EVERY_SECOND, kind="k", next_at=NOON)
    for n in range(3 * schedules.MOST_PAUSES):
        now = NOON + 2 * n * SECOND
        held = dataclasses.replace(held, paused=True, paused_at=now)
        next_at, pauses = schedules._going_on(held, now + SECOND)
        held = dataclasses.replace(held, paused=False, paused_at=None, next_at=next_at, pauses=tuple(pauses))
    assert len(held.pauses) == schedules.MOST_PAUSES
    assert held.pauses[-1].until == now + SECOND
    assert times_to_fire(held, fire_times, now + SECOND, NOON)[1] == now + 2 * SECOND
