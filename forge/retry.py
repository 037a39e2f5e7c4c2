"""What a task says about retrying: which curve, from where, up to where.

Only the description lives here; the curves themselves are in `forge.fastpath` (pure and twice written).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from forge.errors import InvalidJob

__all__ = ["DEFAULT_BACKOFF", "Backoff", "BackoffLike", "Curve", "backoff"]

Curve = Literal["exponential", "decorrelated", "faktory", "fixed", "none"]

# Bounds of base and cap in seconds: under a second a retry is a hot loop, past a day it is a forgotten job.
SHORTEST, LONGEST = 1.0, 86_400.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """One retry curve. Seconds are clamped to [1, 86400] as operators of the original expect."""

    curve: Curve = "decorrelated"
    base: float = 1.0  # the shortest wait, seconds
    cap: float = 3600.0  # the longest wait, seconds

    def __post_init__(self) -> None:
        if self.curve not in get_args(Curve):
            raise InvalidJob(f"backoff: no curve {self.curve!r}; use one of {', '.join(get_args(Curve))}")
        for field in ("base", "cap"):
            value = getattr(self, field)
            if not isinstance(value, (int, float)) or value != value:
                raise InvalidJob(f"backoff: {field} must be seconds, not {value!r}")
            object.__setattr__(self, field, min(max(float(value), SHORTEST), LONGEST))


# A task's own function: attempts so far (1 after the first) to seconds.
BackoffLike = Backoff | Curve | Callable[[int], float]

# Users expect a retry soon, and never in lock-step. This very object stands for a task that names no curve: its queue's
# comes before it.
DEFAULT_BACKOFF = Backoff()


def backoff(value: BackoffLike | None) -> Backoff | Callable[[int], float]:
    """A task's `backoff=` in any of its spellings: nothing, a curve's name, a Backoff or a callable."""
    if value is None:
        return DEFAULT_BACKOFF
    if isinstance(value, str):
        return Backoff(value)
    return value
