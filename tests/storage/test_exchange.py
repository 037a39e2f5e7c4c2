"""Ending claims and making new ones in one transaction."""

from __future__ import annotations

from uuid import UUID

import pytest

from forge.errors import ForgeError
from forge.job import Dead, Done, Ending, Released, Status, Throttled
from forge.storage import Storage
from forge.storage.contract import Incarnation, LowWater, Want

from .helpers import age, claimed, end, fail, full_job, ids, one, plain_job, plain_jobs, statuses


def want(n: int, queue: str = "letters") -> Want:
    return Want(queue, n, LowWater())


def test_an_exchange_ends_and_claims(storage: Storage, who: Incarnation) -> None:
    jobs = [full_job(priority=n) for n in range(6)]
    storage.enqueue(jobs)
    held = storage.claim(who, "letters", 3)
    stale, claims = storage.exchange(who, [Ending(claim, Done()) for claim in held], [want(2)])
    assert stale == []
    assert ids(claims) == ids(jobs[3:5])
    assert {claim.token >> 32 for claim in claims} == {who.pod.id}
    expected = [Status.DONE] * 3 + [Status.IN_PROGRESS] * 2 + [Status.PENDING]
    assert statuses(storage, ids(jobs)) == expected
    end(storage, claims)


def test_an_exchange_of_nothing_answers_nothing(storage: Storage, who: Incarnation) -> None:
    assert storage.exchange(who, [], []) == ([], [])


def test_an_exchange_may_only_claim_or_only_end(storage: Storage, who: Incarnation) -> None:
    new = plain_job()
    storage.enqueue([new])
    stale, claims = storage.exchange(who, [], [want(5)])
    assert (stale, ids(claims)) == ([], [new.id])
    assert storage.exchange(who, [Ending(claims[0], Done())], []) == ([], [])
    assert statuses(storage, [new.id]) == [Status.DONE]


def test_an_exchange_claims_from_several_queues_each_with_its_own_limit(storage: Storage, who: Incarnation) -> None:
    queues = {queue: plain_jobs(5, queue) for queue in ("a", "b", "c", "d")}
    storage.enqueue([job for jobs in queues.values() for job in jobs])
    wants = [want(2, "a"), want(0, "b"), want(9, "c"), want(1, "none")]
    _, claims = storage.exchange(who, [], wants)
    assert sorted(ids(claims)) == sorted(ids(queues["a"][:2] + queues["c"]))
    assert {(claim.id, claim.queue) for claim in claims} == {
        (job.id, queue) for queue in ("a", "c") for job in queues[queue][:5] if job.id in ids(claims)
    }


def test_what_an_exchange_gives_back_it_can_claim_again(storage: Storage, who: Incarnation) -> None:
    claim = claimed(storage, who)
    stale, (again,) = storage.exchange(who, [Ending(claim, Released())], [want(1)])
    assert (stale, again.id, again.attempt) == ([], claim.id, 1)
    assert again.token != claim.token


def test_a_throttle_in_an_exchange_stops_its_claim(storage: Storage, who: Incarnation) -> None:
    storage.enqueue(plain_jobs(3))
    (claim,) = storage.claim(who, "letters", 1)
    assert storage.exchange(who, [Ending(claim, Throttled())], [want(5)]) == ([], [])
    assert storage.counts()["letters"].in_progress == 0


def test_an_exchange_answers_stale_endings_and_claims_all_the_same(
    storage: Storage, who: Incarnation, other: Incarnation
) -> None:
    storage.enqueue(plain_jobs(4))
    former = storage.claim(who, "letters", 2)
    storage.release(who.pod.id)
    taken = storage.claim(other, "letters", 2)
    endings = [Ending(former[0], Done()), Ending(former[1], Dead("late"))]
    stale, claims = storage.exchange(who, endings, [want(5)])
    assert sorted(ending.claim.id for ending in stale) == sorted(ids(former))
    assert len(claims) == 2
    assert statuses(storage, ids(taken)) == [Status.IN_PROGRESS] * 2


def test_a_reaped_pod_exchanges_nothing(storage: Storage, url: str, who: Incarnation) -> None:
    claim = claimed(storage, who)
    storage.enqueue([plain_job()])
    age(url, "pod", "beat_at", 100)
    storage.reap()
    late = Ending(claim, Done())
    assert storage.exchange(who, [late], [want(5)]) == ([late], [])


def test_crashes_are_counted_in_an_exchange_too(storage: Storage, who: Incarnation) -> None:
    claim = claimed(storage, who, full_job())
    storage.exchange(who, [Ending(claim, Released("boom", crashed=True))], [], max_crashes=1)
    job = one(storage, claim.id)
    assert (job.status, job.crashes, job.last_error) == (Status.DEAD, 1, "boom")


def test_when_one_half_of_an_exchange_cannot_happen_neither_does(storage: Storage, who: Incarnation) -> None:
    storage.enqueue(plain_jobs(3, keep_result=60))
    first, second = storage.claim(who, "letters", 2)
    endings = [Ending(first, Done(), result=b"1"), Ending(second, Done(), result=b"{")]
    with pytest.raises(ForgeError):
        storage.exchange(who, endings, [want(1)])
    counts = storage.counts()["letters"]
    assert (counts.pending, counts.in_progress) == (1, 2)
    assert storage.ended_counts() == {}


def test_a_queue_is_worked_off_by_exchanges_in_order(storage: Storage, who: Incarnation) -> None:
    jobs = [plain_job(priority=n // 40) for n in range(100)]
    storage.enqueue(jobs[::-1])
    water, endings, seen = LowWater(), list[Ending](), []
    for _ in range(16):
        stale, claims = storage.exchange(who, endings, [Want("letters", 7, water)])
        assert stale == []
        seen += ids(claims)
        endings = [Ending(claim, Done()) for claim in claims]
    assert seen == ids(jobs)
    assert storage.ended_counts() == {"letters": {Status.DONE: 100}}


def test_exchanges_find_jobs_in_front_of_the_mark_before_long(storage: Storage, who: Incarnation) -> None:
    storage.enqueue(plain_jobs(3, priority=5))
    water = LowWater(timer=1e9)
    storage.exchange(who, [], [Want("letters", 2, water)])
    better = plain_job(priority=1)
    storage.enqueue([better])
    found: list[UUID] = []
    while better.id not in found:  # the suite's timeout is the bound: a whole scan is held to a share of the time
        found += [claim.id for claim in storage.exchange(who, [], [Want("letters", 5, water)])[1]]
    assert len(found) == 2


def test_a_failed_ending_in_an_exchange_waits_for_its_retry(storage: Storage, who: Incarnation) -> None:
    claim = claimed(storage, who, full_job())
    assert storage.exchange(who, [fail(claim, delay=30)], [want(3)]) == ([], [])
    assert statuses(storage, [claim.id]) == [Status.FAILED]
