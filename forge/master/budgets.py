"""Token buckets for calls to services that limit them: `ctx.rate_limit.acquire("slack")` ends up here.

Pure: `now` is a parameter, and nothing is known of workers or databases.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from forge.config import LimitConfig, suggest
from forge.errors import UsageError

__all__ = ["Budgets"]

# Those of services that everybody uses, where `[limits]` says nothing else.
DEFAULTS = {
    "slack": LimitConfig(capacity=50, refill_per_sec=50 / 60),
    "gh": LimitConfig(capacity=5000, refill_per_sec=5000 / 3600),
}
SHORTEST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds that who gets nothing is told to wait


@dataclass(slots=True)
class Bucket:
    """What is left of one budget."""

    limit: LimitConfig
    tokens: float
    at: float  # monotonic: when that was so

    def refill(self, now: float) -> None:
        """Add what has come back since."""
        earned = max(0.0, now - self.at) * self.limit.refill_per_sec
        self.tokens, self.at = min(float(self.limit.capacity), self.tokens + earned), now


class Budgets:
    """All budgets of a pod, full at first."""

    def __init__(self, limits: Mapping[str, LimitConfig]) -> None:
        self._limits = {**DEFAULTS, **limits}
        self._buckets: dict[str, Bucket] = {}
        self.on_tokens: Callable[[str], None] = lambda _: None  # there may be some for who could not reserve any

    def change(self, limits: Mapping[str, LimitConfig]) -> None:
        """New settings; what has been spent stays spent."""
        self._limits = {**DEFAULTS, **limits}
        for scope, bucket in list(self._buckets.items()):
            if scope not in self._limits:
                del self._buckets[scope]
                continue
            bucket.limit = self._limits[scope]
            bucket.tokens = min(bucket.tokens, float(bucket.limit.capacity))

    def acquire(self, scope: str, tokens: float, now: float) -> float | None:
        """Take tokens: None if they were there, else the seconds after which to ask again."""
        bucket = self._bucket(scope, now)
        if not 0 < tokens <= bucket.limit.capacity:
            raise UsageError(f"{scope}: from 1 to {bucket.limit.capacity} tokens can be acquired, not {tokens:g}")
        if bucket.tokens >= tokens:
            bucket.tokens -= tokens
            return None
        return min(max(2 / bucket.limit.refill_per_sec, SHORTEST_WAIT), LONGEST_WAIT)

    def reserve(self, scope: str, n: int) -> int:
        """Up to n tokens that are there now. One `give_back` is to follow if there were some, as soon as it is known
        how many are needed, and also if all are. If there were none, `on_tokens` is called when some have come."""
        try:
            bucket = self._bucket(scope, time.monotonic())
        except UsageError:
            return 0
        found = min(n, int(bucket.tokens))
        bucket.tokens -= found
        return found

    def give_back(self, scope: str, n: int) -> None:
        """Tokens that were reserved and not needed."""
        bucket = self._buckets.get(scope)
        if bucket is not None:
            bucket.tokens = min(float(bucket.limit.capacity), bucket.tokens + n)

    def drain(self, scope: str, now: float) -> None:
        """The far end says that there is nothing left."""
        self._bucket(scope, now).tokens = 0.0

    def _bucket(self, scope: str, now: float) -> Bucket:
        bucket = self._buckets.get(scope)
        if bucket is None:
            limit = self._limits.get(scope)
            if limit is None:
                near = suggest(scope, self._limits)
                raise UsageError(f"no budget {scope}{near}; add [limits.{scope}] to forge.toml")
            bucket = self._buckets[scope] = Bucket(limit, float(limit.capacity), now)
        bucket.refill(now)
        return bucket
