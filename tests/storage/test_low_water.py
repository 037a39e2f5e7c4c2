"""The low-water mark: what it skips, when it starts over, and that nothing in front of it is lost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from forge.errors import DatabaseError
from forge.job import Claim, Released
from forge.storage import Storage
from forge.storage.contract import Incarnation
from forge.storage.low_water import LowWater, scan

from .helpers import end, fail, ids, plain_job, plain_jobs

pytestmark = pytest.mark.impl_free

PAST = datetime(2024, 5, 6, 7, 8, 9, 101112, UTC)
NEVER = 1e9  # seconds between whole scans: none, in a test


def made_up(number: int, priority: int = 1) -> Claim:
    """A claim that no database made."""
    return Claim(priority, number * 10, UUID(int=number), 0, "q", "k", b"", 1, 1, 1, False, False)


def test_there_is_no_mark_before_the_first_claim() -> None:
    assert LowWater().begin(100.0) is None


def test_the_mark_is_the_last_job_claimed() -> None:
    water = LowWater()
    water.note([made_up(3), made_up(4, priority=2)], True, 100.0, 100.01)
    assert water.begin(100.02) == (2, 40, UUID(int=4))


def test_a_scan_that_found_nothing_leaves_the_mark() -> None:
    water = LowWater()
    water.note([made_up(3)], True, 100.0, 100.01)
    water.note([], False, 100.02, 100.03)
    assert water.begin(100.04) == (1, 30, UUID(int=3))


def test_forget_starts_over() -> None:
    water = LowWater()
    water.note([made_up(3)], True, 100.0, 100.01)
    water.forget()
    assert water.begin(100.02) is None


def test_the_timer_starts_over_and_is_wound_up_by_whole_scans_only() -> None:
    water = LowWater(timer=1.0)
    water.note([made_up(3)], True, 100.0, 100.01)
    water.note([made_up(5)], False, 100.5, 100.51)
    assert water.begin(101.0) == (1, 50, UUID(int=5))
    assert water.begin(101.02) is None
    water.note([made_up(6)], True, 101.02, 101.03)
    assert water.begin(101.5) == (1, 60, UUID(int=6))


def test_a_dear_whole_scan_stretches_the_timer() -> None:
    water = LowWater(timer=0.25)
    water.note([made_up(3)], True, 100.0, 102.0)
    assert water.begin(102.0 + LowWater.SHARE_ON_TIMER * 2.0 - 0.1) is not None
    assert water.begin(102.0 + LowWater.SHARE_ON_TIMER * 2.0) is None


def test_a_short_scan_may_start_over_at_a_share_of_the_time() -> None:
    water = LowWater()
    water.note([made_up(3)], True, 100.0, 102.0)
    assert not water.may_start_over(102.0 + LowWater.SHARE_WHEN_SHORT * 2.0 - 0.1)
    assert water.may_start_over(102.0 + LowWater.SHARE_WHEN_SHORT * 2.0)


class Scans:
    """A stand-in for one queue's claims: answers what it was told to, and remembers how it was asked."""

    def __init__(self, *answers: Sequence[Claim]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, Any]] = []

    def __call__(self, n: int, mark: Any) -> list[Claim]:
        self.asked.append((n, mark))
        return list(self.answers.pop(0))


def test_a_marked_scan_that_came_back_short_is_filled_up_from_the_start() -> None:
    water = LowWater(NEVER)
    scans = Scans([made_up(1), made_up(2)], [made_up(3)], [made_up(1, priority=0)])
    assert scan(water, 2, scans) == [made_up(1), made_up(2)]
    water._scan_cost = 0.0  # the made-up scan took no time
    assert scan(water, 2, scans) == [made_up(3), made_up(1, priority=0)]
    assert scans.asked == [(2, None), (2, (1, 20, UUID(int=2))), (1, None)]
    assert water.mark == (0, 10, UUID(int=1))


def test_what_was_claimed_is_kept_when_the_second_scan_fails() -> None:
    """Nobody else would run it: its owner is alive."""

    def fails(n: int, mark: Any) -> list[Claim]:
        if mark is None:
            raise DatabaseError("away")
        return [made_up(3)]

    water = LowWater(NEVER)
    scan(water, 2, Scans([made_up(1), made_up(2)]))
    water._scan_cost = 0.0
    assert scan(water, 2, fails) == [made_up(3)]
    with pytest.raises(DatabaseError):
        scan(LowWater(NEVER), 2, fails)


def test_a_full_scan_is_not_started_over() -> None:
    water = LowWater(NEVER)
    scans = Scans([made_up(1)], [made_up(2)], [])
    scan(water, 1, scans)
    scan(water, 1, scans)
    assert scans.asked == [(1, None), (1, (1, 10, UUID(int=1)))]


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
    water._scan_cost = 0.0  # so that only the rules decide, not how fast this machine is
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


def test_a_better_job_is_first_after_forget(storage: Storage, who: Incarnation, water: LowWater) -> None:
    better = plain_job(priority=1)
    storage.enqueue([better])
    water.forget()
    assert ids(storage.claim(who, "letters", 1, water)) == [better.id]


def test_a_better_job_is_first_once_the_timer_is_over(storage: Storage, who: Incarnation, water: LowWater) -> None:
    better = plain_job(priority=1)
    storage.enqueue([better])
    water.timer = 0.0
    assert ids(storage.claim(who, "letters", 1, water)) == [better.id]


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
    water._scan_cost = 0.0
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
