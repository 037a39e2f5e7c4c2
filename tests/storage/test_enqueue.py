"""Storing jobs: every field, all or none, and the same id twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from forge.errors import ForgeError
from forge.job import Cancelled, Dead, Deduped, Done, Enqueued, NewJob, Outcome
from forge.storage import Storage
from forge.storage.contract import Incarnation

from .helpers import (
    check_whole,
    claimed,
    during,
    end,
    ended,
    enqueue_as_caller,
    full_job,
    ids,
    new_id,
    one,
    plain_job,
    plain_jobs,
    row,
    sql,
    told,
)


def test_every_field_comes_back_as_it_was_stored(storage: Storage) -> None:
    new = full_job()
    with during(storage) as when:
        assert told(storage.enqueue([new])) == told([Enqueued(new.id)])
    assert storage.get([new.id]) == {new.id: row(new, enqueued_at=when)}


def test_a_job_that_says_nothing_gets_the_defaults_and_is_due_now(storage: Storage) -> None:
    new = NewJob(new_id(), "noop", b"null")
    with during(storage) as when:
        storage.enqueue([new])
    expected = row(
        new, enqueued_at=when, run_at=when, queue="default", priority=0, max_attempts=5, timeout=600, payload=None
    )
    assert one(storage, new.id) == expected


def test_a_delay_counts_from_the_databases_now(storage: Storage) -> None:
    new = full_job(run_at=None, delay=3600.5)
    with during(storage) as when:
        storage.enqueue([new])
    assert one(storage, new.id) == row(new, enqueued_at=when, run_at=when + 3600.5)


def test_a_given_time_wins_over_a_delay(storage: Storage) -> None:
    new = full_job(run_at=datetime(2031, 7, 1, 8, 30, 1, 987653, UTC), delay=5)
    with during(storage) as when:
        storage.enqueue([new])
    assert one(storage, new.id) == row(new, enqueued_at=when)


@pytest.mark.parametrize(
    "tags", [(), ("one",), ("b", "a", "b"), ("", "a,b", '"quoted"', "{brace}", "back\\slash", "ünï☃", "NULL", " ")]
)
def test_tags_come_back_in_order_whatever_is_in_them(storage: Storage, tags: tuple[str, ...]) -> None:
    new = full_job(tags=tags)
    with during(storage) as when:
        storage.enqueue([new])
    assert one(storage, new.id) == row(new, enqueued_at=when)


@pytest.mark.parametrize(
    "payload",
    [b"null", b"[]", b'"snow \xe2\x98\x83"', b'{"b":1,"a":[1.5,true,null,"x"]}', b'"' + b"x" * 300_000 + b'"'],
)
def test_payloads_come_back_equal(storage: Storage, who: Incarnation, payload: bytes) -> None:
    new = full_job(payload=payload)
    with during(storage) as when:
        storage.enqueue([new])
    assert one(storage, new.id) == row(new, enqueued_at=when)
    assert [claim.payload for claim in storage.claim(who, "letters", 1)] == [payload]


def test_receipts_come_in_the_order_of_the_jobs(storage: Storage) -> None:
    jobs = [full_job(), plain_job(), plain_job("parcels"), full_job(), plain_job()]
    jobs.reverse()
    assert told(storage.enqueue(jobs)) == told([Enqueued(job.id) for job in jobs])


def test_enqueueing_nothing_is_fine(storage: Storage) -> None:
    assert told(storage.enqueue([])) == told([])
    assert storage.counts() == {}


def test_the_same_id_again_changes_nothing(storage: Storage) -> None:
    new = full_job()
    storage.enqueue([new])
    before = one(storage, new.id)
    assert told(storage.enqueue([new])) == told([Enqueued(new.id)])
    assert told(storage.enqueue([new._replace(kind="other", payload=b"2", dedupe_key="else")])) == told(
        [Enqueued(new.id)]
    )
    assert one(storage, new.id) == before


def test_the_same_id_twice_in_one_call_is_one_job(storage: Storage) -> None:
    keyed, plain = full_job(), plain_job()
    jobs = [keyed, plain, keyed, plain]
    assert told(storage.enqueue(jobs)) == told([Enqueued(job.id) for job in jobs])
    assert sum(counts.pending for counts in storage.counts().values()) == 2


def test_the_same_id_while_the_job_runs_changes_nothing(storage: Storage, who: Incarnation) -> None:
    new = full_job()
    claimed(storage, who, new)
    before = one(storage, new.id)
    assert told(storage.enqueue([new])) == told([Enqueued(new.id)])
    assert one(storage, new.id) == before


@pytest.mark.parametrize("unique_for", [None, 90])
@pytest.mark.parametrize("outcome", [Done(), Dead("broken"), Cancelled()], ids=lambda outcome: type(outcome).__name__)
def test_the_same_id_after_the_job_ended_answers_the_same_job(
    storage: Storage, who: Incarnation, outcome: Outcome, unique_for: int | None
) -> None:
    new = full_job(unique_for=unique_for)
    before = ended(storage, who, new, outcome)
    assert told(storage.enqueue([new])) == told([Enqueued(new.id)])
    assert one(storage, new.id) == before
    assert storage.claim(who, "letters", 1) == []


def test_a_known_id_does_not_stop_the_new_ones_beside_it(storage: Storage, who: Incarnation) -> None:
    old, gone = plain_jobs(2)
    ended(storage, who, gone)
    storage.enqueue([old])
    fresh = plain_jobs(3)
    batch = [fresh[0], old, fresh[1], gone, fresh[2]]
    assert told(storage.enqueue(batch)) == told([Enqueued(job.id) for job in batch])
    assert ids(storage.claim(who, "letters", 10)) == ids([old, *fresh])


def test_five_thousand_jobs_are_stored_in_one_call(storage: Storage, who: Incarnation) -> None:
    jobs = [plain_job(payload=b'{"n":%d}' % n, tags=(f"t{n}",)) for n in range(4999)] + [full_job(priority=9)]
    with during(storage) as when:
        assert told(storage.enqueue(jobs)) == told([Enqueued(job.id) for job in jobs])
    assert storage.counts()["letters"].pending == 5000
    for new in (jobs[0], jobs[2500], jobs[4998]):
        assert one(storage, new.id) == row(new, enqueued_at=when, run_at=when)
    assert one(storage, jobs[-1].id) == row(jobs[-1], enqueued_at=when)
    assert ids(storage.claim(who, "letters", 6000)) == ids(jobs)


@pytest.mark.parametrize("size", [1, 2, 5000])
@pytest.mark.parametrize("keyed", [False, True])
def test_one_bad_job_stores_none_of_them(storage: Storage, size: int, keyed: bool) -> None:
    jobs = [plain_job(dedupe_key=f"k{n}" if keyed else None) for n in range(size)]
    jobs[size // 2] = jobs[size // 2]._replace(payload=b"{")
    with pytest.raises(ForgeError):
        storage.enqueue(jobs)
    assert storage.counts() == {}
    if keyed:  # and no key is left behind
        good = plain_job(dedupe_key="k0")
        assert told(storage.enqueue([good])) == told([Enqueued(good.id)])


def test_a_bulk_with_known_ids_in_it_can_be_repeated_blindly(storage: Storage, who: Incarnation) -> None:
    jobs = plain_jobs(1500)
    storage.enqueue(jobs[:700])
    end(storage, storage.claim(who, "letters", 100))
    for _ in range(2):
        assert told(storage.enqueue(jobs)) == told([Enqueued(job.id) for job in jobs])
    assert storage.counts()["letters"].pending == 1400
    assert ids(storage.claim(who, "letters", 2000)) == ids(jobs[100:])


def test_a_bulk_whose_jobs_have_all_ended_can_be_repeated_blindly(storage: Storage, url: str, who: Incarnation) -> None:
    jobs = plain_jobs(300)
    storage.enqueue(jobs)
    end(storage, storage.claim(who, "letters", 300))
    assert told(storage.enqueue(jobs)) == told([Enqueued(job.id) for job in jobs])
    assert storage.counts() == {}
    check_whole(url)


def test_a_plan_stores_jobs_when_the_callers_transaction_commits(storage: Storage, url: str, who: Incarnation) -> None:
    jobs = [full_job(), plain_job()]
    with during(storage) as when:
        assert told(enqueue_as_caller(url, storage.enqueue_plan(jobs), commit=True)) == told(
            [Enqueued(job.id) for job in jobs]
        )
    first, second = jobs
    expected = {first.id: row(first, enqueued_at=when), second.id: row(second, enqueued_at=when, run_at=when)}
    assert storage.get(ids(jobs)) == expected
    assert ids(storage.claim(who, "letters", 5)) == [second.id, first.id]


def test_a_plan_rolled_back_never_was(storage: Storage, url: str) -> None:
    new = full_job()
    assert told(enqueue_as_caller(url, storage.enqueue_plan([new]), commit=False)) == told([Enqueued(new.id)])
    assert storage.get([new.id]) == {}
    assert sql(url, "select count(*) from {job_key}") == [(0,)]
    assert told(storage.enqueue([new])) == told([Enqueued(new.id)])


def test_a_plan_answers_taken_keys_as_enqueue_does(storage: Storage, url: str) -> None:
    first = full_job()
    storage.enqueue([first])
    before = one(storage, first.id)
    again = full_job(dedupe_key=first.dedupe_key, on_conflict="replace")
    assert told(enqueue_as_caller(url, storage.enqueue_plan([again]), commit=True)) == told([Deduped(first.id)])
    assert one(storage, first.id) == replace(before, payload=row(again, enqueued_at=None).payload)
