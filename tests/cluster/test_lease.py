"""What a pod believes about its lease, and when it stops believing it. The lease itself is tested with the storage."""

from __future__ import annotations

import logging

import pytest

from forge.cluster.lease import Lease
from forge.errors import DatabaseError
from forge.storage import Storage
from forge.storage.contract.leases import Holder, Leader, LeaseAnswer, LeaseStore

from .test_service import Clock

pytestmark = pytest.mark.impl_free
TTL = 15.0


class Fake(LeaseStore):
    """A lease with the test's clock; `takes` is how long an answer needs, `away` is an outage."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.takes, self.away = clock, 0.0, False
        self.number, self.key, self.until = 0, "", 0.0
        self.asked: list[Holder] = []

    def _answer(self) -> None:
        self.clock.now += self.takes
        if self.away:
            raise DatabaseError("away")

    def acquire(self, holder: Holder, ttl: float) -> LeaseAnswer:
        self.asked.append(holder)
        self._answer()
        if self.key not in ("", holder.key) and self.clock.now < self.until:
            return LeaseAnswer(None, self.until - self.clock.now)
        self.number, self.key, self.until = self.number + 1, holder.key, self.clock.now + ttl
        return LeaseAnswer(self.number, ttl)

    def renew(self, term: int, holder: Holder, ttl: float) -> bool:
        self._answer()
        if (term, holder.key) != (self.number, self.key):
            return False
        self.until = self.clock.now + ttl
        return True

    def release(self, term: int) -> None:
        self._answer()
        if term == self.number:
            self.key = ""

    def leader(self) -> Leader | None:
        raise NotImplementedError

    def check(self, term: int) -> None:
        raise NotImplementedError


def pair() -> tuple[Clock, Fake, Lease, Lease]:
    """Two pods that want to lead."""
    clock = Clock()
    fake = Fake(clock)
    return (
        clock,
        fake,
        Lease(fake, lambda: 1, lambda: TTL, clock=clock),
        Lease(fake, lambda: 2, lambda: TTL, clock=clock),
    )


def test_the_first_to_ask_leads_and_renews_at_a_third_of_the_ttl() -> None:
    clock, fake, one, two = pair()
    assert one.term() is None
    pause = one.tend()
    assert one.term() == 1
    assert TTL / 4 <= pause <= TTL / 3
    for _ in range(20):
        clock.now += pause
        pause = one.tend()
        two.tend()
        assert (one.term(), two.term()) == (1, None)
    assert {holder.pod for holder in fake.asked} == {1, 2}
    assert len({holder.key for holder in fake.asked}) == 2


def test_trust_begins_with_the_request_and_ends_before_the_lease_does() -> None:
    clock, fake, one, _ = pair()
    fake.takes = 4.0
    began = clock.now
    one.tend()
    assert fake.until == began + 4.0 + TTL
    clock.now = began + TTL * 0.9 - 0.01
    assert one.term() == 1
    clock.now = began + TTL * 0.9
    assert one.term() is None


def test_an_answer_that_came_too_late_is_not_trusted_at_all() -> None:
    _, fake, one, _ = pair()
    fake.takes = TTL
    one.tend()
    assert one.term() is None


def test_whoever_waits_asks_again_right_after_the_lease_lapses() -> None:
    clock, _, one, two = pair()
    one.tend()
    lapses = clock.now + TTL
    for _ in range(100):
        pause = two.tend()
        if two.term() is not None:
            break
        clock.now += pause
    assert two.term() == 2
    assert lapses <= clock.now <= lapses + TTL * 0.06


def test_a_pod_that_was_stopped_for_long_does_not_lead_when_it_wakes_up(caplog: pytest.LogCaptureFixture) -> None:
    clock, _, one, two = pair()
    one.tend()
    clock.now += 100
    two.tend()
    assert (one.term(), two.term()) == (None, 2)
    assert one.tend() == 0.0
    assert "this pod no longer leads (term 1): another one was faster" in caplog.text
    one.tend()
    assert one.term() is None


def test_one_that_nobody_followed_goes_on_with_its_term() -> None:
    clock, _, one, _ = pair()
    one.tend()
    clock.now += 100
    assert one.term() is None
    one.tend()
    assert one.term() == 1


def test_while_the_database_is_away_trust_lapses_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    clock, fake, one, _ = pair()
    one.tend()
    fake.away = True
    for _ in range(4):
        clock.now += one.tend()
    assert one.term() == 1  # it may still
    for _ in range(20):
        clock.now += one.tend()
    assert one.term() is None
    assert caplog.text.count("this pod no longer leads (term 1): it could not be renewed") == 1
    fake.away = False
    one.tend()
    assert one.term() == 2


def test_a_refused_write_ends_the_term_and_a_late_one_does_not_end_the_next() -> None:
    _, fake, one, _ = pair()
    one.tend()
    one.drop(1)
    assert one.term() is None
    fake.key = ""
    one.tend()
    assert one.term() == 2
    one.drop(1)
    assert one.term() == 2


def test_one_that_is_given_back_is_another_pods_at_once_and_the_log_tells(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    _, fake, one, two = pair()
    one.tend()
    one.release()
    one.release()
    two.tend()
    assert (one.term(), two.term()) == (None, 2)
    assert [record.getMessage() for record in caplog.records] == [
        "this pod leads (term 1)",
        "this pod no longer leads (term 1): it was given back",
        "this pod leads (term 2)",
    ]
    fake.away = True
    two.release()
    assert "the lease lapses by itself: away" in caplog.text


def test_the_same_with_a_real_database(storage: Storage) -> None:
    one, two = (Lease(storage.leases, lambda: None, lambda: 60.0) for _ in range(2))
    one.tend()
    two.tend()
    first = one.term()
    assert first is not None and two.term() is None
    storage.leases.check(first)
    one.release()
    two.tend()
    second = two.term()
    assert second is not None and second > first
