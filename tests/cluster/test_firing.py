"""The service that fires: what it fires when, what it does about fire times that were missed, and whose clock it goes
by."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from forge.cluster import cron, declaring, firing, schedules
from forge.cluster.cron import FireTimes
from forge.cluster.declaring import Declare
from forge.cluster.firing import AT_ONCE, EVERY, EVERY_IF_FAR, ON_TIME, Cron, times_to_fire
from forge.errors import DatabaseError, UsageError
from forge.job import Job, JobFilter
from forge.storage import Storage
from forge.storage.contract.schedules import Fired, Firing, NewSchedule, Schedule
from tests.storage.helpers import age, clock, lead, sql

pytestmark = pytest.mark.impl_free

TERM = 3
HOUR = timedelta(hours=1)


# Half an hour from now, so that no fire time comes while the tests run.
HOURLY = f"{(datetime.now(UTC).minute + 30) % 60} * * * *"


def new(name: str = "tick", expression: str = HOURLY, **more: Any) -> NewSchedule:
    return NewSchedule(name=name, expression=expression, kind=f"kind of {name}", **more)


def service(storage: Storage, url: str, *wanted: NewSchedule) -> Cron:
    """Cron of the pod that leads, in a project that declares these."""
    lead(url, TERM)
    declare(storage, *wanted)
    return Cron(storage)


def declare(storage: Storage, *wanted: NewSchedule, project: str = "shop") -> str | None:
    """What a pod does that has just started."""
    return Declare(storage, lambda: project, lambda: wanted).run_once(None)


def jobs(storage: Storage, name: str = "tick") -> list[Job]:
    """What a schedule has enqueued, oldest fire time first."""
    return storage.find(JobFilter(kinds=[f"kind of {name}"]), limit=10_000).jobs[::-1]


def stored(storage: Storage, name: str = "tick") -> Schedule:
    return schedules.find(storage, name)


# -- one round


def test_a_new_schedule_is_seeded_and_not_fired(storage: Storage, url: str) -> None:
    assert declare(storage, new()) == "added tick"
    assert service(storage, url, new()).run_once(TERM) is None
    found = stored(storage)
    assert found.next_at == FireTimes(HOURLY).after(clock(storage))
    assert (found.last_fire_time, jobs(storage)) == (None, [])


def test_it_looks_often_only_while_something_is_due_soon(storage: Storage, url: str) -> None:
    """Unless it is told of new ones: with a time in a second or two they would be late."""
    for wanted, every in (((), EVERY_IF_FAR), ((new(),), EVERY_IF_FAR), ((new(), new("soon", "* * * * * *")), EVERY)):
        service(storage, url, *wanted)
        for hears in (True, False):
            cron = Cron(storage, hears=lambda hears=hears: hears)  # type: ignore[misc]
            assert cron.every == EVERY
            cron.run_once(TERM)
            assert cron.every == (every if hears else EVERY)
    storage.schedules.pause("soon")
    cron = Cron(storage, hears=lambda: True)
    cron.run_once(TERM)
    assert cron.every == EVERY_IF_FAR


def test_what_is_due_is_enqueued_once_and_goes_on_from_now(storage: Storage, url: str) -> None:
    cron = service(storage, url, new(queue="q", priority=4, max_attempts=2, timeout=9, keep_result=60, tags=("t",)))
    cron.run_once(TERM)
    age(url, "schedule", "next_at", 3600)
    fire_time = stored(storage).next_at
    assert fire_time is not None
    assert cron.run_once(TERM) == "fired 1 of tick"
    assert cron.run_once(TERM) is None
    (job,) = jobs(storage)
    assert (job.queue, job.priority, job.max_attempts, job.timeout, job.keep_result) == ("q", 4, 2, 9, 60)
    assert (job.tags, job.run_at) == (("t", "cron:tick"), fire_time)
    found = stored(storage)
    assert (found.last_fire_time, found.last_job, found.next_at) == (fire_time, job.id, fire_time + HOUR)


def test_a_schedule_that_cannot_come_due_is_disabled_with_the_reason_and_the_others_go_on(
    storage: Storage, url: str
) -> None:
    cron = service(storage, url, new("bad"), new("elsewhere"), new("good"))
    cron.run_once(TERM)
    age(url, "schedule", "next_at", 3600)
    sql(url, "update {schedule} set expression = '61 * * * *' where name = 'bad'")
    sql(url, "update {schedule} set timezone = 'Mars/Olympus' where name = 'elsewhere'")
    said = cron.run_once(TERM)
    assert said is not None
    assert "bad is disabled: schedule '61 * * * *' must be a cron expression (" in said
    assert said.endswith("fired 1 of good")
    assert stored(storage, "elsewhere").state.startswith("disabled: timezone 'Mars/Olympus' must be the name of")
    assert cron.run_once(TERM) is None
    assert [len(jobs(storage, name)) for name in ("bad", "elsewhere", "good")] == [0, 0, 1]
    sql(url, "update {schedule} set expression = '0 * * * *' where name = 'bad'")
    assert schedules.resume(storage, "bad").state == "active"


def test_a_declared_schedule_that_cannot_be_used_here_is_stored_as_disabled(storage: Storage, url: str) -> None:
    assert declare(storage, new("good"), new("odd", timezone="Mars/Olympus")) == "added good, odd"
    assert stored(storage, "odd").state.startswith("disabled: timezone 'Mars/Olympus' must be")


def test_a_fire_time_is_skipped_while_the_job_before_it_is_active(storage: Storage, url: str) -> None:
    cron = service(storage, url, new(dedupe_key="cron:tick"))
    cron.run_once(TERM)
    active = schedules.run_now(storage, "tick")
    age(url, "schedule", "next_at", 3600)
    assert cron.run_once(TERM) == "fired 1 of tick, 1 skipped"
    assert (stored(storage).last_skipped, stored(storage).last_job) == (True, active.id)
    assert len(jobs(storage)) == 1


class Refusing:
    """The schedules of a storage, one of which the database does not take."""

    def __init__(self, storage: Storage, names: set[str]) -> None:
        self._schedules, self._names = storage.schedules, names
        self.tried: list[str] = []

    def fire(self, term: int, schedule: Schedule, firings: Sequence[Firing], next_at: datetime) -> Fired:
        self.tried.append(schedule.name)
        if schedule.name in self._names:
            raise DatabaseError(f"refused: {schedule.name}")
        return self._schedules.fire(term, schedule, firings, next_at)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._schedules, name)


def test_one_that_the_database_refuses_does_not_stop_the_others(
    storage: Storage, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cron = service(storage, url, new("a"), new("b"), new("c"))
    cron.run_once(TERM)
    age(url, "schedule", "next_at", 3600)
    refusing = Refusing(storage, {"a"})
    monkeypatch.setattr(storage, "schedules", refusing)
    with pytest.raises(DatabaseError, match="refused: a"):
        cron.run_once(TERM)
    assert refusing.tried == ["a", "b", "c"]
    age(url, "schedule", "next_at", 3600)
    sql(url, "delete from {schedule_fire_time}")
    everything = Refusing(storage, {"a", "b", "c"})
    monkeypatch.setattr(storage, "schedules", everything)
    with pytest.raises(DatabaseError, match="refused: b"):
        cron.run_once(TERM)
    assert everything.tried == ["a", "b"]  # the database is away: the rest need not be tried


# -- fire times that were missed


def due(catch_up: Any, next_at: datetime, expression: str = "0 * * * *") -> Schedule:
    return Schedule(name="x", expression=expression, kind="k", catch_up=catch_up, next_at=next_at)


NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SECONDLY = "* * * * * *"


@pytest.mark.parametrize(
    ("catch_up", "expression", "late", "expected"),
    [
        # On time, whatever the policy: also several, if the leader was busy for a moment.
        ("one", "0 * * * *", 0, [0]),
        ("none", "0 * * * *", 1, [0]),
        ("all", "0 * * * *", 1, [0]),
        ("one", SECONDLY, 1, [0, 1]),
        ("none", SECONDLY, 1, [0, 1]),
        # Late, however little.
        ("none", "0 * * * *", 2, []),
        ("one", "0 * * * *", 2, [0]),
        ("all", "0 * * * *", 2, [0]),
        ("none", SECONDLY, 3, [2, 3]),
        ("one", SECONDLY, 3, [3]),
        ("all", SECONDLY, 3, [0, 1, 2, 3]),
        ("none", SECONDLY, 29, [28, 29]),
        ("one", SECONDLY, 29, [29]),
        ("none", "0 * * * *", 7300, []),
        ("one", "0 * * * *", 7300, [7200]),
        ("all", "0 * * * *", 7300, [0, 3600, 7200]),
        # Late ones, and some on time: those are enough.
        ("none", "0 * * * *", 7201, [7200]),
        ("one", "0 * * * *", 7201, [7200]),
        ("all", "0 * * * *", 7201, [0, 3600, 7200]),
    ],
)
def test_which_fire_times_fire_after_a_delay(catch_up: str, expression: str, late: int, expected: list[int]) -> None:
    now = NOON + timedelta(seconds=late, microseconds=5)
    found, going_on = times_to_fire(due(catch_up, NOON, expression), FireTimes(expression), now, now - ON_TIME)
    assert found == [NOON + timedelta(seconds=n) for n in expected]
    assert going_on == FireTimes(expression).after(now)


def test_a_year_of_missed_fire_times_is_made_up_for_a_batch_at_a_time() -> None:
    found, going_on = times_to_fire(due("all", NOON, SECONDLY), FireTimes(SECONDLY), NOON + timedelta(days=365), NOON)
    assert len(found) == AT_ONCE
    assert going_on == NOON + timedelta(seconds=AT_ONCE)


def test_a_schedule_that_never_comes_again_says_so() -> None:
    class Ending(FireTimes):
        def after(self, moment: datetime) -> datetime | None:
            return NOON if moment < NOON else None

    with pytest.raises(UsageError, match="it never comes again"):
        times_to_fire(due("one", NOON), Ending("0 * * * *"), NOON, NOON - ON_TIME)


@pytest.mark.parametrize(("catch_up", "count"), [("one", 1), ("all", 400), ("none", 0)])
def test_missed_fire_times_in_the_database(storage: Storage, url: str, catch_up: Any, count: int) -> None:
    cron = service(storage, url, new(catch_up=catch_up))
    cron.run_once(TERM)
    found = stored(storage)
    age(url, "schedule", "next_at", 400 * 3600)
    assert cron.run_once(TERM) == (f"fired {count} of tick" if count else None)
    assert len(jobs(storage)) == count
    assert stored(storage).next_at == found.next_at


# -- jitter and ids


def test_jitter_is_a_delay_of_the_fire_times_own(storage: Storage) -> None:
    schedule = new(jitter=600)
    fire_times = [NOON + n * HOUR for n in range(200)]
    late = [(schedules.job_at(schedule, fire_time).run_at or NOON) - fire_time for fire_time in fire_times]
    assert late == [(schedules.job_at(schedule, fire_time).run_at or NOON) - fire_time for fire_time in fire_times]
    assert all(timedelta() <= each < timedelta(minutes=10) for each in late)
    assert len(set(late)) == 200
    assert max(late) > timedelta(minutes=9) and min(late) < timedelta(minutes=1)
    other = new("other", jitter=600)
    assert schedules.job_at(other, NOON).run_at != schedules.job_at(schedule, NOON).run_at
    assert schedules.job_at(new(), NOON).run_at == NOON


def test_a_jobs_id_is_that_of_its_fire_time_and_sorts_by_it() -> None:
    ids = [schedules.job_at(new(), NOON + n * HOUR).id for n in range(100)]
    assert ids == sorted(ids)
    assert all(each.version == 7 and each.variant.startswith("specified") for each in ids)
    assert schedules.job_at(new(queue="q"), NOON).id == ids[0]
    assert schedules.job_at(new("other"), NOON).id != ids[0]


# -- the clock


class Untrusted(datetime):
    """The pod's own clock must not be asked."""

    @classmethod
    def now(cls, *_: object) -> Any:
        raise AssertionError("the pod's clock was asked")

    utcnow = today = now


@pytest.mark.parametrize("off", [-600, 600])
def test_a_pod_whose_clock_is_ten_minutes_off_fires_nothing_early_and_nothing_late(
    storage: Storage, url: str, monkeypatch: pytest.MonkeyPatch, off: int
) -> None:
    now = storage.now()
    monkeypatch.setattr("time.time", lambda: now + off)
    monkeypatch.setattr("time.time_ns", lambda: int((now + off) * 1e9))
    for module in (firing, schedules, cron, declaring):
        monkeypatch.setattr(module, "datetime", Untrusted)
    lead(url, TERM)
    seconds = [f"{(int(now) + n) % 60} {(int(now) + n) // 60 % 60} * * * *" for n in (-300, 300)]
    service = Cron(storage)
    declare(storage, new("past", seconds[0]), new("soon", seconds[1]))
    next_at = {each.name: each.next_at for each in storage.schedules.all()}
    assert next_at["soon"] == datetime.fromtimestamp(int(now) + 300, UTC)
    assert next_at["past"] == datetime.fromtimestamp(int(now) - 300 + 3600, UTC)
    age(url, "schedule", "next_at", 3600, "name = 'past'")
    assert service.run_once(TERM) == "fired 1 of past"
    assert [len(jobs(storage, name)) for name in ("past", "soon")] == [1, 0]
    assert schedules.resume(storage, "soon").next_at == next_at["soon"]


# -- what people do


def test_pausing_resuming_running_now_and_removing(storage: Storage, url: str) -> None:
    cron = service(storage, url, new("declared", source="config"))
    cron.run_once(TERM)
    mine = schedules.put(storage, new("mine", dedupe_key="cron:mine"))
    assert schedules.pause(storage, "declared").paused
    age(url, "schedule", "next_at", 7200)
    age(url, "schedule", "paused_at", 7200, "name = 'declared'")
    cron.run_once(TERM)
    assert (len(jobs(storage, "mine")), len(jobs(storage, "declared"))) == (1, 0)
    resumed = schedules.resume(storage, "declared")
    assert (resumed.paused, resumed.next_at) == (False, FireTimes(HOURLY).after(clock(storage)))
    assert cron.run_once(TERM) is None  # what passed meanwhile was not missed
    first = schedules.run_now(storage, "declared")
    assert [job.id for job in jobs(storage, "declared")] == [first.id]
    assert schedules.run_now(storage, "mine").id == jobs(storage, "mine")[0].id  # it has the key
    assert stored(storage, "declared").last_fire_time is None
    schedules.remove(storage, "mine")
    with pytest.raises(UsageError, match=r"no schedule mine; there are declared   \(forge schedules lists all\)"):
        schedules.find(storage, "mine")
    with pytest.raises(UsageError, match=r"declared is in forge.toml of project shop; remove it there, or pause it"):
        schedules.remove(storage, "declared")
    with pytest.raises(UsageError, match=r"schedule declared is in forge.toml; change it there, or pause it"):
        schedules.change(storage, "declared", queue="other")
    for verb in (schedules.pause, schedules.resume, schedules.run_now, schedules.remove):
        with pytest.raises(UsageError, match="no schedule unknown"):
            verb(storage, "unknown")
    assert dataclasses.astuple(mine)[:3] == ("mine", HOURLY, "kind of mine")


def test_an_edit_counts_from_now_on(storage: Storage, url: str) -> None:
    cron = service(storage, url)
    schedules.put(storage, new())
    age(url, "schedule", "next_at", 7200)
    changed = schedules.change(storage, "tick", timezone="Asia/Kolkata")
    assert changed.next_at == FireTimes(HOURLY, "Asia/Kolkata").after(clock(storage))
    assert cron.run_once(TERM) is None
    assert schedules.change(storage, "tick", queue="q").next_at == changed.next_at


def test_fire_times_are_forgotten_after_a_week(storage: Storage, url: str) -> None:
    lead(url, TERM)
    schedules.put(storage, new())
    age(url, "schedule", "next_at", 3600)
    Cron(storage).run_once(TERM)
    assert len(storage.schedules.fire_times("tick")) == 1
    age(url, "schedule_fire_time", "fired_at", 8 * 86_400)
    Cron(storage).run_once(TERM)
    assert storage.schedules.fire_times("tick") == []
