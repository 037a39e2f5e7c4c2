"""Dedupe keys: one active job has a key, and what happens to those that come later."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from forge.job import Cancelled, Dead, Deduped, Done, Enqueued, Failed, Outcome, Receipt, Snooze, Status, Throttled
from forge.storage import Storage
from forge.storage.contract import Incarnation

from .helpers import age, claimed, during, end, ended, fail, full_job, ids, one, plain_job, row, sql, statuses, told

ENDS = [Done(), Dead("broken"), Cancelled()]


def kind_of(value: object) -> str:
    return type(value).__name__


def test_a_taken_key_answers_the_job_that_has_it_and_stores_nothing(storage: Storage) -> None:
    first = full_job()
    again = full_job(dedupe_key=first.dedupe_key)
    with during(storage) as when:
        storage.enqueue([first])
    assert told(storage.enqueue([again])) == told([Deduped(first.id)])
    assert storage.get([first.id, again.id]) == {first.id: row(first, enqueued_at=when)}


def test_in_one_batch_the_first_of_a_key_wins(storage: Storage) -> None:
    a, b = full_job(dedupe_key="a"), full_job(dedupe_key="b")
    jobs = [a, full_job(dedupe_key="a"), b, plain_job(), full_job(dedupe_key="b"), full_job(dedupe_key="a")]
    expected: list[Receipt] = [
        Enqueued(a.id),
        Deduped(a.id),
        Enqueued(b.id),
        Enqueued(jobs[3].id),
        Deduped(b.id),
        Deduped(a.id),
    ]
    assert told(storage.enqueue(jobs)) == told(expected)
    assert sorted(storage.get(ids(jobs))) == sorted([a.id, b.id, jobs[3].id])


def test_in_one_large_batch_the_first_of_a_key_wins(storage: Storage) -> None:
    jobs = [plain_job(dedupe_key=f"key-{n % 1000}") for n in range(3000)]
    winners = ids(jobs[:1000])
    expected = [Enqueued(i) for i in winners] + [Deduped(i) for i in winners] * 2
    assert told(storage.enqueue(jobs)) == told(expected)
    assert storage.counts()["letters"].pending == 1000


def test_a_key_is_global_over_queues_and_kinds(storage: Storage) -> None:
    first = full_job()
    storage.enqueue([first])
    again = plain_job("parcels", kind="pack", dedupe_key=first.dedupe_key)
    assert told(storage.enqueue([again])) == told([Deduped(first.id)])


def test_a_key_is_taken_while_its_job_runs(storage: Storage, who: Incarnation) -> None:
    first = full_job()
    claimed(storage, who, first)
    assert told(storage.enqueue([full_job(dedupe_key=first.dedupe_key)])) == told([Deduped(first.id)])


@pytest.mark.parametrize("outcome", [Failed("no luck"), Snooze(30.0), Throttled()], ids=kind_of)
def test_a_key_is_taken_while_its_job_waits_to_run_again(storage: Storage, who: Incarnation, outcome: Outcome) -> None:
    first = full_job()
    ended(storage, who, first, outcome)
    assert told(storage.enqueue([full_job(dedupe_key=first.dedupe_key)])) == told([Deduped(first.id)])


@pytest.mark.parametrize("outcome", ENDS, ids=kind_of)
def test_a_key_is_free_again_once_its_job_ended(storage: Storage, who: Incarnation, outcome: Outcome) -> None:
    first = full_job(unique_for=None)
    ended(storage, who, first, outcome)
    again = full_job(dedupe_key=first.dedupe_key)
    assert told(storage.enqueue([again])) == told([Enqueued(again.id)])
    assert one(storage, again.id).status == Status.PENDING


def test_a_key_is_free_again_once_its_attempts_are_used_up(storage: Storage, who: Incarnation) -> None:
    first = full_job(unique_for=None, max_attempts=1)
    assert storage.finalize([fail(claimed(storage, who, first))]) == []
    again = full_job(dedupe_key=first.dedupe_key)
    assert told(storage.enqueue([again])) == told([Enqueued(again.id)])


def test_cancelling_a_pending_job_frees_its_key(storage: Storage) -> None:
    first = full_job(unique_for=None)
    storage.enqueue([first])
    storage.cancel([first.id])
    again = full_job(dedupe_key=first.dedupe_key)
    assert told(storage.enqueue([again])) == told([Enqueued(again.id)])


def test_deleting_a_job_frees_its_key(storage: Storage, who: Incarnation) -> None:
    first, second = full_job(), full_job()
    storage.enqueue([first])
    storage.delete([first.id])
    ended(storage, who, second)
    storage.delete([second.id])
    for key in (first.dedupe_key, second.dedupe_key):
        again = full_job(dedupe_key=key)
        assert told(storage.enqueue([again])) == told([Enqueued(again.id)])


@pytest.mark.parametrize("outcome", ENDS, ids=kind_of)
def test_unique_for_keeps_the_key_for_a_time_after_the_end(
    storage: Storage, url: str, who: Incarnation, outcome: Outcome
) -> None:
    first = full_job(unique_for=90)
    ended(storage, who, first, outcome)
    again = full_job(dedupe_key=first.dedupe_key)
    assert told(storage.enqueue([again])) == told([Deduped(first.id)])
    age(url, "job_key", "held_until", 60)
    assert told(storage.enqueue([again])) == told([Deduped(first.id)])
    age(url, "job_key", "held_until", 60)
    with during(storage) as when:
        assert told(storage.enqueue([again])) == told([Enqueued(again.id)])
    assert one(storage, again.id) == row(again, enqueued_at=when)
    assert told(storage.enqueue([full_job(dedupe_key=first.dedupe_key)])) == told([Deduped(again.id)])


def test_unique_for_counts_from_a_cancellation_too(storage: Storage, url: str) -> None:
    first = full_job(unique_for=90)
    storage.enqueue([first])
    storage.cancel([first.id])
    again = full_job(dedupe_key=first.dedupe_key)
    assert told(storage.enqueue([again])) == told([Deduped(first.id)])
    age(url, "job_key", "held_until", 91)
    assert told(storage.enqueue([again])) == told([Enqueued(again.id)])


def test_a_key_kept_after_the_end_outlives_the_jobs_row(storage: Storage, url: str, who: Incarnation) -> None:
    first = full_job(unique_for=90)
    ended(storage, who, first)
    storage.set_queue("letters", retain_done_days=0)
    storage.prune()
    assert storage.get([first.id]) == {}
    assert told(storage.enqueue([full_job(dedupe_key=first.dedupe_key)])) == told([Deduped(first.id)])


def test_many_endings_settle_only_their_own_keys(storage: Storage, who: Incarnation) -> None:
    jobs = [full_job(unique_for=None if n % 2 else 90, queue="letters", priority=n) for n in range(6)]
    storage.enqueue(jobs)
    end(storage, storage.claim(who, "letters", 4))
    again = [full_job(dedupe_key=job.dedupe_key) for job in jobs]
    free = [False, True, False, True, False, False]
    expected = [Enqueued(new.id) if ok else Deduped(old.id) for ok, new, old in zip(free, again, jobs, strict=True)]
    assert told(storage.enqueue(again)) == told(expected)


def test_keep_leaves_the_job_that_has_the_key_alone(storage: Storage) -> None:
    first = full_job()
    storage.enqueue([first])
    before = one(storage, first.id)
    again = full_job(dedupe_key=first.dedupe_key, on_conflict="keep", run_at=datetime(2030, 1, 1, tzinfo=UTC))
    assert told(storage.enqueue([again])) == told([Deduped(first.id)])
    assert one(storage, first.id) == before


def test_replace_changes_the_payload_and_nothing_else(storage: Storage) -> None:
    first = full_job()
    storage.enqueue([first])
    before = one(storage, first.id)
    again = full_job(dedupe_key=first.dedupe_key, on_conflict="replace", priority=8, tags=("new",), kind="other")
    assert told(storage.enqueue([again])) == told([Deduped(first.id)])
    assert one(storage, first.id) == replace(before, payload=json.loads(again.payload))


def test_replace_reaches_a_job_that_waits_to_retry(storage: Storage, who: Incarnation) -> None:
    first = full_job()
    storage.finalize([fail(claimed(storage, who, first), delay=500)])
    before = one(storage, first.id)
    again = full_job(dedupe_key=first.dedupe_key, on_conflict="replace")
    assert told(storage.enqueue([again])) == told([Deduped(first.id)])
    assert one(storage, first.id) == replace(before, payload=json.loads(again.payload))


@pytest.mark.parametrize("on_conflict", ["replace", "push"])
def test_a_running_job_is_not_touched_by_a_conflict(storage: Storage, who: Incarnation, on_conflict: str) -> None:
    first = full_job()
    claimed(storage, who, first)
    before = one(storage, first.id)
    again = full_job(dedupe_key=first.dedupe_key, on_conflict=on_conflict)
    assert told(storage.enqueue([again])) == told([Deduped(first.id)])
    assert one(storage, first.id) == before


@pytest.mark.parametrize("on_conflict", ["replace", "push"])
def test_an_ended_job_is_not_touched_by_a_conflict(storage: Storage, who: Incarnation, on_conflict: str) -> None:
    first = full_job()
    before = ended(storage, who, first)
    again = full_job(dedupe_key=first.dedupe_key, on_conflict=on_conflict)
    assert told(storage.enqueue([again])) == told([Deduped(first.id)])
    assert one(storage, first.id) == before


def test_push_moves_the_start_by_the_new_delay(storage: Storage, who: Incarnation) -> None:
    first = full_job(run_at=None, delay=10)
    storage.enqueue([first])
    before = one(storage, first.id)
    with during(storage) as when:
        again = full_job(dedupe_key=first.dedupe_key, on_conflict="push", run_at=None, delay=77)
        assert told(storage.enqueue([again])) == told([Deduped(first.id)])
    assert one(storage, first.id) == replace(before, run_at=when + 77)
    assert storage.claim(who, "letters", 1) == []


def test_push_moves_the_start_to_the_new_time(storage: Storage) -> None:
    first = full_job()
    storage.enqueue([first])
    before = one(storage, first.id)
    later = datetime(2033, 3, 3, 3, 3, 3, 333333, UTC)
    again = full_job(dedupe_key=first.dedupe_key, on_conflict="push", run_at=later)
    assert told(storage.enqueue([again])) == told([Deduped(first.id)])
    assert one(storage, first.id) == replace(before, run_at=later)


def test_in_one_batch_a_later_job_can_replace_the_payload_of_an_earlier_one(storage: Storage) -> None:
    first = full_job()
    again = full_job(dedupe_key=first.dedupe_key, on_conflict="replace")
    with during(storage) as when:
        assert told(storage.enqueue([first, again])) == told([Enqueued(first.id), Deduped(first.id)])
    assert one(storage, first.id) == row(first, enqueued_at=when, payload=json.loads(again.payload))


def test_only_keyed_jobs_leave_a_key(storage: Storage, url: str, who: Incarnation) -> None:
    first, second = full_job(unique_for=60), full_job(unique_for=None)
    storage.enqueue([first, second, plain_job()])
    assert sql(url, "select count(*) from {job_key} where held_until is null") == [(2,)]
    end(storage, storage.claim(who, "letters", 5))
    assert sql(url, "select key from {job_key}") == [(first.dedupe_key,)]
    assert statuses(storage, ids([first, second])) == [Status.DONE, Status.DONE]
