"""However often a job fails, its row keeps the last errors only."""

from __future__ import annotations

import pytest

from forge.job import Ending, Failed, Released, Status
from forge.storage import Storage
from forge.storage.contract import Incarnation
from forge.storage.shared.endings import ERRORS_KEPT

from .helpers import one, plain_job

pytestmark = pytest.mark.impl_free

TIMES = 40


def test_a_job_that_fails_forty_times_has_its_last_thirty_two_errors(storage: Storage, who: Incarnation) -> None:
    new = plain_job(max_attempts=TIMES)
    storage.enqueue([new])
    for n in range(1, TIMES + 1):
        (claim,) = storage.claim(who, "letters", 1)
        assert storage.finalize([Ending(claim, Failed(f"no luck {n}"), 0.0)]) == []
        kept = one(storage, new.id).errors
        assert [error["message"] for error in kept] == [f"no luck {i}" for i in range(max(1, n - 31), n + 1)]
        assert [error["attempt"] for error in kept] == list(range(max(1, n - 31), n + 1))
    assert len(kept) == ERRORS_KEPT == 32
    assert one(storage, new.id).status is Status.DEAD


def test_words_of_jobs_given_back_count_too(storage: Storage, who: Incarnation) -> None:
    new = plain_job()
    storage.enqueue([new])
    for n in range(TIMES):
        (claim,) = storage.claim(who, "letters", 1)
        assert storage.finalize([Ending(claim, Released(f"stopped {n}"))]) == []
    assert [error["message"] for error in one(storage, new.id).errors] == [f"stopped {n}" for n in range(8, TIMES)]
