"""Budgets of a whole cluster: never more than the capacity and what is refilled, whatever becomes of pods."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from forge.cluster.budgets import Purse, retry_after
from forge.storage.contract.budgets import Grant, Limit
from forge.storage.shared.buckets import TokenLease, refilled
from forge.storage.sqlite import SqliteStorage, budgets, database

from .budget_rig import Clock, Rig, worst, worst_of_moments

pytestmark = pytest.mark.impl_free

LIMIT = Limit(40, 100.0)
SLOW = Limit(40, 2.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def storage(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> SqliteStorage:
    """Nothing here needs to survive a power failure."""
    monkeypatch.setattr(database, "_SETTINGS", ("pragma synchronous = off",))
    storage = SqliteStorage(f"sqlite:///{tmp_path}/forge.db", clock=clock)
    storage.migrate()
    return storage


@pytest.mark.parametrize("seed", range(12))
def test_no_span_has_more_than_the_capacity_and_its_refill_and_nothing_is_lost_for_ever(
    storage: SqliteStorage, clock: Clock, seed: int
) -> None:
    limit, pods = ((LIMIT, 5), (SLOW, 2), (Limit(5, 3.0), 3), (Limit(400, 20.0), 9))[seed % 4]
    rig = Rig(storage, clock, seed, limit, pods)
    for _ in range(4000):
        rig.step(faults=True)
    assert sum(n for _, _, n in rig.record) > limit.capacity
    assert worst_of_moments(rig.record, limit.refill_per_sec) <= limit.capacity + 1e-6
    rig.rest()
    clock.now += limit.capacity / limit.refill_per_sec
    (budget,) = storage.budgets.all()
    assert (budget.tokens, budget.leased) == (limit.capacity, {})


def too_full(limit: Limit, tokens: float, at: float, leases: Sequence[TokenLease], now: float) -> float:
    """A bucket that refills whatever is leased."""
    return refilled(limit, tokens, at, (), now)


def put_back(limit: Limit, tokens: float, at: float, leases: Sequence[TokenLease], now: float) -> float:
    """One into which the tokens of leases that have lapsed return."""
    lapsed = sum(lease.tokens for lease in leases if lease.until <= now)
    return min(refilled(limit, tokens, at, leases, now) + lapsed, limit.capacity)


@pytest.mark.parametrize(
    ("rule", "trust", "limit"), [(refilled, 10.0, LIMIT), (too_full, 0.9, LIMIT), (put_back, 0.9, SLOW)]
)
def test_looser_rules_would_be_found_out(
    storage: SqliteStorage,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    rule: Callable[..., float],
    trust: float,
    limit: Limit,
) -> None:
    """The check above can fail: with pods that trust their leases for longer, and with each of two easier sums."""
    monkeypatch.setattr(budgets, "refilled", rule)
    most = 0.0
    for seed in range(20):
        rig = Rig(storage, clock, seed, limit, pods=3, trust=trust)
        for _ in range(4000):
            rig.step(faults=True)
        most = max(most, worst_of_moments(rig.record, limit.refill_per_sec))
        if most > limit.capacity + 1e-6:
            return
    pytest.fail(f"{most} of {limit.capacity} at most: the rig stops nobody at the wrong moment")


def test_pods_that_want_all_there_is_use_nearly_all_of_it_and_each_gets_its_part(
    storage: SqliteStorage, clock: Clock
) -> None:
    rig = Rig(storage, clock, 1, LIMIT, pods=5)
    for pod in rig.pods:
        pod.eager = 0.95
    began = clock.now
    for _ in range(1500):
        rig.step(faults=False)
    spent = sum(n for _, _, n in rig.record)
    refilled = LIMIT.refill_per_sec * (clock.now - began)
    assert 0.85 * refilled <= spent <= LIMIT.capacity + refilled
    each = [pod.purse._spent for pod in rig.pods]
    assert min(each) >= 0.5 * sum(each) / 5, each


@pytest.mark.parametrize(("refill", "wait"), [(50.0, 1.0), (0.5, 4.0), (0.001, 60.0)])
def test_who_gets_nothing_waits_two_refills_from_one_second_to_sixty(refill: float, wait: float) -> None:
    assert retry_after(Limit(1, refill)) == wait


def test_the_worst_span_is_found() -> None:
    assert worst([(0.0, 0.0, 5), (1.0, 1.0, 5), (2.0, 2.0, 1)], 2.0) == 8  # in the second from 0 to 1: ten, less two
    assert worst([(0.0, 0.0, 5), (10.0, 10.0, 6)], 2.0) == 6
    assert worst([(0.0, 3.0, 5), (1.0, 2.0, 4)], 1.0) == 6  # both in three seconds
    made = random.Random(1)
    for _ in range(20):
        times = [made.uniform(0, 10) for _ in range(50)]
        record = [(at, at, made.choice((1, 2, 9))) for at in times]
        assert worst_of_moments(record, 3.0) == pytest.approx(worst(record, 3.0))


# -- one purse -----------------------------------------------------------------------------------------------------


def granted(n: int, *, kept: int = 0, left: float = 0.0, sharers: int = 1, limit: Limit = LIMIT) -> Grant:
    return Grant(limit, kept, n, left, sharers)


def filled(n: int, now: float = 100.0) -> Purse:
    purse = Purse()
    purse.ask(n, n, now)
    purse.answered(granted(n), now, now)
    return purse


def test_tokens_are_there_until_nine_tenths_of_the_lease_from_before_the_request() -> None:
    purse = Purse()
    purse.ask(3, 3, 100.0)
    purse.answered(granted(3), 100.0, 102.0)
    assert purse.held(104.4) == 3
    assert purse.held(104.6) == 0
    assert not purse.take(1, 104.6)


def test_a_pod_asks_for_what_is_wanted_now_and_what_it_spent_in_the_last_second() -> None:
    purse = filled(10)
    assert all(purse.take(1, 100.0 + n / 10) for n in range(8))
    ask = purse.ask(5, 9, 100.9)
    assert (ask.held, ask.spent, ask.least, ask.want) == (2, 8, 3, 9 + 8 - 2)
    purse = filled(10)
    assert purse.ask(1, 1, 200.0).want == 1, "what it spent long ago does not count"


def test_what_was_spent_while_a_request_was_under_way_is_told_with_the_next() -> None:
    purse = filled(10)
    assert purse.ask(12, 12, 100.1)[:2] == (10, 0)
    assert purse.take(4, 100.2)
    purse.answered(granted(2, kept=10), 100.1, 100.3)
    assert purse.held(100.3) == 8
    assert purse.ask(1, 1, 100.4)[:2] == (8, 4)


def test_when_the_lease_was_over_what_was_spent_of_it_is_not_of_the_next() -> None:
    purse = filled(10)
    purse.ask(12, 12, 100.1)
    assert purse.take(4, 100.2)
    purse.answered(granted(2, kept=0), 100.1, 100.3)
    assert purse.ask(5, 5, 100.4)[:2] == (2, 0)


def test_who_got_too_few_asks_again_when_there_should_be_enough_but_not_too_often() -> None:
    purse = Purse()
    purse.ask(3, 3, 100.0)
    purse.answered(granted(0, left=1.0, limit=Limit(10, 2.0)), 100.0, 100.0)
    assert 101.0 <= purse.ask_when(3) <= 101.1
    assert purse.ask_when(2) == 0, "that many there may be"
    purse.ask(1, 1, 102.0)
    purse.answered(granted(0, left=0.5, sharers=8), 102.0, 102.0)
    assert 102.4 <= purse.ask_when(1) <= 102.44
    purse.ask(1, 1, 103.0)
    purse.failed(103.0)
    assert 103.5 <= purse.ask_when(1) <= 104.0


def test_a_pod_that_spends_nothing_gives_back_what_it_has() -> None:
    purse = filled(10)
    assert purse.take(4, 100.5)
    assert purse.settle_at == 101.5
    assert purse.settle(101.5) == (0, 4, 0, 0)
    assert purse.held(101.5) == 0, "they are on their way"
    purse.answered(granted(0), 101.5, 101.6)
    assert purse.settle_at == math.inf


def test_a_lease_that_was_never_heard_of_is_settled_too() -> None:
    purse = Purse()
    purse.ask(3, 3, 100.0)
    purse.failed(100.5)
    assert 101.0 <= purse.settle_at <= 101.5
    purse.settle(101.5)
    purse.failed(101.5)
    assert purse.settle_at < 105.5
    while purse.settle_at < math.inf:
        at = purse.settle_at
        purse.settle(at)
        purse.failed(at)
    assert at < 106, "it lapses"


def test_a_drain_voids_what_is_held_and_what_was_asked_for_before() -> None:
    purse = filled(10)
    purse.ask(12, 12, 100.1)
    purse.drained(100.2)
    assert purse.held(100.2) == 0
    purse.answered(granted(2, kept=10), 100.1, 100.3)
    assert purse.held(100.3) == 0
    purse.ask(1, 1, 100.4)
    purse.answered(granted(1), 100.4, 100.5)
    assert purse.held(100.5) == 1


def test_what_is_reserved_is_not_told_as_spent_before_it_is_known_to_be() -> None:
    purse = filled(10)
    assert purse.reserve(6, 100.1) == 6
    assert purse.ask(7, 7, 100.2)[:2] == (10, 0)
    purse.answered(granted(3, kept=10), 100.2, 100.25)
    purse.give_back(4, 100.3)  # two are spent
    assert purse.held(100.3) == 4 + 4 + 3
    assert purse.ask(20, 20, 100.4)[:2] == (11, 2)


def test_what_was_reserved_for_too_long_is_spent() -> None:
    purse = filled(10)
    assert purse.reserve(6, 100.1) == 6
    assert purse.ask(7, 7, 100.4)[:2] == (4, 6)
    purse.give_back(4, 100.5)
    assert purse.held(100.5) == 4


def test_what_was_reserved_before_a_drain_or_of_a_lease_that_is_over_does_not_come_back() -> None:
    purse = filled(10)
    assert purse.reserve(6, 100.1) == 6
    purse.drained(100.1)
    purse.give_back(6, 100.1)
    assert purse.held(100.1) == 0
    purse = filled(10)
    assert purse.reserve(6, 100.1) == 6
    purse.ask(5, 5, 100.2)
    purse.answered(granted(2, kept=0), 100.2, 100.3)
    purse.give_back(6, 100.3)
    assert purse.held(100.3) == 2


def test_reservations_end_in_the_order_in_which_they_were_made() -> None:
    purse = filled(10)
    assert (purse.reserve(3, 100.0), purse.reserve(9, 100.0)) == (3, 7)
    purse.give_back(0, 100.1)
    purse.give_back(5, 100.1)
    assert purse.held(100.1) == 5
    assert purse.ask(6, 6, 100.1)[:2] == (5, 5)
