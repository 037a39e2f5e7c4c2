"""What a budget means, as arithmetic. SQLite's verbs use it as it is, PostgreSQL's say the same in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from forge.codec import check_name
from forge.config.model import LimitConfig
from forge.config.setting import declared_settings
from forge.errors import UsageError
from forge.storage.contract.budgets import Ask, Limit

__all__ = ["LATE", "TokenLease", "check_limit", "grant", "refilled"]

LATE = "this request for tokens came after a later one of its pod; nothing was changed"
ROUNDING = 1e-9  # of a token: what the sums of a float may lack


class TokenLease(NamedTuple):
    """Tokens that a pod may spend: those it has said to have spent are not among them."""

    pod: int
    tokens: int
    until: float


def check_limit(scope: str, limit: Limit) -> None:
    """A wrong name or number is a UsageError. The bounds are those of `[limits.NAME]`."""
    check_name(scope, "budget")
    for name, words in (("capacity", "capacity is a whole number"), ("refill_per_sec", "refill is a number")):
        value, about = getattr(limit, name), declared_settings(LimitConfig)[name].about
        assert about.low is not None and about.high is not None
        if not about.low <= value <= about.high:
            span = f"{about.low} to {about.high}" if isinstance(about.low, int) else f"{about.low:g} to {about.high:g}"
            raise UsageError(f"budget {scope}: {words} from {span}, not {value!r}")


def refilled(limit: Limit, tokens: float, at: float, leases: Sequence[TokenLease], now: float) -> float:
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
