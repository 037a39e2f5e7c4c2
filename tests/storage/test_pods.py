"""Pods: who is known, who lives, and what becomes of the claims of those that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forge.job import Cancelled, Ending, Pod, Released, Status
from forge.storage import Storage
from forge.storage.contract import Incarnation, Reaped

from .helpers import age, claimed, during, end, error, fail, full_job, ids, one, plain_job, plain_jobs, sql, statuses

pytestmark = pytest.mark.impl_free

REAPED = "reaped after stale heartbeat"


def test_a_registered_pod_is_known_by_all_it_said(storage: Storage) -> None:
    with during(storage) as when:
        who = storage.register("ada", ["letters", "parcels"], "north", 4711)
    expected = Pod(who.pod.id, "ada", "north", 4711, ("letters", "parcels"), when, when)
    assert who.pod == expected
    assert storage.pods() == [expected]


def test_pods_are_listed_in_the_order_they_came(storage: Storage) -> None:
    made = [storage.register(name, [name], f"host-{name}", n).pod for n, name in enumerate("cab")]
    assert storage.pods() == made


def test_a_pods_number_is_never_used_again(storage: Storage, url: str) -> None:
    seen = []
    for n in range(4):
        who = storage.register("ada", ["letters"], "north", 4711)
        seen.append(who.pod.id)
        if n % 2:
            storage.deregister(who)
        else:
            age(url, "pod", "beat_at", 100)
            storage.reap()
    assert storage.pods() == []
    assert sorted(set(seen)) == seen


def test_a_beat_moves_only_the_pods_own_heartbeat(
    storage: Storage, url: str, who: Incarnation, other: Incarnation
) -> None:
    age(url, "pod", "beat_at", 50)
    before = storage.pods()
    with during(storage) as when:
        assert storage.beat(who) is True
    assert storage.pods() == [replace(before[0], beat_at=when), before[1]]


def test_the_beat_of_a_pod_that_left_or_was_reaped_is_false(
    storage: Storage, url: str, who: Incarnation, other: Incarnation
) -> None:
    storage.deregister(other)
    age(url, "pod", "beat_at", 100)
    storage.reap()
    assert storage.beat(who) is False
    assert storage.beat(other) is False
    assert storage.pods() == []


def test_leaving_gives_everything_back_as_if_never_claimed(
    storage: Storage, who: Incarnation, other: Incarnation
) -> None:
    jobs = [full_job(priority=n) for n in range(4)]
    storage.enqueue(jobs)
    mine = storage.claim(who, "letters", 3)
    before = storage.get(ids(mine))
    (theirs,) = storage.claim(other, "letters", 1)
    assert storage.deregister(who) == 3
    for job_id, job in storage.get(ids(mine)).items():
        assert job == replace(
            before[job_id], status=Status.PENDING, attempts=0, claimed_at=None, pod=None, run_at=job.run_at
        )
    assert statuses(storage, [theirs.id]) == [Status.IN_PROGRESS]
    assert [pod.name for pod in storage.pods()] == ["bob"]
    assert ids(storage.claim(other, "letters", 9)) == ids(mine)


def test_leaving_twice_gives_back_nothing_more(storage: Storage, who: Incarnation) -> None:
    claimed(storage, who)
    assert storage.deregister(who) == 1
    assert storage.deregister(who) == 0


def test_release_refunds_and_leaves_the_pod(storage: Storage, who: Incarnation, other: Incarnation) -> None:
    claim = claimed(storage, who, full_job())
    before = one(storage, claim.id)
    with during(storage) as when:
        assert storage.release(who.pod.id, "gone away") == 1
    after = one(storage, claim.id)
    errors = (error(when, 1, "gone away"),)
    assert after == replace(
        before, status=Status.PENDING, attempts=0, claimed_at=None, pod=None, run_at=after.run_at, errors=errors
    )
    assert len(storage.pods()) == 2
    assert storage.release(other.pod.id) == 0
    assert storage.release(12_345) == 0


def test_release_of_a_crash_counts_it_and_ends_poison_jobs(storage: Storage, who: Incarnation) -> None:
    new = full_job()
    storage.enqueue([new])
    seen = []
    for _ in range(3):
        storage.claim(who, "letters", 1)
        assert storage.release(who.pod.id, "killed by SIGKILL", crashed=True) == 1
        job = one(storage, new.id)
        seen.append((job.status, job.crashes, job.last_error))
    why = "killed by SIGKILL"
    assert seen == [(Status.PENDING, 1, why), (Status.PENDING, 2, why), (Status.DEAD, 3, why)]


def test_release_gives_back_thousands(storage: Storage, who: Incarnation, other: Incarnation) -> None:
    storage.enqueue(plain_jobs(2300))
    assert len(storage.claim(who, "letters", 2200)) == 2200
    assert len(storage.claim(other, "letters", 50)) == 50
    assert storage.release(who.pod.id) == 2200
    counts = storage.counts()["letters"]
    assert (counts.pending, counts.in_progress) == (2250, 50)


def test_a_fresh_pod_is_not_reaped(storage: Storage, url: str, who: Incarnation) -> None:
    claim = claimed(storage, who, full_job())
    before = one(storage, claim.id)
    age(url, "pod", "beat_at", 50)
    assert storage.reap(stale=60) == Reaped([], 0)
    assert one(storage, claim.id) == before
    age(url, "pod", "beat_at", 50)
    storage.beat(who)
    assert storage.reap(stale=60) == Reaped([], 0)
    assert storage.beat(who) is True


def test_a_silent_pod_is_reaped_and_its_claims_fail(
    storage: Storage, url: str, who: Incarnation, other: Incarnation
) -> None:
    jobs = [full_job(priority=n) for n in range(3)]
    storage.enqueue(jobs)
    mine = storage.claim(who, "letters", 2)
    (theirs,) = storage.claim(other, "letters", 1)
    before = storage.get(ids(jobs))
    age(url, "pod", "beat_at", 61, f"id = {who.pod.id}")
    with during(storage) as when:
        assert storage.reap(stale=60, delay=15) == Reaped([who.pod.id], 2)
    after = storage.get(ids(jobs))
    for job_id in ids(mine):
        assert after[job_id] == replace(
            before[job_id],
            status=Status.FAILED,
            run_at=when + 15,
            claimed_at=None,
            pod=None,
            errors=(error(when, 1, REAPED),),
        )
    assert after[theirs.id] == before[theirs.id]
    assert [pod.id for pod in storage.pods()] == [other.pod.id]
    assert storage.reap(stale=60) == Reaped([], 0)


def test_a_reaped_job_without_attempts_left_is_dead(storage: Storage, url: str, who: Incarnation) -> None:
    new = full_job(max_attempts=1)
    claimed(storage, who, new)
    before = one(storage, new.id)
    age(url, "pod", "beat_at", 61)
    with during(storage) as when:
        assert storage.reap() == Reaped([who.pod.id], 1)
    errors = (error(when, 1, REAPED),)
    assert one(storage, new.id) == replace(before, status=Status.DEAD, finished_at=when, errors=errors)
    assert sql(url, "select count(*) from {job_key} where held_until is not null") == [(1,)]


def test_a_reaped_job_that_was_being_cancelled_is_cancelled(storage: Storage, url: str, who: Incarnation) -> None:
    claim = claimed(storage, who, full_job())
    storage.cancel([claim.id])
    age(url, "pod", "beat_at", 61)
    assert storage.reap() == Reaped([who.pod.id], 1)
    job = one(storage, claim.id)
    assert (job.status, job.last_error) == (Status.CANCELLED, "cancelled by user")


def test_claims_of_a_pod_that_vanished_are_reaped_too(
    storage: Storage, url: str, who: Incarnation, other: Incarnation
) -> None:
    jobs = plain_jobs(6)
    storage.enqueue(jobs)
    third = storage.register("cat", ["letters"], "east", 1)
    for pod in (who, other, third):
        storage.claim(pod, "letters", 2)
    sql(url, f"delete from {{pod}} where id in ({who.pod.id}, {third.pod.id})")
    assert storage.reap() == Reaped([], 4)
    mine, theirs = [Status.FAILED] * 2, [Status.IN_PROGRESS] * 2
    assert statuses(storage, ids(jobs)) == mine + theirs + mine


def test_several_silent_pods_go_in_one_pass(storage: Storage, url: str, who: Incarnation, other: Incarnation) -> None:
    storage.enqueue(plain_jobs(3))
    storage.claim(who, "letters", 1)
    storage.claim(other, "letters", 2)
    age(url, "pod", "beat_at", 61)
    reaped = storage.reap()
    assert (sorted(reaped.pods), reaped.jobs) == ([who.pod.id, other.pod.id], 3)
    assert storage.pods() == []


def test_cancel_requests_are_the_pods_own(storage: Storage, who: Incarnation, other: Incarnation) -> None:
    storage.enqueue(plain_jobs(4))
    mine = storage.claim(who, "letters", 2)
    theirs = storage.claim(other, "letters", 2)
    assert storage.cancel_requests(who) == []
    storage.cancel([mine[1].id, *ids(theirs)])
    assert storage.cancel_requests(who) == [(mine[1].id, mine[1].token)]
    assert sorted(storage.cancel_requests(other)) == sorted((claim.id, claim.token) for claim in theirs)


@pytest.mark.parametrize("outcome", [Cancelled(), Released()], ids=lambda outcome: type(outcome).__name__)
def test_a_cancel_request_is_gone_once_the_job_ended(
    storage: Storage, who: Incarnation, outcome: Cancelled | Released
) -> None:
    claim = claimed(storage, who)
    storage.cancel([claim.id])
    assert storage.finalize([Ending(claim, outcome)]) == []
    assert storage.cancel_requests(who) == []


def test_a_cancel_request_does_not_outlive_a_retry(storage: Storage, who: Incarnation) -> None:
    claim = claimed(storage, who, plain_job())
    storage.cancel([claim.id])
    storage.finalize([fail(claim)])
    assert storage.retry([claim.id]) == {claim.id}
    (again,) = storage.claim(who, "letters", 1)
    assert storage.cancel_requests(who) == []
    end(storage, [again])
    assert statuses(storage, [claim.id]) == [Status.DONE]


def test_a_pulse_beats_and_tells_what_to_cancel(storage: Storage, who: Incarnation, other: Incarnation) -> None:
    storage.enqueue(plain_jobs(3))
    claims = storage.claim(who, "letters", 3)
    assert storage.pulse(who) == (True, [])
    storage.cancel(ids(claims[1:]))
    with during(storage) as then:
        alive, asked = storage.pulse(who)
    assert (alive, sorted(asked)) == (True, [(claim.id, claim.token) for claim in claims[1:]])
    assert storage.pulse(other) == (True, [])
    assert {pod.id: pod.beat_at for pod in storage.pods()}[who.pod.id] == then


def test_the_pulse_of_a_pod_that_was_reaped_says_so_and_nothing_else(storage: Storage, who: Incarnation) -> None:
    storage.reap(stale=-1)
    assert storage.pulse(who) == (False, [])
