"""Bringing jobs back: `retry` with new attempts, `requeue` with the old ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from forge.job import Cancelled, Dead, Deduped, Done, Ending, Enqueued, Outcome, Released, Status
from forge.storage import Storage
from forge.storage.contract import Incarnation

from .helpers import (
    age,
    claimed,
    during,
    ended,
    fail,
    full_job,
    ids,
    new_id,
    one,
    plain_job,
    plain_jobs,
    sql,
    statuses,
    told,
)

pytestmark = pytest.mark.impl_free

verbs = pytest.mark.parametrize("verb", ["retry", "requeue"])
ends = pytest.mark.parametrize("outcome", [Done(), Dead("d"), Cancelled()], ids=lambda outcome: type(outcome).__name__)


def revive(storage: Storage, verb: str) -> Callable[..., set[Any]]:
    found: Callable[..., set[Any]] = getattr(storage, verb)
    return found


def crashed_once(storage: Storage, who: Incarnation, **changes: Any) -> Any:
    """A claim of a job that has failed once and crashed once before."""
    claim = claimed(storage, who, full_job(**changes))
    storage.finalize([fail(claim, "no luck")])
    (claim,) = storage.claim(who, "letters", 1)
    storage.finalize([Ending(claim, Released("boom", crashed=True))])
    (claim,) = storage.claim(who, "letters", 1)
    return claim


@ends
@verbs
def test_an_ended_job_comes_back_due_now(storage: Storage, who: Incarnation, verb: str, outcome: Outcome) -> None:
    claim = crashed_once(storage, who)
    storage.finalize([Ending(claim, outcome, result=b"7")])
    before = one(storage, claim.id)
    with during(storage) as when:
        assert revive(storage, verb)([claim.id]) == {claim.id}
    reset: dict[str, Any] = {"attempts": 0, "crashes": 0} if verb == "retry" else {"attempts": 2, "crashes": 1}
    expected = replace(
        before, status=Status.PENDING, run_at=when, claimed_at=None, finished_at=None, result=None, pod=None, **reset
    )
    assert one(storage, claim.id) == expected
    assert storage.ended_counts() == {}
    (again,) = storage.claim(who, "letters", 1)
    assert (again.id, again.attempt) == (claim.id, 1 if verb == "retry" else 3)


@verbs
def test_a_failed_job_runs_now(storage: Storage, who: Incarnation, verb: str) -> None:
    claim = crashed_once(storage, who)
    storage.finalize([fail(claim, "again", delay=1000)])
    before = one(storage, claim.id)
    with during(storage) as when:
        assert revive(storage, verb)([claim.id]) == {claim.id}
    reset: dict[str, Any] = {"attempts": 0, "crashes": 0} if verb == "retry" else {"attempts": 2, "crashes": 1}
    assert one(storage, claim.id) == replace(before, status=Status.PENDING, run_at=when, **reset)


@verbs
def test_a_scheduled_job_runs_now(storage: Storage, verb: str) -> None:
    new = full_job(run_at=None, delay=1000)
    storage.enqueue([new])
    before = one(storage, new.id)
    with during(storage) as when:
        assert revive(storage, verb)([new.id]) == {new.id}
    assert one(storage, new.id) == replace(before, run_at=when)


@verbs
def test_a_due_job_keeps_its_place(storage: Storage, verb: str) -> None:
    new = full_job()
    storage.enqueue([new])
    before = one(storage, new.id)
    assert revive(storage, verb)([new.id]) == {new.id}
    assert one(storage, new.id) == before


@verbs
def test_a_running_job_is_left_alone(storage: Storage, who: Incarnation, verb: str) -> None:
    claim = claimed(storage, who, full_job())
    before = one(storage, claim.id)
    assert revive(storage, verb)([claim.id]) == set()
    assert one(storage, claim.id) == before


@verbs
def test_unknown_jobs_are_not_in_the_answer(storage: Storage, verb: str) -> None:
    assert revive(storage, verb)([new_id()]) == set()
    assert revive(storage, verb)([]) == set()


def test_a_dead_job_requeued_gets_one_more_try(storage: Storage, who: Incarnation) -> None:
    new = full_job(max_attempts=1)
    storage.finalize([fail(claimed(storage, who, new))])
    assert storage.requeue([new.id]) == {new.id}
    (claim,) = storage.claim(who, "letters", 1)
    assert claim.attempt == 2
    storage.finalize([fail(claim)])
    assert statuses(storage, [new.id]) == [Status.DEAD]


def test_a_dead_job_retried_gets_all_its_tries(storage: Storage, who: Incarnation) -> None:
    new = full_job(max_attempts=2)
    ended(storage, who, new, Dead("broken"))
    storage.retry([new.id])
    for expected in (Status.FAILED, Status.DEAD):
        (claim,) = storage.claim(who, "letters", 1)
        storage.finalize([fail(claim)])
        assert statuses(storage, [new.id]) == [expected]


@verbs
def test_a_job_whose_key_another_has_stays_ended(storage: Storage, who: Incarnation, verb: str) -> None:
    old = full_job(unique_for=None)
    before = ended(storage, who, old, Dead("d"))
    new = full_job(dedupe_key=old.dedupe_key)
    assert told(storage.enqueue([new])) == told([Enqueued(new.id)])
    assert revive(storage, verb)([old.id]) == set()
    assert one(storage, old.id) == before
    assert told(storage.enqueue([full_job(dedupe_key=old.dedupe_key)])) == told([Deduped(new.id)])


@verbs
def test_a_job_whose_key_another_still_holds_after_its_end_stays_ended(
    storage: Storage, url: str, who: Incarnation, verb: str
) -> None:
    old = full_job(unique_for=None)
    before = ended(storage, who, old, Dead("d"))
    ended(storage, who, full_job(dedupe_key=old.dedupe_key, unique_for=90))
    assert revive(storage, verb)([old.id]) == set()
    assert one(storage, old.id) == before
    age(url, "job_key", "held_until", 91)
    assert revive(storage, verb)([old.id]) == {old.id}
    assert sql(url, "select key from {job_key} where held_until is null") == [(old.dedupe_key,)]


@pytest.mark.parametrize("unique_for", [None, 90])
@verbs
def test_a_job_that_comes_back_takes_its_key_again(
    storage: Storage, url: str, who: Incarnation, verb: str, unique_for: int | None
) -> None:
    old = full_job(unique_for=unique_for)
    ended(storage, who, old)
    assert revive(storage, verb)([old.id]) == {old.id}
    assert told(storage.enqueue([full_job(dedupe_key=old.dedupe_key)])) == told([Deduped(old.id)])
    assert sql(url, "select key from {job_key} where held_until is null") == [(old.dedupe_key,)]


@verbs
def test_of_two_ended_jobs_with_one_key_only_one_comes_back(storage: Storage, who: Incarnation, verb: str) -> None:
    first = full_job(unique_for=None)
    ended(storage, who, first)
    second = full_job(dedupe_key=first.dedupe_key, unique_for=None)
    ended(storage, who, second)
    back = revive(storage, verb)(ids([first, second]))
    assert len(back) == 1
    assert sorted(filter(None, statuses(storage, ids([first, second])))) == [Status.DONE, Status.PENDING]


@verbs
def test_many_jobs_come_back_in_one_call(storage: Storage, who: Incarnation, verb: str) -> None:
    jobs = plain_jobs(1200)
    storage.enqueue(jobs)
    claims = storage.claim(who, "letters", 1200)
    storage.finalize([Ending(claim, Dead("d") if n % 2 else Done()) for n, claim in enumerate(claims)])
    assert revive(storage, verb)(set(ids(jobs))) == set(ids(jobs))
    assert storage.counts()["letters"].pending == 1200
    assert storage.ended_counts() == {}


@verbs
def test_a_claim_from_before_the_end_is_stale_after_the_job_came_back(
    storage: Storage, who: Incarnation, verb: str
) -> None:
    claim = claimed(storage, who, plain_job())
    storage.finalize([Ending(claim, Dead("d"))])
    revive(storage, verb)([claim.id])
    (again,) = storage.claim(who, "letters", 1)
    late = Ending(claim, Done())
    assert storage.finalize([late]) == [late]
    assert storage.finalize([Ending(again, Done())]) == []
