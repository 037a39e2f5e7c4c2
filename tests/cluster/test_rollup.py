"""The leader's round: minutes counted, queues looked at, reports added up, and all of it safe to repeat."""

from __future__ import annotations

import pytest

from forge.cluster.rollup import RollUp
from forge.cluster.services import by_hand
from forge.config import Config
from forge.errors import LostLease
from forge.job import NewJob
from forge.storage import Storage
from forge.storage.contract.leases import Holder
from forge.storage.contract.metrics import MetricReport, QueueReport, Standing
from tests.storage.helpers import age, plain_jobs, sql
from tests.storage.test_metrics import id_at

pytestmark = pytest.mark.impl_free

NEVER, EVER, ALL = 0.0, 4e9, 400_000 * 60 * 60


@pytest.fixture
def term(storage: Storage) -> int:
    """The test leads."""
    found = storage.leases.acquire(Holder("a", None, "north", 1), 600.0).term
    assert found is not None
    return found


def enqueue_at(storage: Storage, minute: float, numbers: range) -> None:
    storage.enqueue([NewJob(id_at(minute, n), "k", b"{}", "letters") for n in numbers])


def enqueued(storage: Storage) -> dict[float, int]:
    return {point.at: point.enqueued for point in storage.metrics.read(NEVER, EVER) if point.enqueued is not None}


def test_minutes_are_counted_when_they_have_ended_and_once_more(storage: Storage, term: int) -> None:
    service = RollUp(storage)
    minute = storage.now() // 60 * 60
    enqueue_at(storage, minute - 60, range(5))
    enqueue_at(storage, minute - 240, range(10, 13))
    enqueue_at(storage, minute + 3600, range(20, 23))  # its producer's clock is wrong
    service.run_once(term)
    assert enqueued(storage) == {minute - 60: 5, minute - 240: 3}
    enqueue_at(storage, minute - 60, range(30, 32))  # a transaction that took long
    enqueue_at(storage, minute - 240, range(40, 42))  # and one that took too long
    service.run_once(term)
    assert enqueued(storage) == {minute - 60: 7, minute - 240: 3}
    storage.delete([id_at(minute - 60, n) for n in range(5)])
    service.run_once(term)
    assert enqueued(storage) == {minute - 60: 7, minute - 240: 3}, "never less than was found before"


def test_a_queue_that_has_nothing_left_says_so_once(storage: Storage, url: str, term: int) -> None:
    service = RollUp(storage)
    jobs = plain_jobs(3)
    storage.enqueue(jobs)
    service.run_once(term)
    stood = [point.standing for point in storage.metrics.read(NEVER, EVER, queue="letters") if point.standing]
    assert [each.pending for each in stood] == [3]
    storage.delete([job.id for job in jobs])
    for _ in range(2):
        age(url, "metric", "minute", 600)
        service.run_once(term)
    stood = [point.standing for point in storage.metrics.read(NEVER, EVER, queue="letters") if point.standing]
    assert [each.pending for each in stood] == [3, 0]
    assert stood[-1] == Standing()


def test_all_that_is_due_is_rolled_up_in_one_round(storage: Storage, url: str, term: int) -> None:
    for number in range(1, 6):
        storage.metrics.write(
            MetricReport("w", number, 1, [QueueReport("letters", {"completed": 1}, {3: 1}, {4: 1})], None)
        )
        age(url, "metric_part", "minute", 300)
    RollUp(storage).run_once(term)
    assert sql(url, "select count(*) from {metric_part}") == [(0,)]
    (point,) = storage.metrics.read(NEVER, EVER, step=ALL)
    assert (point.counts["completed"], point.latency, point.run_time) == (5, {3: 5}, {4: 5})


def test_what_is_old_goes_and_the_rest_stays(storage: Storage, url: str, term: int) -> None:
    storage.metrics.write(MetricReport("w", 1, 1, [QueueReport("letters", {"completed": 1}, {}, {})], None))
    age(url, "metric_part", "minute", 31 * 86_400)
    RollUp(storage).run_once(term)
    assert [point.counts["completed"] for point in storage.metrics.read(NEVER, EVER) if point.counts["completed"]] == []
    assert len(storage.metrics.read_database(NEVER, EVER)) == 1


def test_who_no_longer_leads_is_told(storage: Storage, term: int) -> None:
    storage.leases.release(term)
    with pytest.raises(LostLease):
        RollUp(storage).run_once(term)
    assert storage.metrics.read_database(NEVER, EVER) == []


def test_it_is_a_service_of_the_leader_under_its_name(storage: Storage) -> None:
    (service,) = (each for each in by_hand(storage, Config()) if each.name == "metrics")
    assert isinstance(service, RollUp)
    assert service.leader_only
