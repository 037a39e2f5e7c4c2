"""Cancelling and deleting, whatever the job is doing."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from forge.job import Cancelled, Dead, Deduped, Done, Enqueued, Outcome, Status
from forge.storage import Storage
from forge.storage.contract import Incarnation

from .helpers import (
    claimed,
    during,
    end,
    ended,
    error,
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


def test_a_pending_job_is_cancelled_at_once(storage: Storage, who: Incarnation) -> None:
    new = full_job()
    storage.enqueue([new])
    before = one(storage, new.id)
    with during(storage) as when:
        assert storage.cancel([new.id]) == {new.id: "cancelled"}
    errors = (error(when, 0, "cancelled by user"),)
    assert one(storage, new.id) == replace(before, status=Status.CANCELLED, finished_at=when, errors=errors)
    assert storage.claim(who, "letters", 1) == []


def test_a_scheduled_job_is_cancelled_at_once(storage: Storage) -> None:
    new = plain_job(delay=1000)
    storage.enqueue([new])
    assert storage.cancel([new.id]) == {new.id: "cancelled"}
    assert statuses(storage, [new.id]) == [Status.CANCELLED]


def test_a_failed_job_is_cancelled_at_once(storage: Storage, who: Incarnation) -> None:
    claim = claimed(storage, who, full_job())
    with during(storage) as failed:
        storage.finalize([fail(claim, "no luck", delay=1000)])
    before = one(storage, claim.id)
    with during(storage) as when:
        assert storage.cancel([claim.id]) == {claim.id: "cancelled"}
    errors = (error(failed, 1, "no luck", "Traceback of no luck"), error(when, 1, "cancelled by user"))
    assert one(storage, claim.id) == replace(before, status=Status.CANCELLED, finished_at=when, errors=errors)


def test_a_running_job_is_asked_and_its_row_says_so(storage: Storage, who: Incarnation) -> None:
    claim = claimed(storage, who, full_job())
    before = one(storage, claim.id)
    with during(storage) as when:
        assert storage.cancel([claim.id]) == {claim.id: "requested"}
    after = one(storage, claim.id)
    assert after == replace(before, cancel_requested_at=when)
    assert storage.cancel([claim.id]) == {claim.id: "requested"}
    assert one(storage, claim.id) == after


@pytest.mark.parametrize("outcome", [Done(), Dead("d"), Cancelled()], ids=lambda outcome: type(outcome).__name__)
def test_an_ended_job_stays_as_it_ended(storage: Storage, who: Incarnation, outcome: Outcome) -> None:
    before = ended(storage, who, full_job(), outcome)
    assert storage.cancel([before.id]) == {before.id: "ended"}
    assert one(storage, before.id) == before


def test_an_unknown_job_is_not_in_the_answer(storage: Storage) -> None:
    assert storage.cancel([new_id()]) == {}
    assert storage.cancel([]) == {}


def test_a_mixed_lot_is_answered_job_by_job(storage: Storage, who: Incarnation) -> None:
    done, running, waiting, later = plain_jobs(4)
    ended(storage, who, done)
    claimed(storage, who, running)
    storage.enqueue([waiting, later._replace(delay=50)])
    asked: list[UUID] = [*ids([later, running, done, waiting]), new_id()]
    assert storage.cancel(asked) == {
        done.id: "ended",
        running.id: "requested",
        waiting.id: "cancelled",
        later.id: "cancelled",
    }


def test_two_thousand_jobs_are_cancelled_in_one_call(storage: Storage) -> None:
    jobs = plain_jobs(2000)
    storage.enqueue(jobs)
    assert storage.cancel(set(ids(jobs))) == dict.fromkeys(ids(jobs), "cancelled")
    assert storage.ended_counts() == {"letters": {Status.CANCELLED: 2000}}


def test_deleting_removes_waiting_and_ended_jobs_with_their_keys(storage: Storage, url: str, who: Incarnation) -> None:
    done, waiting, failed = full_job(), full_job(run_at=None, delay=50), full_job()
    ended(storage, who, done)
    storage.finalize([fail(claimed(storage, who, failed), delay=50)])
    storage.enqueue([waiting])
    lot = ids([done, waiting, failed])
    assert storage.delete(lot) == dict.fromkeys(lot, "deleted")
    assert storage.get(lot) == {}
    assert sql(url, "select count(*) from {job_key}") == [(0,)]
    assert storage.delete(lot) == {}


def test_deleting_a_running_job_cancels_it_first(storage: Storage, who: Incarnation) -> None:
    claim = claimed(storage, who, full_job())
    assert storage.delete([claim.id]) == {claim.id: "requested"}
    assert storage.cancel_requests(who) == [(claim.id, claim.token)]
    end(storage, [claim], Cancelled())
    assert storage.delete([claim.id]) == {claim.id: "deleted"}
    assert storage.get([claim.id]) == {}


def test_deleting_leaves_the_others(storage: Storage, who: Incarnation) -> None:
    first, second, third = full_job(), full_job(), full_job()
    before = [ended(storage, who, first), ended(storage, who, second)]
    storage.enqueue([third])
    storage.delete([second.id, new_id()])
    assert one(storage, first.id) == before[0]
    assert statuses(storage, ids([second, third])) == [None, Status.PENDING]
    assert told(storage.enqueue([full_job(dedupe_key=third.dedupe_key)])) == told([Deduped(third.id)])


def test_a_deleted_jobs_key_that_another_took_over_stays_with_the_other(storage: Storage, who: Incarnation) -> None:
    old = full_job(unique_for=None)
    ended(storage, who, old)
    new = full_job(dedupe_key=old.dedupe_key)
    assert told(storage.enqueue([new])) == told([Enqueued(new.id)])
    storage.delete([old.id])
    assert told(storage.enqueue([full_job(dedupe_key=old.dedupe_key)])) == told([Deduped(new.id)])


def test_a_deleted_id_can_be_enqueued_anew(storage: Storage) -> None:
    new = full_job()
    storage.enqueue([new])
    storage.delete([new.id])
    assert told(storage.enqueue([new])) == told([Enqueued(new.id)])
    assert statuses(storage, [new.id]) == [Status.PENDING]
