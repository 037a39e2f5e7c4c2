"""Claiming: what is eligible, in which order, how many, and for whom."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from forge.job import Claim, Counts, Released, Snooze, Status, Throttled
from forge.storage import Storage
from forge.storage.contract import Incarnation, LowWater

from .helpers import age, claimed, clock, during, end, fail, full_job, ids, one, plain_job, plain_jobs, row

PAST = datetime(2024, 5, 6, 7, 8, 9, 101112, UTC)


def test_a_claim_carries_what_a_handler_needs(storage: Storage, who: Incarnation) -> None:
    new = full_job()
    claim = claimed(storage, who, new)
    expected = Claim(3, claim.run_at, new.id, claim.token, "letters", "mail.send", new.payload, 1, 7, 45, True, True)
    assert claim == expected
    assert claim.token >> 32 == who.pod.id


def test_a_claim_of_a_plain_job_says_so(storage: Storage, who: Incarnation) -> None:
    new = plain_job()
    claim = claimed(storage, who, new)
    assert claim == Claim(0, claim.run_at, new.id, claim.token, "letters", "noop", b'{"n":1}', 1, 5, 600, False, False)


def test_a_claim_marks_the_row_and_nothing_else_in_it(storage: Storage, who: Incarnation) -> None:
    new = full_job()
    with during(storage) as enqueued:
        storage.enqueue([new])
    with during(storage) as when:
        storage.claim(who, "letters", 1)
    expected = row(new, enqueued_at=enqueued, status=Status.IN_PROGRESS, attempts=1, claimed_at=when, pod=who.pod.id)
    assert one(storage, new.id) == expected


def test_jobs_come_by_priority_then_time_then_id(storage: Storage, who: Incarnation) -> None:
    jobs = [
        plain_job(priority=priority, run_at=PAST + timedelta(microseconds=step))
        for priority in (-5, 0, 2, 30)
        for step in (0, 0, 1, 2, 2, 86_400_000_000)
    ]
    shuffled = random.Random(7).sample(jobs, len(jobs))
    storage.enqueue(shuffled)
    assert ids(storage.claim(who, "letters", 100)) == ids(jobs)


def test_the_order_holds_over_many_small_claims(storage: Storage, who: Incarnation) -> None:
    rng = random.Random(11)
    jobs = [
        plain_job(priority=rng.randrange(-3, 3), run_at=PAST + timedelta(seconds=rng.randrange(20))) for _ in range(100)
    ]
    storage.enqueue(jobs)
    water = LowWater()
    found = [claim for _ in range(15) for claim in storage.claim(who, "letters", 7, water)]
    assert ids(found) == ids(sorted(jobs, key=lambda job: (job.priority, job.run_at, job.id)))


def test_claims_come_back_in_claim_order_whatever_order_rows_were_stored_in(storage: Storage, who: Incarnation) -> None:
    jobs = [plain_job(run_at=PAST + timedelta(seconds=n)) for n in range(50)]
    for new in reversed(jobs):
        storage.enqueue([new])
    assert ids(storage.claim(who, "letters", 50)) == ids(jobs)


def test_future_jobs_of_a_better_priority_do_not_hide_due_ones(storage: Storage, who: Incarnation) -> None:
    storage.enqueue([plain_job(priority=n % 5, delay=3600 + n) for n in range(3000)])
    due = [plain_job(priority=priority) for priority in (0, 2, 4, 4, 9)]
    storage.enqueue(due)
    assert ids(storage.claim(who, "letters", 10)) == ids(due)
    assert storage.claim(who, "letters", 10) == []


def test_a_job_is_not_claimed_before_its_time(storage: Storage, url: str, who: Incarnation) -> None:
    new = full_job(run_at=None, delay=100)
    storage.enqueue([new])
    before = one(storage, new.id)
    assert storage.claim(who, "letters", 1) == []
    assert one(storage, new.id) == before
    age(url, "job", "run_at", 99)
    assert storage.claim(who, "letters", 1) == []
    age(url, "job", "run_at", 1)
    assert ids(storage.claim(who, "letters", 1)) == [new.id]


def test_a_failed_job_is_claimed_again_when_its_retry_is_due(storage: Storage, url: str, who: Incarnation) -> None:
    new = full_job()
    storage.finalize([fail(claimed(storage, who, new), delay=200)])
    assert storage.claim(who, "letters", 1) == []
    age(url, "job", "run_at", 201)
    before = one(storage, new.id)
    with during(storage) as when:
        (claim,) = storage.claim(who, "letters", 1)
    assert (claim.id, claim.attempt) == (new.id, 2)
    expected = replace(before, status=Status.IN_PROGRESS, attempts=2, claimed_at=when, pod=who.pod.id)
    assert one(storage, new.id) == expected


def test_attempts_are_counted_at_the_claim(storage: Storage, who: Incarnation) -> None:
    claim = claimed(storage, who, full_job())
    seen = [claim.attempt]
    for _ in range(4):
        storage.finalize([fail(claim)])
        (claim,) = storage.claim(who, "letters", 1)
        seen.append(claim.attempt)
    assert seen == [1, 2, 3, 4, 5]
    assert one(storage, claim.id).attempts == 5


def test_a_running_job_is_not_claimed_again(storage: Storage, who: Incarnation, other: Incarnation) -> None:
    claimed(storage, who)
    assert storage.claim(who, "letters", 5) == []
    assert storage.claim(other, "letters", 5) == []


def test_a_paused_queue_gives_nothing_until_it_goes_on(storage: Storage, who: Incarnation) -> None:
    new = plain_job()
    storage.enqueue([new])
    storage.set_queue("letters", paused=True)
    assert storage.claim(who, "letters", 5) == []
    storage.set_queue("parcels", paused=True)
    storage.set_queue("letters", paused=False)
    assert ids(storage.claim(who, "letters", 5)) == [new.id]


def test_a_cooling_queue_gives_nothing_until_the_window_is_over(storage: Storage, url: str, who: Incarnation) -> None:
    first, second = plain_jobs(2)
    storage.enqueue([first, second])
    end(storage, storage.claim(who, "letters", 1), Throttled())
    assert storage.claim(who, "letters", 5) == []
    age(url, "job", "run_at", 61)
    age(url, "queue", "throttled_until", 30)
    assert storage.claim(who, "letters", 5) == []
    age(url, "queue", "throttled_until", 31)
    assert sorted(ids(storage.claim(who, "letters", 5))) == [first.id, second.id]


def test_a_cooling_queue_does_not_hold_up_another(storage: Storage, who: Incarnation) -> None:
    end(storage, [claimed(storage, who)], Throttled())
    parcel = plain_job("parcels")
    storage.enqueue([parcel])
    assert ids(storage.claim(who, "parcels", 5)) == [parcel.id]


@pytest.mark.parametrize("n", [1, 2, 17, 200])
def test_never_more_than_n_are_claimed(storage: Storage, who: Incarnation, n: int) -> None:
    jobs = [plain_job(priority=k % 3) for k in range(50)]
    storage.enqueue(jobs)
    claims = storage.claim(who, "letters", n)
    assert len(claims) == min(n, 50)
    assert storage.counts()["letters"].in_progress == min(n, 50)


def test_claiming_none_claims_none(storage: Storage, who: Incarnation) -> None:
    storage.enqueue([plain_job()])
    assert storage.claim(who, "letters", 0) == []
    assert storage.counts()["letters"].pending == 1


def test_other_queues_are_left_alone(storage: Storage, who: Incarnation) -> None:
    letters, parcels = plain_jobs(3), plain_jobs(3, "parcels", priority=-9)
    storage.enqueue([*letters, *parcels])
    assert ids(storage.claim(who, "letters", 10)) == ids(letters)
    counts = storage.counts()["parcels"]
    assert counts == Counts(pending=3, oldest_pending_age=counts.oldest_pending_age)
    assert storage.claim(who, "letter", 10) == []
    assert storage.claim(who, "nobody's", 10) == []


def test_two_claims_never_share_a_token(storage: Storage, who: Incarnation, other: Incarnation) -> None:
    storage.enqueue(plain_jobs(6))
    tokens = [{claim.token for claim in storage.claim(pod, "letters", 2)} for pod in (who, who, other)]
    assert all(tokens)
    assert len(set().union(*tokens)) == sum(map(len, tokens))


def test_a_job_claimed_again_has_another_token(storage: Storage, who: Incarnation) -> None:
    first = claimed(storage, who)
    end(storage, [first], Released())
    (second,) = storage.claim(who, "letters", 1)
    assert (second.id, second.attempt) == (first.id, 1)
    assert second.token != first.token


def test_a_pod_that_left_claims_nothing(storage: Storage, who: Incarnation) -> None:
    storage.enqueue([plain_job()])
    storage.deregister(who)
    assert storage.claim(who, "letters", 1) == []
    assert storage.counts()["letters"].pending == 1


def test_a_pod_that_never_registered_claims_nothing(storage: Storage, who: Incarnation) -> None:
    storage.enqueue([plain_job()])
    assert storage.claim(Incarnation(replace(who.pod, id=who.pod.id + 1)), "letters", 1) == []
    assert storage.counts()["letters"].pending == 1


def test_a_reaped_pod_claims_nothing(storage: Storage, url: str, who: Incarnation, other: Incarnation) -> None:
    new = plain_job()
    storage.enqueue([new])
    age(url, "pod", "beat_at", 100, f"id = {who.pod.id}")
    storage.reap()
    assert storage.claim(who, "letters", 1) == []
    assert ids(storage.claim(other, "letters", 1)) == [new.id]


def test_a_snoozed_job_is_due_when_it_said(storage: Storage, url: str, who: Incarnation) -> None:
    claim = claimed(storage, who)
    end(storage, [claim], Snooze(40))
    assert storage.claim(who, "letters", 1) == []
    assert one(storage, claim.id).run_at > clock(storage)
    age(url, "job", "run_at", 41)
    assert ids(storage.claim(who, "letters", 1)) == [claim.id]
