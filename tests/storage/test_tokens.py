"""A write that ends a claim carries the claim's token; a stale one changes nothing and is answered."""

from __future__ import annotations

import pytest

from forge.job import Cancelled, Claim, Dead, Done, Ending, Failed, Outcome, Released, Snooze, Status, Throttled
from forge.storage import Storage
from forge.storage.contract import Incarnation

from .helpers import age, claimed, end, fail, full_job, ids, one, plain_job, plain_jobs, sql, statuses

OUTCOMES: list[Outcome] = [
    Done(),
    Failed("late"),
    Dead("late"),
    Cancelled("late"),
    Throttled(),
    Snooze(9.0),
    Released("late"),
    Released("late", crashed=True),
]
named = pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)


def taken_over(storage: Storage, first: Claim, by: Incarnation) -> Claim:
    """Give a claim back behind its owner's back and claim the job anew."""
    assert storage.release(first.token >> 32) == 1
    (second,) = storage.claim(by, first.queue, 1)
    assert second.id == first.id
    return second


@named
def test_an_ending_by_the_former_owner_changes_nothing(
    storage: Storage, who: Incarnation, other: Incarnation, outcome: Outcome
) -> None:
    stale = claimed(storage, who, full_job())
    taken_over(storage, stale, other)
    before = one(storage, stale.id)
    late = Ending(stale, outcome, result=b"1", traceback="late")
    assert storage.finalize([late]) == [late]
    assert one(storage, stale.id) == before
    assert storage.queues() == {} or storage.queues()["letters"].throttled_until is None


@named
def test_an_ending_by_the_same_pod_with_an_old_token_changes_nothing(
    storage: Storage, who: Incarnation, outcome: Outcome
) -> None:
    stale = claimed(storage, who, full_job())
    valid = taken_over(storage, stale, who)
    before = one(storage, stale.id)
    late = Ending(stale, outcome)
    assert storage.finalize([late]) == [late]
    assert one(storage, stale.id) == before
    end(storage, [valid])


@named
def test_an_ending_of_an_ended_job_changes_nothing(storage: Storage, who: Incarnation, outcome: Outcome) -> None:
    claim = claimed(storage, who, full_job())
    end(storage, [claim], Dead("broken"))
    before = one(storage, claim.id)
    again = Ending(claim, outcome)
    assert storage.finalize([again]) == [again]
    assert one(storage, claim.id) == before


@named
def test_an_ending_of_a_waiting_job_changes_nothing(storage: Storage, who: Incarnation, outcome: Outcome) -> None:
    claim = claimed(storage, who, full_job())
    storage.finalize([fail(claim, delay=500)])
    before = one(storage, claim.id)
    again = Ending(claim, outcome)
    assert storage.finalize([again]) == [again]
    assert one(storage, claim.id) == before


@named
def test_an_ending_of_a_deleted_job_is_answered_as_stale(storage: Storage, who: Incarnation, outcome: Outcome) -> None:
    claim = claimed(storage, who, full_job())
    end(storage, [claim])
    storage.delete([claim.id])
    again = Ending(claim, outcome)
    assert storage.finalize([again]) == [again]
    assert storage.get([claim.id]) == {}


def test_a_right_token_with_another_jobs_id_is_stale(storage: Storage, who: Incarnation, other: Incarnation) -> None:
    storage.enqueue(plain_jobs(2))
    (mine,) = storage.claim(who, "letters", 1)
    (theirs,) = storage.claim(other, "letters", 1)
    forged = Ending(mine._replace(id=theirs.id), Done())
    assert storage.finalize([forged]) == [forged]
    assert statuses(storage, ids([mine, theirs])) == [Status.IN_PROGRESS] * 2


def test_stale_endings_do_not_hold_up_the_valid_ones_beside_them(
    storage: Storage, who: Incarnation, other: Incarnation
) -> None:
    storage.enqueue([full_job(priority=n, unique_for=None) for n in range(16)])
    former = storage.claim(who, "letters", 8)
    storage.release(who.pod.id)
    storage.claim(other, "letters", 8)
    valid = storage.claim(who, "letters", 8)
    assert len(former) == len(valid) == 8
    before = storage.get(ids(former))
    late = [Ending(claim, outcome) for claim, outcome in zip(former, OUTCOMES, strict=True)]
    good = [Ending(claim, outcome) for claim, outcome in zip(valid, OUTCOMES, strict=True)]
    stale = storage.finalize([ending for pair in zip(late, good, strict=True) for ending in pair])
    assert sorted(stale, key=lambda ending: ending.claim.id) == sorted(late, key=lambda ending: ending.claim.id)
    assert storage.get(ids(former)) == before
    ended = [Status.DONE, Status.FAILED, Status.DEAD, Status.CANCELLED]
    assert statuses(storage, ids(valid)) == ended + [Status.PENDING] * 4


def test_an_old_and_a_new_token_of_one_job_in_one_batch_end_it_once(storage: Storage, who: Incarnation) -> None:
    for first_done, second_done in [(True, False), (False, True), (True, True), (False, False)]:
        stale = claimed(storage, who, plain_job())
        valid = taken_over(storage, stale, who)
        late = Ending(stale, Done() if first_done else Dead("late"))
        good = Ending(valid, Done() if second_done else Dead("good"))
        assert storage.finalize([late, good]) == [late]
        assert statuses(storage, [stale.id]) == [Status.DONE if second_done else Status.DEAD]


def test_the_same_ending_twice_in_one_batch_counts_once(storage: Storage, who: Incarnation) -> None:
    claim = claimed(storage, who, full_job())
    assert len(storage.finalize([fail(claim, "a"), fail(claim, "b")])) == 1
    job = one(storage, claim.id)
    assert (job.status, job.attempts, len(job.errors)) == (Status.FAILED, 1, 1)


def test_a_stale_throttle_cools_nothing_down(storage: Storage, who: Incarnation, other: Incarnation) -> None:
    stale = claimed(storage, who)
    taken_over(storage, stale, other)
    storage.set_queue("letters", backoff_enabled=True)
    storage.finalize([Ending(stale, Throttled())])
    settings = storage.queues()["letters"]
    assert (settings.throttle_attempts, settings.throttled_until) == (0, None)


def test_a_stale_success_does_not_start_the_throttle_curve_over(
    storage: Storage, url: str, who: Incarnation, other: Incarnation
) -> None:
    end(storage, [claimed(storage, who)], Throttled())
    age(url, "queue", "throttled_until", 60 + 121)
    age(url, "job", "run_at", 61)
    (stale,) = storage.claim(who, "letters", 1)
    taken_over(storage, stale, other)
    late = Ending(stale, Done())
    assert storage.finalize([late]) == [late]
    assert storage.queues()["letters"].throttle_attempts == 1


def test_a_stale_ending_leaves_the_key_with_its_job(
    storage: Storage, url: str, who: Incarnation, other: Incarnation
) -> None:
    new = full_job(unique_for=None)
    stale = claimed(storage, who, new)
    taken_over(storage, stale, other)
    storage.finalize([Ending(stale, Done())])
    assert sql(url, "select key from {job_key} where held_until is null") == [(new.dedupe_key,)]


def test_a_reaped_pods_endings_are_stale(storage: Storage, url: str, who: Incarnation) -> None:
    claim = claimed(storage, who, full_job())
    age(url, "pod", "beat_at", 100)
    storage.reap()
    before = one(storage, claim.id)
    late = Ending(claim, Done())
    assert storage.finalize([late]) == [late]
    assert one(storage, claim.id) == before
