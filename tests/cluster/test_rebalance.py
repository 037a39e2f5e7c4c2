"""The leader's service: one round at a time."""

from __future__ import annotations

import logging

import pytest

from forge.cluster.rebalance import ALONE, EVERY, LOOK_EVERY, TELL_AGAIN, Rebalance
from forge.errors import LostLease
from forge.storage import Storage
from forge.storage.contract.leases import Holder
from tests.storage.helpers import plain_job

pytestmark = pytest.mark.impl_free


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def lead(storage: Storage) -> int:
    term = storage.leases.acquire(Holder("a", None, "here", 1), 60.0).term
    assert term is not None
    return term


def test_a_round_says_what_it_changed_and_the_next_has_nothing_to_say(storage: Storage) -> None:
    for queue in ("letters", "parcels"):
        storage.set_queue(queue, max_workers=3)
    for n in range(2):
        storage.register("ada", ["letters", "parcels"], "north", n)
    service, term = Rebalance(storage.shares), lead(storage)
    assert service.run_once(term) == "workers split anew: letters, parcels"
    assert service.run_once(term) is None
    by_pod = [sum(share.workers or 0 for share in storage.shares.cluster().shares if share.pod == pod.id)
              for pod in storage.pods()]  # fmt: skip
    assert by_pod == [3, 3], "the third of each queue is not the same pod's"


def test_a_pod_alone_is_looked_at_less_often(storage: Storage) -> None:
    storage.set_queue("letters", max_workers=3)
    service, term = Rebalance(storage.shares), lead(storage)
    storage.register("ada", ["letters"], "north", 1)
    service.run_once(term)
    assert service.every == EVERY, "it has just been given its share"
    service.run_once(term)
    assert service.every == ALONE
    storage.register("bob", ["letters"], "south", 2)
    for _ in range(2):
        service.run_once(term)
        assert service.every == EVERY


def test_a_leader_that_has_lost_its_lease_stops(storage: Storage) -> None:
    storage.set_queue("letters")
    storage.register("ada", ["letters"], "north", 1)
    with pytest.raises(LostLease):
        Rebalance(storage.shares).run_once(lead(storage) + 1)


def test_a_queue_that_nobody_serves_is_told_of_once_in_a_while(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    service, term = Rebalance(storage.shares, clock), lead(storage)
    storage.enqueue([plain_job()])
    storage.set_queue("old")
    with caplog.at_level(logging.WARNING):
        service.run_once(term)
        assert caplog.messages == [], "a pod may be on its way"
        clock.now += LOOK_EVERY
        service.run_once(term)
        advice = "name it in forge.toml ([queues.{0}]) or FORGE_QUEUES of a pod"
        assert caplog.messages == [
            f"nobody serves queue letters, and jobs wait in it; {advice.format('letters')}",
            f"nobody serves queue old; {advice.format('old')}",
        ]
        for _ in range(3):
            clock.now += LOOK_EVERY
            service.run_once(term)
        assert len(caplog.messages) == 2
        storage.register("ada", ["letters"], "north", 1)
        clock.now += TELL_AGAIN
        service.run_once(term)
        assert len(caplog.messages) == 3
