"""A job that nobody here can run is given back until it is too old."""

from __future__ import annotations

import pytest

from forge.job import Ending, Released, Status
from forge.storage import Storage
from forge.storage.contract import Incarnation

from .helpers import age, check_whole, claimed, full_job, one

pytestmark = pytest.mark.impl_free

NOBODY = "no handler for mail.send"


@pytest.mark.parametrize("crashed", [False, True])
def test_a_job_given_back_for_too_long_is_dead_with_the_message(
    storage: Storage, url: str, who: Incarnation, crashed: bool
) -> None:
    claim = claimed(storage, who, full_job(unique_for=None))
    age(url, "job", "enqueued_at", 3600)
    assert storage.finalize([Ending(claim, Released(NOBODY, crashed, give_up_after=3500.0), 30.0)]) == []
    job = one(storage, claim.id)
    assert (job.status, job.attempts, job.last_error) == (Status.DEAD, 0, NOBODY)
    assert (job.crashes, len(job.errors)) == (int(crashed), 1)
    check_whole(url)


def test_before_that_it_waits_as_failed_and_keeps_its_attempts(storage: Storage, url: str, who: Incarnation) -> None:
    claim = claimed(storage, who, full_job())
    age(url, "job", "enqueued_at", 3600)
    assert storage.finalize([Ending(claim, Released(NOBODY, give_up_after=3700.0), 30.0)]) == []
    job = one(storage, claim.id)
    assert (job.status, job.attempts, job.last_error) == (Status.FAILED, 0, NOBODY)


def test_without_a_limit_age_does_not_matter(storage: Storage, url: str, who: Incarnation) -> None:
    claim = claimed(storage, who)
    age(url, "job", "enqueued_at", 1e8)
    assert storage.finalize([Ending(claim, Released())]) == []
    assert one(storage, claim.id).status is Status.PENDING


def test_one_that_somebody_wants_cancelled_is_cancelled(storage: Storage, url: str, who: Incarnation) -> None:
    claim = claimed(storage, who)
    age(url, "job", "enqueued_at", 3600)
    storage.cancel([claim.id])
    assert storage.finalize([Ending(claim, Released(NOBODY, give_up_after=1.0), 30.0)]) == []
    job = one(storage, claim.id)
    assert (job.status, job.last_error) == (Status.CANCELLED, "cancelled by user")
