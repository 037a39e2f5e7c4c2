"""`catch_up` means what it says however short the time was in which nobody looked, and nothing is lost by a leader that
is merely busy."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from forge.cluster import schedules
from forge.cluster.firing import EVERY, ON_TIME, Cron
from forge.errors import DatabaseError
from forge.job import JobFilter
from forge.storage import Storage
from forge.storage.contract.schedules import Due, Fired, Firing, NewSchedule, Schedule, Seeded
from tests.storage.helpers import clock, lead

TERM = 4
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize("away", [4, 10, 29])
@pytest.mark.parametrize(("catch_up", "count"), [("none", 0), ("one", 1), ("all", 1)])
def test_a_daily_time_in_a_short_gap_between_leaders(
    storage: Storage, url: str, catch_up: Any, count: int, away: int
) -> None:
    lead(url, TERM)
    at = clock(storage).replace(microsecond=0) - away * SECOND
    new = NewSchedule(name="daily", expression=f"{at:%S %M %H} * * *", kind="k", catch_up=catch_up)
    storage.schedules.put(Seeded(new, at))
    Cron(storage).run_once(TERM)
    assert len(storage.find(JobFilter(kinds=["k"]), limit=10).jobs) == count
    assert schedules.find(storage, "daily").next_at == at + timedelta(days=1)


@pytest.mark.parametrize(("catch_up", "count"), [("one", 1), ("all", None)])
def test_every_second_in_a_short_gap_between_leaders(
    storage: Storage, url: str, catch_up: Any, count: int | None
) -> None:
    lead(url, TERM)
    at = clock(storage).replace(microsecond=0) - 20 * SECOND
    storage.schedules.put(Seeded(NewSchedule(name="often", expression="* * * * * *", kind="k", catch_up=catch_up), at))
    due = storage.schedules.due()
    Cron(Frozen(storage, due)).run_once(TERM)  # type: ignore[arg-type]
    found = len(storage.find(JobFilter(kinds=["k"]), limit=100).jobs)
    assert found == (count or int((due.now - at) / SECOND) + 1)


class Frozen:
    """A storage in which one look finds something, and the next one nothing: time stands still."""

    def __init__(self, storage: Storage, due: Due) -> None:
        self.schedules = SimpleNamespace(fire=storage.schedules.fire, prune=lambda *_, **__: 0)
        looks = iter((due, due._replace(schedules=[])))
        self.schedules.due = lambda: next(looks)


class Scripted:
    """One schedule, and a database whose time is what the test says."""

    def __init__(self, catch_up: Any) -> None:
        self.now, self.monotonic, self.away = NOON, 100.0, False
        self.schedule = Schedule(name="x", expression="* * * * * *", kind="k", catch_up=catch_up, next_at=NOON)
        self.fire_times: list[int] = []
        self.schedules: Any = self
        self.cron = Cron(self, lambda: self.monotonic)  # type: ignore[arg-type]

    def due(self) -> Due:
        if self.away:
            raise DatabaseError("away")
        assert self.schedule.next_at is not None
        found = [self.schedule] if self.schedule.next_at <= self.now else []
        return Due(self.now, found, self.schedule.next_at)

    def fire(self, _: int, schedule: Schedule, firings: list[Firing], next_at: datetime) -> Fired:
        self.schedule = dataclasses.replace(schedule, next_at=next_at)
        self.fire_times += [round((firing.at - NOON) / SECOND) for firing in firings]
        return Fired(tuple(firing.at for firing in firings))

    def prune(self, *_: object, **__: object) -> int:
        return 0

    def after(self, seconds: float, *, felt: float | None = None, term: int = TERM) -> list[int]:
        """The fire times that a round fires after so long; `felt` is what the leader's own clock says, if that
        differs."""
        self.now += timedelta(seconds=seconds)
        self.monotonic += seconds if felt is None else felt
        self.fire_times.clear()
        self.cron.run_once(term)
        return list(self.fire_times)


@pytest.mark.parametrize("catch_up", ["one", "all", "none"])
def test_a_leader_at_work_fires_all(catch_up: Any) -> None:
    database = Scripted(catch_up)
    assert database.after(0) == [0]
    assert database.after(EVERY) == [1]
    assert database.after(1.9 * EVERY) == [2]
    assert database.after(2.1 * EVERY) == [3, 4, 5]
    # Time of the database in which the leader was busy with other schedules: the round that it was announced for.
    assert database.after(9, felt=EVERY) == [6, 7, 8, 9, 10, 11, 12, 13, 14]


@pytest.mark.parametrize(
    ("catch_up", "expected"), [("one", [7]), ("none", [6, 7]), ("all", [1, 2, 3, 4, 5, 6, 7])], ids=str
)
@pytest.mark.parametrize("why", ["stopped", "another term", "the database was away"])
def test_who_was_away_for_a_moment_has_missed_some(catch_up: Any, expected: list[int], why: str) -> None:
    database = Scripted(catch_up)
    assert database.after(0) == [0]
    if why == "the database was away":
        database.away = True
        with pytest.raises(DatabaseError):
            database.after(1)
        database.away = False
        assert database.after(6, felt=EVERY) == expected
    elif why == "another term":
        assert database.after(7, felt=EVERY, term=TERM + 1) == expected
    else:
        assert database.after(7) == expected


def test_a_schedule_that_cannot_be_fired_makes_no_other_late() -> None:
    database = Scripted("none")
    assert database.after(0) == [0]
    bad = dataclasses.replace(database.schedule, name="bad", next_at=NOON)
    fire, due = database.fire, database.due

    def fire_but_one(_: int, schedule: Schedule, firings: list[Firing], next_at: datetime) -> Fired:
        if schedule.name == "bad":
            raise DatabaseError("no")
        return fire(_, schedule, firings, next_at)

    database.fire = fire_but_one  # type: ignore[method-assign]
    database.due = lambda: (found := due())._replace(schedules=[bad, *found.schedules])  # type: ignore[method-assign]
    for seconds, fire_times in ((1, [1]), (4, [2, 3, 4, 5]), (15, list(range(6, 21)))):
        with pytest.raises(DatabaseError):
            database.after(seconds)
        assert database.fire_times == fire_times


def test_what_is_late_is_more_than_a_leader_needs() -> None:
    assert ON_TIME > EVERY * SECOND
