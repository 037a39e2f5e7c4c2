"""When the next job may be claimed: what an idle dispatcher sleeps by."""

from __future__ import annotations

import pytest

from forge.job import Done, Ending, Throttled
from forge.storage import Storage
from forge.storage.contract import Incarnation

from .helpers import age, claimed, end, fail, plain_job

pytestmark = pytest.mark.impl_free


def due(storage: Storage, *queues: str) -> float:
    found = storage.next_due(queues or ["letters"])
    assert found is not None
    return found


def test_nothing_waits(storage: Storage, who: Incarnation) -> None:
    assert storage.next_due(["letters"]) is None
    assert storage.next_due([]) is None
    claim = claimed(storage, who)
    assert storage.next_due(["letters"]) is None, "it runs"
    end(storage, [claim])
    assert storage.next_due(["letters", "parcels"]) is None


def test_the_earliest_of_all_priorities_and_queues_counts(storage: Storage) -> None:
    for queue, priority, delay in (("letters", -7, 500.0), ("letters", 0, 300.0), ("letters", 9, 400.0)):
        storage.enqueue(
            [plain_job(queue, priority=priority, delay=delay), plain_job(queue, priority=priority, delay=900.0)]
        )
    assert due(storage) == pytest.approx(300, abs=30)
    storage.enqueue([plain_job("parcels", priority=3, delay=100.0)])
    assert due(storage, "letters", "parcels", "none") == pytest.approx(100, abs=30)
    assert due(storage) == pytest.approx(300, abs=30)
    storage.enqueue([plain_job(priority=20)])
    assert due(storage) <= 0


def test_a_job_that_waits_to_retry_counts(storage: Storage, who: Incarnation) -> None:
    storage.finalize([fail(claimed(storage, who), delay=200.0)])
    assert due(storage) == pytest.approx(200, abs=30)


def test_a_paused_queue_does_not_count_and_a_cooling_one_counts_from_its_end(
    storage: Storage, url: str, who: Incarnation
) -> None:
    claim = claimed(storage, who)
    storage.enqueue([plain_job()])
    end(storage, [claim], Throttled())
    assert due(storage) == pytest.approx(60, abs=30)
    age(url, "queue", "throttled_until", 600)
    assert due(storage) <= 0
    storage.set_queue("letters", paused=True)
    assert storage.next_due(["letters"]) is None
    storage.enqueue([plain_job("parcels", delay=50.0)])
    assert due(storage, "letters", "parcels") == pytest.approx(50, abs=30)


def test_an_ended_job_does_not_count(storage: Storage, who: Incarnation) -> None:
    assert storage.finalize([Ending(claimed(storage, who), Done())]) == []
    assert storage.next_due(["letters"]) is None
