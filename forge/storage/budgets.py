"""Rate budgets that all pods share: buckets of tokens, and what of them is leased to pods.

`forge.cluster.budgets` says what may be relied on, and why. All times are the database's. The arithmetic below is what
a budget means; SQLite's verbs use it as it is, PostgreSQL's say the same in SQL.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from forge.codec import check_name
from forge.errors import UsageError

if TYPE_CHECKING:
    from forge.storage.contract import Incarnation

__all__ = [
    "LATE",
    "LEASE",
    "Ask",
    "Budget",
    "Budgets",
    "Grant",
    "Lease",
    "Limit",
    "check_limit",
    "grant",
    "refilled",
]

LATE = "this request for tokens came after a later one of its pod; nothing was changed"
LEASE = 5.0  # seconds for which tokens are leased
ROUNDING = 1e-9  # of a token: what the sums of a float may lack
MOST_TOKENS, LEAST_REFILL, MOST_REFILL = 10**9, 1e-6, 1e9


class Limit(NamedTuple):
    """What a budget allows."""

    capacity: int  # tokens there are at most
    refill_per_sec: float  # tokens that come back each second


class Lease(NamedTuple):
    """Tokens that a pod may spend: those it has said to have spent are not among them."""

    pod: int
    tokens: int
    until: float


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


class Budgets(abc.ABC):
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


def check_limit(scope: str, limit: Limit) -> None:
    """A wrong name or number is a UsageError."""
    check_name(scope, "budget")
    capacity, refill = limit
    if not 1 <= capacity <= MOST_TOKENS:
        raise UsageError(f"budget {scope}: capacity is a whole number from 1 to {MOST_TOKENS}, not {capacity!r}")
    if not LEAST_REFILL <= refill <= MOST_REFILL:
        raise UsageError(f"budget {scope}: refill is a number from {LEAST_REFILL:g} to {MOST_REFILL:g}, not {refill!r}")


def refilled(limit: Limit, tokens: float, at: float, leases: Sequence[Lease], now: float) -> float:
    """The tokens of a bucket now, that had `tokens` then (`at`), with all leases there have been since.

    The bucket and the leases together never have more than its capacity. A lease that has lapsed counts until it did:
    its tokens may have been spent up to then, so they are not put back; the room they took is what comes back. Where
    several have lapsed, all count until the last one did: less than exact, and never too much.
    """
    live = sum(lease.tokens for lease in leases if lease.until > now)
    lapsed = [lease for lease in leases if lease.until <= now]
    between = min(max([lease.until for lease in lapsed] + [at]), now)
    room = limit.capacity - live - sum(lease.tokens for lease in lapsed)
    tokens = max(0.0, min(room, tokens + limit.refill_per_sec * max(0.0, between - at)))
    return max(0.0, min(limit.capacity - live, tokens + limit.refill_per_sec * (now - between)))


def grant(limit: Limit, tokens: float, ask: Ask, kept: int, sharers: int) -> int:
    """How many of `tokens` a pod is given: what it wants, but no more than would leave half of the budget to share, and
    nothing if that would not do."""
    there = int(tokens + ROUNDING)
    if there < ask.least:
        return 0
    return max(0, min(ask.want, there, max(ask.least, limit.capacity // (2 * sharers) - kept)))
