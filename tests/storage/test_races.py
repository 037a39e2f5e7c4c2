"""Races between real processes, on both databases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from forge.job import Deduped, Enqueued, Status
from forge.storage import Storage
from forge.storage.contract import Incarnation

from . import children
from .helpers import check_whole, full_job, ids, plain_job, plain_jobs, statuses, told

pytestmark = pytest.mark.impl_free


def test_sixteen_claimers_claim_each_of_twenty_thousand_jobs_once(storage: Storage, url: str) -> None:
    jobs = plain_jobs(20_000, "race")
    storage.enqueue(jobs)
    claimers = [(url, f"claimer-{n}", "race", 250) for n in range(16)]
    claimed = [job_id for seen in children.race(children.claim_all, claimers) for job_id in seen]
    assert [job_id for job_id, times in Counter(claimed).items() if times > 1] == []
    assert set(claimed) == set(ids(jobs))
    assert storage.ended_counts() == {"race": {Status.DONE: 20_000}}
    check_whole(url)


def test_of_sixty_four_producers_with_one_key_exactly_one_stores_a_job(storage: Storage, url: str) -> None:
    answers = children.race(children.produce, [(url, "the key")] * 64)
    winners = [receipt for _, receipt in answers if isinstance(receipt, Enqueued)]
    assert len(winners) == 1
    losers = [receipt for _, receipt in answers if not isinstance(receipt, Enqueued)]
    assert told(losers) == told([Deduped(winners[0].id)] * 63)
    assert list(storage.get([job_id for job_id, _ in answers])) == [winners[0].id]
    check_whole(url)


def test_of_two_finalizers_of_one_job_the_later_changes_nothing(storage: Storage, url: str, who: Incarnation) -> None:
    jobs = [full_job(priority=n, max_attempts=3) for n in range(40)]
    storage.enqueue(jobs)
    claims = storage.claim(who, "letters", 40)
    assert ids(claims) == ids(jobs)
    late_done, late_failed = map(
        set, children.race(children.finish_each, [(url, claims, "done"), (url, claims, "failed")])
    )
    assert late_done | late_failed == set(ids(jobs))
    assert late_done & late_failed == set()
    expected = [Status.FAILED if job_id in late_done else Status.DONE for job_id in ids(jobs)]
    assert statuses(storage, ids(jobs)) == expected
    check_whole(url)


@pytest.mark.parametrize("seed", [1])
def test_sixteen_cancellers_and_four_workers_agree_on_every_job(storage: Storage, url: str, seed: int) -> None:
    jobs = [plain_job("race", dedupe_key=f"k{n}" if n % 2 else None, max_attempts=2) for n in range(400)]
    storage.enqueue(jobs)
    cancellers: list[Sequence[Any]] = [(children.cancel_each, (url, ids(jobs), seed * 100 + n)) for n in range(16)]
    workers: list[Sequence[Any]] = [(children.work_off, (url, f"worker-{n}", "race", seed * 100 + n)) for n in range(4)]
    answers = children.race(children.either, cancellers + workers)
    said = [answer for per_canceller in answers[:16] for answer in per_canceller.items()]
    finished = {job_id: outcome for ends in answers[16:] for job_id, outcome in ends if outcome in ("Done", "Dead")}
    found = storage.get(ids(jobs))
    assert set(found) == set(ids(jobs))
    assert {job.status for job in found.values()} <= {Status.DONE, Status.DEAD, Status.CANCELLED}
    assert {job_id for job_id, answer in said if answer == "cancelled"} <= {
        job_id for job_id, job in found.items() if job.status == Status.CANCELLED
    }
    done = {job_id for job_id, outcome in finished.items() if outcome == "Done"}
    assert done == {job_id for job_id, job in found.items() if job.status == Status.DONE}
    check_whole(url)
