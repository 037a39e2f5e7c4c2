"""Rate budgets that all pods share: buckets of tokens, and what of them is leased to pods.

`forge.cluster.budgets` says what may be relied on, and why. All times are the database's.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import NamedTuple

from forge.storage.contract.values import Incarnation

__all__ = ["LEASE", "Ask", "Budget", "BudgetStore", "Grant", "Limit"]

LEASE = 5.0  # seconds for which tokens are leased


class Limit(NamedTuple):
    """What a budget allows."""

    capacity: int  # tokens there are at most
    refill_per_sec: float  # tokens that come back each second


class Budget(NamedTuple):
    """A budget as it is now."""

    scope: str
    capacity: int
    refill_per_sec: float
    tokens: float  # that nobody has leased
    leased: Mapping[int, int]  # tokens by pod; what a pod has spent and not yet said so is among them


class Ask(NamedTuple):
    """What a pod says of its lease, and what it would like to have besides."""

    held: int  # tokens that it still has
    spent: int  # since it was registered
    least: int  # fewer more are of no use to it
    want: int  # more it does not need; 0 with none held: its lease is over


class Grant(NamedTuple):
    """What came of asking."""

    limit: Limit
    kept: int  # of those held: all, or none because its lease had lapsed or the budget was drained
    granted: int  # tokens more
    left: float  # tokens that nobody has leased
    sharers: int  # pods that have a lease, the asker too


class BudgetStore(abc.ABC):
    """A storage's verbs about budgets: `storage.budgets`."""

    @abc.abstractmethod
    def declare(self, scope: str, limit: Limit, *, default: bool = False) -> Limit | None:
        """Some pod's settings say so. A new budget is full. One that is there is changed only if its settings said
        something else when they were last declared, so that what was `set` stays; a `default` changes none. Answers
        what the limit was before, if it was changed."""

    @abc.abstractmethod
    def set(self, scope: str, limit: Limit) -> None:
        """Make a budget, or change its limit. What has been spent stays spent."""

    @abc.abstractmethod
    def lease(self, who: Incarnation, scope: str, ask: Ask, ttl: float = LEASE) -> Grant | None:
        """Settle what the pod has spent and lease it more, for `ttl` seconds from now. None: there is no such budget.

        Each call tells all, so one whose answer was lost is made good by the next."""

    @abc.abstractmethod
    def drain(self, scope: str) -> bool:
        """There is nothing left, neither in the bucket nor in leases; pods are told. False: no such budget."""

    @abc.abstractmethod
    def all(self) -> list[Budget]:
        """Every budget, by name."""
