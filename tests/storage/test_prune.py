"""Retention: what goes when, batch by batch, and what stays."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from forge.job import Cancelled, Dead, Deduped, Done, Ending, Enqueued, Outcome, Status
from forge.storage import Storage
from forge.storage.contract import Incarnation, Pruned

from .helpers import DAY, age, end, ended, full_job, ids, long_ago, one, plain_jobs, same_finish, sql, statuses, told

pytestmark = pytest.mark.impl_free


def prune_all(storage: Storage, n: int = 1000) -> list[Pruned]:
    """Batch after batch until nothing is left."""
    batches, after = list[Pruned](), None
    while True:
        batch = storage.prune(n, after)
        batches.append(batch)
        if batch.after is None:
            return batches
        after = batch.after


def deleted(batches: list[Pruned]) -> int:
    return sum(batch.deleted for batch in batches)


def finished(
    storage: Storage, who: Incarnation, count: int, queue: str = "letters", outcome: Outcome | None = None
) -> list[UUID]:
    jobs = [long_ago(job) for job in plain_jobs(count, queue)]
    storage.enqueue(jobs)
    end(storage, storage.claim(who, queue, count), outcome)
    return ids(jobs)


def test_there_is_nothing_to_prune_in_an_empty_database(storage: Storage) -> None:
    assert storage.prune() == Pruned(0, 0, None)


@pytest.mark.parametrize(
    ("outcome", "days"), [(Done(), 7), (Dead("d"), 30), (Cancelled(), 30)], ids=lambda value: type(value).__name__
)
def test_a_job_goes_when_its_time_is_over_and_not_before(
    storage: Storage, url: str, who: Incarnation, outcome: Outcome, days: int
) -> None:
    new = long_ago(full_job())
    before = ended(storage, who, new, outcome)
    assert deleted(prune_all(storage)) == 0
    age(url, "job_history", "finished_at", days * DAY - 60)
    assert deleted(prune_all(storage)) == 0
    after = one(storage, new.id)
    assert after == replace(before, finished_at=after.finished_at)
    age(url, "job_history", "finished_at", 120)
    assert deleted(prune_all(storage)) == 1
    assert storage.get([new.id]) == {}


def test_each_queue_keeps_its_jobs_as_long_as_it_says(storage: Storage, url: str, who: Incarnation) -> None:
    storage.set_queue("short", retain_done_days=0.5, retain_dead_days=2)
    storage.set_queue("long", retain_done_days=100, retain_dead_days=1)
    lots = {
        (queue, kind): finished(storage, who, 1, queue, outcome)[0]
        for queue in ("short", "long", "letters")
        for kind, outcome in (("done", Done()), ("dead", Dead("d")))
    }
    gone = {1.5: {("short", "done"), ("long", "dead")}, 3: {("short", "dead")}, 8: {("letters", "done")}}
    gone |= {31: {("letters", "dead")}, 101: {("long", "done")}}
    past = 0.0
    for days, going in gone.items():
        age(url, "job_history", "finished_at", (days - past) * DAY)
        past = days
        assert deleted(prune_all(storage)) == len(going)
        assert all(storage.get([lots.pop(which)]) == {} for which in going)
        assert len(storage.get(list(lots.values()))) == len(lots)


def test_a_job_whose_id_says_nothing_of_its_age_goes_in_time_too(storage: Storage, url: str, who: Incarnation) -> None:
    odd = [UUID(int=0), UUID(int=1), uuid4(), UUID(int=2**128 - 1), long_ago(full_job()).id]
    tomorrow = UUID(int=full_job().id.int + (round(2 * DAY * 1000) << 80))
    jobs = [full_job(id=id) for id in (*odd, tomorrow)]
    storage.enqueue(jobs)
    end(storage, storage.claim(who, "letters", len(jobs)))
    age(url, "job_history", "finished_at", 8 * DAY)
    assert deleted(prune_all(storage, 2)) == len(jobs)


def test_live_jobs_are_never_pruned(storage: Storage, url: str, who: Incarnation) -> None:
    storage.set_queue("letters", retain_done_days=0, retain_dead_days=0)
    jobs = plain_jobs(3)
    storage.enqueue(jobs)
    storage.claim(who, "letters", 1)
    for column in ("run_at", "enqueued_at", "claimed_at"):
        age(url, "job", column, 1000 * DAY)
    assert deleted(prune_all(storage)) == 0
    assert len(storage.get(ids(jobs))) == 3


def test_batches_are_small_and_oldest_first(storage: Storage, url: str, who: Incarnation) -> None:
    lots = []
    for _ in range(5):
        lots.append(finished(storage, who, 3))
        age(url, "job_history", "finished_at", 10 * DAY)
    batch = storage.prune(3)
    assert (batch.walked, batch.deleted) == (3, 3)
    assert batch.after is not None
    assert statuses(storage, [lot[0] for lot in lots]) == [None] + [Status.DONE] * 4
    assert deleted(prune_all(storage, 3)) == 12


def test_jobs_that_ended_in_the_same_instant_are_all_pruned(storage: Storage, url: str, who: Incarnation) -> None:
    finished(storage, who, 25)
    same_finish(url)
    age(url, "job_history", "finished_at", 10 * DAY)
    finished(storage, who, 5)
    same = prune_all(storage, 10)
    assert deleted(same) == 25
    assert storage.ended_counts() == {"letters": {Status.DONE: 5}}


def test_jobs_that_stay_do_not_hide_older_or_younger_ones_that_go(storage: Storage, url: str, who: Incarnation) -> None:
    storage.set_queue("keep", retain_done_days=1000)
    for _ in range(6):
        finished(storage, who, 4, "keep")
        finished(storage, who, 2, "letters")
        age(url, "job_history", "finished_at", 10 * DAY)
    batches = prune_all(storage, 4)
    assert deleted(batches) == 12
    assert sum(batch.walked for batch in batches) == 36
    assert storage.ended_counts() == {"keep": {Status.DONE: 24}}


def test_a_large_batch_takes_all_that_is_due(storage: Storage, who: Incarnation) -> None:
    storage.set_queue("letters", retain_done_days=0)
    finished(storage, who, 2500)
    assert deleted(prune_all(storage)) == 2500
    assert storage.ended_counts() == {}


def test_keys_kept_after_the_end_are_pruned_once_they_expired(storage: Storage, url: str, who: Incarnation) -> None:
    short, long, live = full_job(unique_for=60), full_job(unique_for=600), full_job()
    storage.enqueue([short, long])
    storage.finalize([Ending(claim, Done()) for claim in storage.claim(who, "letters", 2)])
    storage.enqueue([live])
    age(url, "job_key", "held_until", 100)
    prune_all(storage)
    assert sorted(sql(url, "select key from {job_key}")) == sorted([(long.dedupe_key,), (live.dedupe_key,)])
    assert told(storage.enqueue([full_job(dedupe_key=long.dedupe_key)])) == told([Deduped(long.id)])
    again = full_job(dedupe_key=short.dedupe_key)
    assert told(storage.enqueue([again])) == told([Enqueued(again.id)])
