"""Schedules as stored: adding, changing, pausing, firing. Fire times are given by hand; tests/cluster has those of
cron."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from forge.errors import LostLease
from forge.job import Done, Ending, JobFilter, Line, NewJob, Status
from forge.storage import Storage
from forge.storage.contract.schedules import Fired, FireTime, Firing, NewSchedule, Schedule, Seeded, Synced

from .helpers import age, clock, during, lead, new_id

pytestmark = pytest.mark.impl_free

TERM = 7
PROJECT = "shop"
LONG_AGO = datetime(2024, 2, 29, 3, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def _leading(storage: Storage, url: str) -> None:
    lead(url, TERM)


def full(**changes: Any) -> NewSchedule:
    """A schedule with a value of its own in every field."""
    new = NewSchedule(
        name="nightly",
        expression="0 3 * * *",
        kind="tasks.report",
        payload=b'{"args":[1],"kwargs":{"b":"\xc3\xa4"}}',
        timezone="Europe/Berlin",
        queue="reports",
        priority=3,
        max_attempts=7,
        timeout=45,
        keep_result=1200,
        dedupe_key="cron:nightly",
        unique_for=90,
        tags=("red", 'b"lue'),
        catch_up="all",
        jitter=2.5,
        source="runtime",
        line=Line.of(rate_limit="slack", concurrency_key="ann", concurrency=4, partition="x|y"),
        project="",
    )
    return dataclasses.replace(new, **changes)


def stored(new: NewSchedule, **changes: Any) -> Schedule:
    """What it looks like right after it was put."""
    values = {field.name: getattr(new, field.name) for field in dataclasses.fields(new)}
    return Schedule(**values | changes)


def put(storage: Storage, next_at: datetime = LONG_AGO, **changes: Any) -> Schedule:
    return storage.schedules.put(Seeded(full(**changes), next_at))


def job(**changes: Any) -> NewJob:
    return NewJob(new_id(), "tasks.report", b"{}", "reports")._replace(**changes)


def firing(fire_time: datetime, **changes: Any) -> Firing:
    return Firing(fire_time, job(**changes))


def jobs(storage: Storage) -> set[UUID]:
    return {found.id for found in storage.find(JobFilter(), limit=100_000).jobs}


def test_a_schedule_is_read_back_as_it_was_put(storage: Storage) -> None:
    assert storage.schedules.get("nightly") is None
    assert put(storage) == stored(full(), next_at=LONG_AGO)
    plain = NewSchedule(name="a plain one", expression="* * * * *", kind="tick")
    storage.schedules.put(Seeded(plain, LONG_AGO + DAY))
    assert storage.schedules.all() == [stored(plain, next_at=LONG_AGO + DAY), stored(full(), next_at=LONG_AGO)]
    assert storage.schedules.get("nightly") == stored(full(), next_at=LONG_AGO)


def test_a_message_holds_all_of_it() -> None:
    assert NewSchedule.of_message(full().as_message()) == full()


def test_putting_it_again_changes_nothing(storage: Storage) -> None:
    before = put(storage)
    assert put(storage, LONG_AGO + DAY) == before
    assert before.revision == 1


@pytest.mark.parametrize("change", [{"queue": "other"}, {"tags": ()}, {"payload": b"null"}, {"dedupe_key": None}])
def test_a_change_keeps_the_next_fire_time(storage: Storage, change: dict[str, Any]) -> None:
    put(storage)
    assert put(storage, LONG_AGO + DAY, **change) == stored(full(**change), next_at=LONG_AGO, revision=2)


@pytest.mark.parametrize("change", [{"expression": "5 3 * * *"}, {"timezone": "UTC"}])
def test_another_time_finds_the_next_fire_time_anew_and_enables_it(storage: Storage, change: dict[str, Any]) -> None:
    assert storage.schedules.disable(TERM, put(storage), "it is broken")
    assert put(storage, LONG_AGO + DAY, **change) == stored(full(**change), next_at=LONG_AGO + DAY, revision=2)


def test_one_of_the_configuration_cannot_be_changed_at_run_time(storage: Storage) -> None:
    declared = full(source="config")
    storage.schedules.sync(PROJECT, [Seeded(declared, LONG_AGO)])
    assert put(storage, LONG_AGO + DAY, queue="other") == stored(declared, next_at=LONG_AGO, project=PROJECT)
    assert not storage.schedules.remove("nightly")
    assert put(storage, name="mine").name == "mine"
    assert storage.schedules.remove("mine")
    assert not storage.schedules.remove("mine")
    assert storage.schedules.remove("nightly", declared=True)


def test_a_sync_removes_only_what_its_own_project_has_declared(storage: Storage) -> None:
    theirs, ours = (Seeded(full(name=name, source="config"), LONG_AGO) for name in ("theirs", "ours"))
    storage.schedules.sync("bank", [theirs])
    assert storage.schedules.sync(PROJECT, [ours]) == Synced(added=("ours",))
    assert storage.schedules.sync(PROJECT, []) == Synced(removed=("ours",))
    assert storage.schedules.sync(PROJECT, [theirs]) == Synced(changed=("theirs",), contested=("theirs",))
    assert storage.schedules.sync("bank", []) == Synced()
    assert [(each.name, each.project) for each in storage.schedules.all()] == [("theirs", PROJECT)]


def test_a_sync_adds_changes_and_removes_what_is_declared_and_no_other(storage: Storage) -> None:
    put(storage, name="kept")
    put(storage, name="taken")
    names = ("old", "same", "other", "taken")
    first = [Seeded(full(name=name, source="config" if name != "other" else "code"), LONG_AGO) for name in names]
    assert storage.schedules.sync(PROJECT, first[:3]) == Synced(added=("old", "other", "same"))
    changed = Seeded(full(name="other", source="config", queue="q"), LONG_AGO)
    assert storage.schedules.sync(PROJECT, [first[1], changed, first[3]]) == Synced(
        changed=("other", "taken"), removed=("old",), taken_over=("taken",)
    )
    found = {each.name: each.source for each in storage.schedules.all()}
    assert found == {"kept": "runtime", "other": "config", "same": "config", "taken": "config"}
    assert storage.schedules.sync(PROJECT, [first[1], changed, first[3]]) == Synced()


def test_one_that_cannot_come_due_is_stored_with_the_reason(storage: Storage) -> None:
    storage.schedules.sync(PROJECT, [Seeded(full(source="config"), None, "no such zone here")])
    found = storage.schedules.get("nightly")
    assert found is not None and found.state == "disabled: no such zone here"
    assert storage.schedules.due().schedules == []


def test_what_is_due_is_due_by_the_databases_clock_and_the_longest_due_comes_first(storage: Storage) -> None:
    now = clock(storage)
    put(storage, now + timedelta(hours=1), name="later")
    put(storage, now - timedelta(seconds=5), name="b")
    put(storage, now - timedelta(seconds=9), name="c")
    put(storage, now - timedelta(seconds=5), name="a")
    put(storage, name="paused")
    assert storage.schedules.pause("paused")
    storage.schedules.disable(TERM, put(storage, name="broken"), "why")
    with during(storage) as moment:
        due = storage.schedules.due()
    assert due.now == moment
    assert [each.name for each in due.schedules] == ["c", "a", "b"]
    assert [each.name for each in storage.schedules.due(1).schedules] == ["c"]


def test_nothing_due_still_has_a_time(storage: Storage) -> None:
    with during(storage) as moment:
        due = storage.schedules.due()
    assert (due.now == moment, due.schedules) == (True, [])


def test_pausing_and_resuming(storage: Storage) -> None:
    schedule = put(storage)
    assert storage.schedules.pause("nightly")
    paused = storage.schedules.get("nightly")
    assert paused is not None and (paused.paused, paused.state) == (True, "paused")
    assert storage.schedules.fire(TERM, schedule, [firing(LONG_AGO)], LONG_AGO + DAY) == Fired()
    assert storage.schedules.resume(paused, LONG_AGO + DAY)
    assert storage.schedules.get("nightly") == stored(full(), next_at=LONG_AGO + DAY)
    put(storage, queue="other")
    assert not storage.schedules.resume(paused, LONG_AGO)
    assert not storage.schedules.pause("unknown")
    assert jobs(storage) == set()


def test_firing_stores_the_fire_time_the_job_and_the_next_fire_time(storage: Storage) -> None:
    schedule = put(storage)
    fired = firing(LONG_AGO, dedupe_key="k", tags=("t",), run_at=LONG_AGO + timedelta(seconds=2))
    with during(storage) as moment:
        assert storage.schedules.fire(TERM, schedule, [fired], LONG_AGO + DAY) == Fired((LONG_AGO,))
    assert storage.schedules.get("nightly") == stored(
        full(), next_at=LONG_AGO + DAY, last_fire_time=LONG_AGO, last_job=fired.job.id
    )
    assert storage.schedules.fire_times("nightly") == [FireTime(LONG_AGO, moment, fired.job.id, False)]
    found = storage.get([fired.job.id])[fired.job.id]
    assert (found.dedupe_key, found.tags, found.run_at) == ("k", ("t",), LONG_AGO + timedelta(seconds=2))


def test_a_fire_time_that_has_fired_does_not_fire_again_whatever_the_schedule_says(storage: Storage, url: str) -> None:
    """Its row alone prevents that: here the clock has been set back, or somebody has made the schedule anew."""
    schedule = put(storage)
    first = [firing(LONG_AGO), firing(LONG_AGO + DAY)]
    storage.schedules.fire(TERM, schedule, first, LONG_AGO + 2 * DAY)
    for again in ("set back", "made anew"):
        if again == "set back":
            age(url, "schedule", "next_at", 2 * 86_400)
        else:
            storage.schedules.remove("nightly")
            schedule = put(storage)
        more = [firing(LONG_AGO), firing(LONG_AGO + DAY)]
        assert storage.schedules.fire(TERM, schedule, more, LONG_AGO + 2 * DAY) == Fired()
        assert jobs(storage) == {each.job.id for each in first}


def test_a_fire_time_before_the_next_one_does_not_fire_even_if_its_row_is_gone(storage: Storage, url: str) -> None:
    schedule = put(storage)
    storage.schedules.fire(TERM, schedule, [firing(LONG_AGO)], LONG_AGO + DAY)
    age(url, "schedule_fire_time", "fired_at", 1000)
    assert storage.schedules.prune(TERM, keep=999) == 1
    assert storage.schedules.fire_times("nightly") == []
    late = [firing(LONG_AGO), firing(LONG_AGO + DAY)]
    assert storage.schedules.fire(TERM, schedule, late, LONG_AGO + 2 * DAY) == Fired((LONG_AGO + DAY,))
    # One that comes even later has nothing to fire, and does not set the schedule back.
    assert storage.schedules.fire(TERM, schedule, [firing(LONG_AGO)], LONG_AGO + DAY) == Fired()
    found = storage.schedules.get("nightly")
    assert found is not None and (found.next_at, found.last_fire_time) == (LONG_AGO + 2 * DAY, LONG_AGO + DAY)
    assert len(jobs(storage)) == 2


def test_a_schedule_that_was_changed_or_removed_meanwhile_does_not_fire_what_it_said_before(storage: Storage) -> None:
    before = put(storage)
    after = put(storage, queue="other")
    assert storage.schedules.fire(TERM, before, [firing(LONG_AGO)], LONG_AGO + DAY) == Fired()
    assert not storage.schedules.disable(TERM, before, "why")
    assert storage.schedules.get("nightly") == after
    storage.schedules.remove("nightly")
    assert storage.schedules.fire(TERM, after, [firing(LONG_AGO)], LONG_AGO + DAY) == Fired()
    assert jobs(storage) == set()


def test_a_fire_time_is_skipped_while_the_job_of_an_earlier_one_is_active(storage: Storage) -> None:
    schedule = put(storage)
    first, second, third = (firing(LONG_AGO + n * DAY, dedupe_key="cron:nightly") for n in range(3))
    storage.schedules.fire(TERM, schedule, [first], second.at)
    assert storage.schedules.fire(TERM, schedule, [second], third.at) == Fired((second.at,), (second.at,))
    found = storage.schedules.get("nightly")
    assert found is not None
    assert (found.last_fire_time, found.last_job, found.last_skipped) == (second.at, first.job.id, True)
    assert [(each.at, each.job, each.skipped) for each in storage.schedules.fire_times("nightly")] == [
        (second.at, first.job.id, True),
        (first.at, first.job.id, False),
    ]
    who = storage.register("ada", ["reports"], "north", 1)
    storage.finalize([Ending(claim, Done()) for claim in storage.claim(who, "reports", 9)])
    assert storage.schedules.fire(TERM, schedule, [third], LONG_AGO + 9 * DAY) == Fired((third.at,))
    assert {id_: each.status for id_, each in storage.get(jobs(storage)).items()} == {
        first.job.id: Status.DONE,
        third.job.id: Status.PENDING,
    }


def test_of_several_fire_times_with_one_key_the_first_has_the_job(storage: Storage) -> None:
    schedule = put(storage)
    both = [firing(LONG_AGO + n * DAY, dedupe_key="cron:nightly") for n in range(2)]
    assert storage.schedules.fire(TERM, schedule, both, LONG_AGO + 2 * DAY) == Fired(
        (LONG_AGO, LONG_AGO + DAY), (LONG_AGO + DAY,)
    )
    assert jobs(storage) == {both[0].job.id}


def test_missed_fire_times_that_are_not_made_up_for_only_move_the_schedule_on(storage: Storage) -> None:
    schedule = put(storage)
    assert storage.schedules.fire(TERM, schedule, [], LONG_AGO + 9 * DAY) == Fired()
    assert storage.schedules.get("nightly") == stored(full(), next_at=LONG_AGO + 9 * DAY)


def test_a_leader_of_another_term_changes_nothing(storage: Storage, url: str) -> None:
    schedule = put(storage)
    lead(url, TERM + 1)
    before = storage.schedules.all()
    with pytest.raises(LostLease, match="term 7 is over"):
        storage.schedules.fire(TERM, schedule, [firing(LONG_AGO)], LONG_AGO + DAY)
    with pytest.raises(LostLease):
        storage.schedules.disable(TERM, schedule, "why")
    with pytest.raises(LostLease):
        storage.schedules.prune(TERM, keep=0)
    assert (storage.schedules.all(), storage.schedules.fire_times("nightly"), jobs(storage)) == (before, [], set())


def test_old_fire_times_are_pruned_a_batch_at_a_time(storage: Storage, url: str) -> None:
    schedule = put(storage)
    fire_times = [LONG_AGO + n * DAY for n in range(5)]
    storage.schedules.fire(TERM, schedule, [firing(fire_time) for fire_time in fire_times], LONG_AGO + 5 * DAY)
    assert storage.schedules.prune(TERM) == 0
    age(url, "schedule_fire_time", "fired_at", 8 * 86_400, "skipped = false")
    storage.schedules.fire(TERM, schedule, [firing(LONG_AGO + 5 * DAY)], LONG_AGO + 6 * DAY)
    assert [storage.schedules.prune(TERM, n=3) for _ in range(3)] == [3, 2, 0]
    assert [each.at for each in storage.schedules.fire_times("nightly")] == [LONG_AGO + 5 * DAY]
