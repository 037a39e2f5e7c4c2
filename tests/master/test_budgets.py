"""Token buckets: pure arithmetic on a clock that the tests turn."""

from __future__ import annotations

import pytest

from forge.config import LimitConfig
from forge.errors import UsageError
from forge.master.budgets import Budgets

pytestmark = pytest.mark.impl_free


def test_a_budget_is_full_at_first_and_refills_with_time() -> None:
    budgets = Budgets({"mail": LimitConfig(capacity=3, refill_per_sec=0.5)})
    assert [budgets.acquire("mail", 1, 100.0) for _ in range(4)] == [None, None, None, 4.0]
    assert budgets.acquire("mail", 1, 101.0) == 4.0
    assert budgets.acquire("mail", 1, 102.0) is None
    assert budgets.acquire("mail", 1, 102.0) == 4.0
    assert budgets.acquire("mail", 3, 1000.0) is None  # and never holds more than its capacity
    assert budgets.acquire("mail", 1, 1000.0) == 4.0


@pytest.mark.parametrize(("refill", "wait"), [(50.0, 1.0), (0.5, 4.0), (0.001, 60.0)])
def test_who_gets_nothing_waits_two_refills_from_one_second_to_sixty(refill: float, wait: float) -> None:
    budgets = Budgets({"mail": LimitConfig(capacity=1, refill_per_sec=refill)})
    assert budgets.acquire("mail", 1, 0.0) is None
    assert budgets.acquire("mail", 1, 0.0) == wait


def test_the_budgets_that_everybody_uses_are_there() -> None:
    budgets = Budgets({})
    assert budgets.acquire("slack", 50, 0.0) is None
    assert budgets.acquire("slack", 1, 0.0) == 2.4
    assert budgets.acquire("gh", 5000, 0.0) is None


def test_a_drained_budget_refills_from_nothing() -> None:
    budgets = Budgets({"mail": LimitConfig(capacity=10, refill_per_sec=1.0)})
    budgets.drain("mail", 0.0)
    assert budgets.acquire("mail", 1, 0.5) == 2.0
    assert budgets.acquire("mail", 1, 1.0) is None


def test_new_settings_leave_spent_what_is_spent() -> None:
    budgets = Budgets(
        {"mail": LimitConfig(capacity=10, refill_per_sec=1.0), "old": LimitConfig(capacity=1, refill_per_sec=1.0)}
    )
    assert budgets.acquire("mail", 9, 0.0) is None
    assert budgets.acquire("old", 1, 0.0) is None
    budgets.change({"mail": LimitConfig(capacity=20, refill_per_sec=1.0)})
    assert budgets.acquire("mail", 2, 0.0) == 2.0
    with pytest.raises(UsageError, match="no budget old"):
        budgets.acquire("old", 1, 0.0)


def test_what_cannot_be_acquired_is_said() -> None:
    budgets = Budgets({"mail": LimitConfig(capacity=3, refill_per_sec=0.5)})
    with pytest.raises(UsageError, match="no budget mali; did you mean mail"):
        budgets.acquire("mali", 1, 0.0)
    with pytest.raises(UsageError, match="from 1 to 3 tokens"):
        budgets.acquire("mail", 4, 0.0)
    with pytest.raises(UsageError, match="from 1 to 3 tokens"):
        budgets.acquire("mail", 0, 0.0)
