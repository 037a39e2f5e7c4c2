"""The low-water mark: what it skips, when it starts over, and that nothing in front of it is lost."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from forge.errors import DatabaseError
from forge.job import Claim, Released
from forge.storage import Storage, open_storage
from forge.storage.contract import Incarnation
from forge.storage.shared.low_water import MOST_BYTES, LowWater, scan

from .helpers import end, fail, ids, plain_job, plain_jobs

pytestmark = pytest.mark.impl_free

PAST = datetime(2024, 5, 6, 7, 8, 9, 101112, UTC)
NEVER = 1e9  # seconds between whole scans: none, in a test


def made_up(number: int, priority: int = 1) -> Claim:
    """A claim that no database made."""
    return Claim(priority, number * 10, UUID(int=number), 0, "q", "k", b"", 1, 1, 1, False, False)


def first(number: int) -> tuple[int, UUID]:
    """Where the mark is behind `made_up(number)`."""
    return number * 10, UUID(int=number)


def whole(water: LowWater, *claims: Claim, began: float, took: float = 0.0) -> None:
    """A scan from the start that found these, and may have left some."""
    water.note(claims, None, True, began, began + took)


def test_there_are_no_marks_before_the_first_claim() -> None:
    assert LowWater().begin(100.0) is None


def test_the_mark_of_a_priority_is_its_last_job_claimed() -> None:
    water = LowWater()
    whole(water, made_up(3), made_up(4), made_up(5, priority=2), made_up(1, priority=7), began=100.0)
    assert water.begin(100.02) == {1: first(4), 2: first(5), 7: first(1)}


def test_a_scan_that_found_nothing_leaves_the_marks() -> None:
    water = LowWater()
    whole(water, made_up(3), began=100.0)
    water.note([], water.marks, False, 100.02, 100.03)
    assert water.begin(100.04) == {1: first(3)}


def test_forget_starts_over_once() -> None:
    water = LowWater()
    whole(water, made_up(3), began=100.0)
    water.forget()
    assert water.begin(100.02) is None
    whole(water, made_up(4), began=100.02)
    assert water.begin(100.03) == {1: first(4)}


def test_the_timer_starts_over_and_is_wound_up_by_whole_scans_only() -> None:
    water = LowWater(timer=1.0)
    whole(water, made_up(3), began=100.0)
    water.note([made_up(5)], water.marks, True, 100.5, 100.51)
    assert water.begin(100.9) == {1: first(5)}
    assert water.begin(101.02) is None
    whole(water, made_up(6), began=101.02)
    assert water.begin(101.5) == {1: first(6)}


def test_a_dear_whole_scan_is_made_for_a_share_of_the_time_but_after_a_minute_at_the_latest() -> None:
    water = LowWater()
    whole(water, made_up(3), began=100.0, took=0.5)
    again = 100.5 + LowWater.SHARE * 0.5
    assert water.begin(again - 0.1) is not None and water.again(water.marks, again - 0.1) != (None,)
    assert water.begin(again) is None and water.again(water.marks, again) == (None,)
    whole(water, made_up(3), began=200.0, took=10.0)
    again = 210.0 + LowWater.MOST_APART
    assert water.begin(again - 0.1) is not None and water.again(water.marks, again - 0.1) != (None,)
    assert water.begin(again) is None and water.again(water.marks, again) == (None,)


def test_a_near_scan_starts_where_the_marks_were_a_second_ago_at_least() -> None:
    water = LowWater()
    whole(water, made_up(1), began=100.0, took=10.0)
    seen = {}
    for tenth in range(1, 40):
        at = 110.0 + tenth / 10
        if (used := water.begin(at)) is not water.marks:
            seen[tenth] = used
        water.note([made_up(tenth)], used, True, at, at)
    assert {tenth: used and used[1] for tenth, used in seen.items()} == {11: first(1), 21: first(10), 31: first(20)}


def test_after_a_short_scan_a_near_one_is_made_for_a_share_of_the_time() -> None:
    water = LowWater()
    whole(water, made_up(1), began=100.0, took=10.0)
    water.begin(111.0)
    water.note([made_up(8)], water.marks, True, 111.0, 111.0)
    used = water.begin(114.0)
    assert used == {1: first(1)}
    water.note([made_up(9)], used, False, 114.0, 114.01)
    again = 114.01 + LowWater.SHARE * 0.01
    assert water.again(used, again) is None, "it was one already"
    assert water.again(water.marks, again - 0.1) is None
    assert water.again(water.marks, again) == (used,)


def test_who_only_looks_starts_behind_the_marks_where_whole_scans_are_dear() -> None:
    water = LowWater()
    whole(water, made_up(3), began=100.0, took=LowWater.CHEAP / 2)
    assert water.look(100.1) == {}
    whole(water, made_up(4), began=101.0, took=1.0)
    assert water.look(102.1) == {1: first(4)}


def test_marks_go_back_only_to_where_a_scan_may_have_left_jobs() -> None:
    water = LowWater()
    whole(water, made_up(5), began=100.0)
    water.note([made_up(2)], None, False, 101.0, 101.0)
    assert water.marks == {1: first(5)}
    whole(water, made_up(2), began=102.0)
    assert water.marks == {1: first(2)}


class Scans:
    """A stand-in for one queue's claims: answers what it was told to, and remembers how it was asked."""

    def __init__(self, *answers: Sequence[Claim]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, Any]] = []

    def __call__(self, n: int, most_bytes: int, marks: Any) -> list[Claim]:
        assert most_bytes > 0
        self.asked.append((n, marks))
        return list(self.answers.pop(0))


def no_look(marks: Any, margin: float) -> dict[int, int]:
    raise AssertionError(f"looked behind {marks} with {margin}")


def test_a_marked_scan_that_came_back_short_is_filled_up_from_the_start() -> None:
    water = LowWater(NEVER)
    scans = Scans([made_up(1), made_up(2)], [made_up(3)], [made_up(1, priority=0)])
    assert scan(water, 2, MOST_BYTES, scans, no_look) == [made_up(1), made_up(2)]
    water._whole.cost = 0.0  # the made-up scan took no time
    assert scan(water, 2, MOST_BYTES, scans, no_look) == [made_up(3), made_up(1, priority=0)]
    assert scans.asked == [(2, None), (2, {1: first(2)}), (1, None)]
    assert water.marks == {0: first(1), 1: first(3)}


def test_what_was_claimed_is_kept_when_the_second_scan_fails() -> None:
    """Nobody else would run it: its owner is alive."""

    def fails(n: int, most_bytes: int, marks: Any) -> list[Claim]:
        if marks is None:
            raise DatabaseError("away")
        return [made_up(3)]

    water = LowWater(NEVER)
    scan(water, 2, MOST_BYTES, Scans([made_up(1), made_up(2)]), no_look)
    water._whole.cost = 0.0
    assert scan(water, 2, MOST_BYTES, fails, no_look) == [made_up(3)]
    with pytest.raises(DatabaseError):
        scan(LowWater(NEVER), 2, MOST_BYTES, fails, no_look)


def test_a_full_scan_is_not_started_over() -> None:
    water = LowWater(NEVER)
    scans = Scans([made_up(1)], [made_up(2)], [])
    scan(water, 1, MOST_BYTES, scans, no_look)
    scan(water, 1, MOST_BYTES, scans, no_look)
    assert scans.asked == [(1, None), (1, {1: first(1)})]


def test_a_scan_that_came_to_its_bytes_is_full_and_says_nothing_of_what_is_behind() -> None:
    water = LowWater(NEVER)
    large = made_up(1)._replace(payload=b"x" * 100)
    scans = Scans([large], [made_up(2)], [large])
    assert scan(water, 5, 100, scans, no_look) == [large]
    water._whole.cost = 0.0
    assert scan(water, 5, 150, scans, no_look) == [made_up(2), large], "and with room left it goes on"
    assert scans.asked == [(5, None), (5, {1: first(1)}), (4, None)]


def test_after_a_dear_scan_that_came_back_short_nobody_reads_again_what_others_have_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where this pod has never claimed a job of the usual priority, as one that has just started."""
    now = itertools.count(100.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    water = LowWater(NEVER)
    scans = Scans([made_up(1), made_up(70, priority=4)], [])
    asked: list[Any] = []

    def look(marks: Any, margin: float) -> dict[int, int]:
        asked.append((marks, margin))
        return {0: 500, 1: 400, 4: 300}

    scan(water, 3, MOST_BYTES, scans, look)
    assert asked == [({1: first(1), 4: first(70)}, LowWater.NEAR)]
    assert water.marks == {0: (500, UUID(int=0)), 1: (400, UUID(int=0)), 4: first(70)}
    scan(water, 3, MOST_BYTES, scans, look)
    assert scans.asked[1] == (3, water.marks)


@pytest.mark.parametrize("why", ["paused", "cooling down", "locked", "scheduled"])
def test_marks_do_not_pass_a_job_that_waits_and_cannot_be_claimed_now(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(LowWater, "CHEAP", -1.0)  # every scan is dear: marks are moved whenever one comes back short
    with open_storage(pg_url) as storage, psycopg.connect(pg_url) as conn:
        who, water = storage.register("p", ["letters"], "h", 1), LowWater(NEVER)
        storage.set_queue("letters", paused=why == "paused")
        jobs = plain_jobs(3, delay=0.0 if why != "scheduled" else 1.0)
        storage.enqueue(jobs)
        if why == "cooling down":
            conn.execute("update forge.queue set throttled_until = now() + interval '1 hour'")
            conn.commit()
        if why == "locked":
            conn.execute("select from forge.job for update")
        assert storage.claim(who, "letters", 9, water) == []
        assert water.marks, "it was looked where jobs wait"
        storage.set_queue("letters", paused=False)
        conn.execute("update forge.queue set throttled_until = null")
        conn.commit()
        found: list[UUID] = []
        while len(found) < 3:  # the suite's timeout is the bound
            water._whole.cost = 1e9  # no whole scan will find them
            found += ids(storage.claim(who, "letters", 9, water))
        assert found == ids(jobs)


def test_without_a_mark_every_claim_looks_from_the_start(storage: Storage, who: Incarnation) -> None:
    storage.enqueue(plain_jobs(2, priority=5))
    storage.claim(who, "letters", 1)
    better = plain_job(priority=1)
    storage.enqueue([better])
    assert ids(storage.claim(who, "letters", 1)) == [better.id]


@pytest.fixture
def water(storage: Storage, who: Incarnation) -> LowWater:
    """A mark in the middle of a queue: two of priority 5 claimed, two left; no timer."""
    jobs = [plain_job(priority=5, run_at=PAST + timedelta(seconds=n)) for n in range(4)]
    storage.enqueue(jobs)
    water = LowWater(NEVER)
    assert ids(storage.claim(who, "letters", 2, water)) == ids(jobs[:2])
    water._whole.cost = 0.0  # so that only the rules decide, not how fast this machine is
    return water


def test_jobs_behind_the_mark_come_next(storage: Storage, who: Incarnation, water: LowWater) -> None:
    later = plain_job(priority=5, run_at=PAST + timedelta(seconds=9))
    storage.enqueue([later])
    found = storage.claim(who, "letters", 3, water)
    assert [claim.run_at for claim in found] == sorted(claim.run_at for claim in found)
    assert found[-1].id == later.id


@pytest.mark.parametrize(
    "front", [{"priority": 1}, {"priority": 5, "run_at": PAST - timedelta(days=1)}, {"priority": 5, "run_at": PAST}]
)
def test_a_job_in_front_of_the_mark_is_found_when_the_rest_runs_short(
    storage: Storage, who: Incarnation, water: LowWater, front: dict[str, Any]
) -> None:
    early = plain_job(**front)
    storage.enqueue([early])
    found = storage.claim(who, "letters", 3, water)
    assert len(found) == 3
    assert early.id in ids(found)
    assert storage.claim(who, "letters", 3, water) == []


@pytest.mark.parametrize("cost", [0.0, 1e9])
def test_a_better_job_is_first_whatever_the_marks_are(
    storage: Storage, who: Incarnation, water: LowWater, cost: float
) -> None:
    water._whole.cost = cost
    for priority in (4, 3, 3, 4, -32_768):
        better = plain_job(priority=priority)
        storage.enqueue([better])
        assert ids(storage.claim(who, "letters", 1, water)) == [better.id]


def test_an_earlier_job_is_first_once_the_timer_is_over(storage: Storage, who: Incarnation, water: LowWater) -> None:
    earlier = plain_job(priority=5, run_at=PAST - timedelta(days=1))
    storage.enqueue([earlier])
    water.timer = 0.0
    assert ids(storage.claim(who, "letters", 1, water)) == [earlier.id]


@pytest.mark.parametrize("how", ["released", "failed"])
def test_a_job_given_back_in_front_of_the_mark_is_found(storage: Storage, who: Incarnation, how: str) -> None:
    early, late = plain_job(run_at=PAST), plain_job(run_at=PAST + timedelta(seconds=1))
    storage.enqueue([early, late])
    water = LowWater(NEVER)
    first = storage.claim(who, "letters", 1, water)
    rest = storage.claim(who, "letters", 1, water)
    if how == "released":
        end(storage, first, Released())
    else:
        storage.finalize([fail(claim) for claim in first])
    water._whole.cost = 0.0
    assert ids(rest) == [late.id]
    assert ids(storage.claim(who, "letters", 1, water)) == [early.id]


def test_each_dispatcher_with_its_own_mark_finds_its_share_and_none_is_left(
    storage: Storage, who: Incarnation, other: Incarnation
) -> None:
    jobs = [plain_job(priority=n % 4) for n in range(200)]
    storage.enqueue(jobs)
    waters = {who: LowWater(NEVER), other: LowWater(NEVER)}
    found = [
        claim.id
        for _ in range(20)
        for pod, water in waters.items()
        for claim in storage.claim(pod, "letters", 7, water)
    ]
    assert sorted(found) == sorted(ids(jobs))


def test_jobs_of_one_instant_on_both_sides_of_the_mark_are_all_found(storage: Storage, who: Incarnation) -> None:
    jobs = plain_jobs(30, run_at=PAST)
    storage.enqueue(jobs)
    water = LowWater(NEVER)
    found = [claim.id for _ in range(5) for claim in storage.claim(who, "letters", 7, water)]
    assert found == ids(jobs)
