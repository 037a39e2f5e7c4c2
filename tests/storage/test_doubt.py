"""A commit in doubt: the connection is lost after the server committed and before it could say so (PostgreSQL).

Every verb is tried again by itself; nothing may be lost by that and nothing done twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from forge.job import Claim, Dead, Done, Ending, Enqueued, Failed, NewJob, Status
from forge.storage import Storage, open_storage
from forge.storage.contract import Incarnation, LowWater, Want

from .helpers import check_whole, full_job, ids, one, plain_job, plain_jobs, statuses, told
from .proxy import Proxy


@pytest.fixture
def proxy(pg_url: str) -> Iterator[Proxy]:
    with Proxy(pg_url) as proxy:
        yield proxy


@pytest.fixture
def storage(proxy: Proxy) -> Iterator[Storage]:
    """A storage at the far end of the proxy."""
    with open_storage(proxy.url, pool_size=2) as storage:
        yield storage


def run_dry(storage: Storage, who: Incarnation, claims: list[Claim], total: int) -> list[UUID]:
    """End these claims and all that come after them, until so many jobs have ended; each id as often as it was run."""
    seen = list[UUID]()
    for _ in range(1000):
        assert storage.finalize([Ending(claim, Done()) for claim in claims]) == []
        seen += ids(claims)
        if len(storage.get(seen)) >= total:
            return seen
        claims = storage.claim(who, "letters", 100)
    raise AssertionError(f"only {len(seen)} of {total} jobs came back")


@pytest.mark.parametrize(
    "jobs",
    [plain_jobs(7), [full_job() for _ in range(7)], plain_jobs(77), [plain_job(delay=n) for n in range(77)]],
    ids=["few", "keyed", "bulk", "timed bulk"],
)
def test_jobs_whose_enqueue_was_in_doubt_are_stored_once(
    storage: Storage, proxy: Proxy, pg_url: str, jobs: list[NewJob]
) -> None:
    storage.now()
    proxy.cut_after(len(jobs))
    assert told(storage.enqueue(jobs)) == told([Enqueued(job.id) for job in jobs])
    assert proxy.cut.wait(10)
    counts = storage.counts()["letters"]
    assert counts.pending + counts.scheduled == len(jobs)
    check_whole(pg_url)


def test_jobs_whose_claim_was_in_doubt_are_not_stuck_and_run_once(
    storage: Storage, proxy: Proxy, who: Incarnation
) -> None:
    jobs = plain_jobs(7)
    storage.enqueue(jobs)
    proxy.cut_after(7)
    claims = storage.claim(who, "letters", 10)
    assert proxy.cut.wait(10)
    assert sorted(run_dry(storage, who, claims, 7)) == ids(jobs)
    assert {(job.status, job.attempts) for job in storage.get(ids(jobs)).values()} == {(Status.DONE, 1)}


def test_jobs_whose_finalize_was_in_doubt_ended_once_and_are_not_called_stale(
    storage: Storage, proxy: Proxy, pg_url: str, who: Incarnation
) -> None:
    jobs = [full_job(priority=n, keep_result=60) for n in range(7)]
    storage.enqueue(jobs)
    claims = storage.claim(who, "letters", 7)
    proxy.cut_after(1)  # a finalize answers one row: how many it ended
    assert storage.finalize([Ending(claim, Done(), result=b"%d" % n) for n, claim in enumerate(claims)]) == []
    assert proxy.cut.wait(10)
    found = storage.get(ids(jobs))
    assert [(found[i].status, found[i].result) for i in ids(jobs)] == [(Status.DONE, n) for n in range(7)]
    check_whole(pg_url)


def test_a_mixed_finalize_in_doubt_counts_each_failure_once(storage: Storage, proxy: Proxy, who: Incarnation) -> None:
    jobs = [plain_job(priority=n) for n in range(9)]
    storage.enqueue(jobs)
    claims = storage.claim(who, "letters", 9)
    outcomes = [Failed("no luck"), Dead("broken")] + [Done() for _ in range(7)]
    proxy.cut_after(1)  # a finalize answers one row: how many it ended
    storage.finalize([Ending(claim, outcome, 500) for claim, outcome in zip(claims, outcomes, strict=True)])
    assert proxy.cut.wait(10)
    assert statuses(storage, ids(jobs)) == [Status.FAILED, Status.DEAD] + [Status.DONE] * 7
    failed = one(storage, jobs[0].id)
    assert (failed.attempts, [e["message"] for e in failed.errors]) == (1, ["no luck"])


def test_an_exchange_in_doubt_ends_once_and_its_claims_are_not_stuck(
    storage: Storage, proxy: Proxy, pg_url: str, who: Incarnation
) -> None:
    jobs = plain_jobs(12)
    storage.enqueue(jobs)
    held = storage.claim(who, "letters", 7)
    proxy.cut_after(5)  # what its claim takes
    stale, claims = storage.exchange(who, [Ending(claim, Done()) for claim in held], [Want("letters", 9, LowWater())])
    assert proxy.cut.wait(10)
    assert stale == []
    assert sorted(run_dry(storage, who, claims, 5)) == ids(jobs[7:])
    assert {(job.status, job.attempts) for job in storage.get(ids(jobs)).values()} == {(Status.DONE, 1)}
    check_whole(pg_url)


@pytest.mark.parametrize("verb", ["finalize", "exchange"])
def test_children_whose_parents_end_was_in_doubt_are_stored_once(
    storage: Storage, proxy: Proxy, pg_url: str, who: Incarnation, verb: str
) -> None:
    jobs = plain_jobs(3)
    storage.enqueue(jobs)
    held = storage.claim(who, "letters", 3)
    children = [full_job(queue="parcels") for _ in range(7)]
    endings = [Ending(held[0], Done(), children=tuple(children)), *(Ending(claim, Done()) for claim in held[1:])]
    proxy.cut_after(7)  # what its enqueue answers
    if verb == "finalize":
        assert storage.finalize(endings) == []
    else:
        assert storage.exchange(who, endings, [Want("letters", 9, LowWater())]) == ([], [])
    assert proxy.cut.wait(10)
    assert statuses(storage, ids(jobs)) == [Status.DONE] * 3
    assert storage.counts()["parcels"].pending == 7
    check_whole(pg_url)


def test_a_cancellation_in_doubt_is_done_once(storage: Storage, proxy: Proxy, pg_url: str) -> None:
    jobs = plain_jobs(7)
    storage.enqueue(jobs)
    proxy.cut_after(7)
    assert set(storage.cancel(ids(jobs))) == set(ids(jobs))
    assert proxy.cut.wait(10)
    found = storage.get(ids(jobs))
    assert [(job.status, len(job.errors)) for job in found.values()] == [(Status.CANCELLED, 1)] * 7
    check_whole(pg_url)


def test_a_retry_in_doubt_is_done_once(storage: Storage, proxy: Proxy, pg_url: str) -> None:
    jobs = [full_job() for _ in range(7)]
    storage.enqueue(jobs)
    storage.cancel(ids(jobs))
    proxy.cut_after(7)
    assert storage.retry(ids(jobs)) == set(ids(jobs))
    assert proxy.cut.wait(10)
    assert statuses(storage, ids(jobs)) == [Status.PENDING] * 7
    check_whole(pg_url)
