"""How long a failed job waits for its next try: curves and callables of tasks turned into seconds.

A task that names no curve leaves that to its queue (`backoff_enabled`), which only the database knows: then the answer
is below 0, and its absolute value is what to wait if the queue has no curve either. See `Ending.delay`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from forge import fastpath
from forge.codec import as_seconds
from forge.retry import DEFAULT_BACKOFF, Backoff

__all__ = ["UNKNOWN_KIND_PAUSE", "by_curve", "by_default", "called"]

# How long a job of a kind that nobody here knows stays away: uniform between these seconds, so that in a rolling deploy
# a pod that does know it comes by, and a backlog of such jobs does not come back all at once.
UNKNOWN_KIND_PAUSE = (5.0, 60.0)

_random = random.SystemRandom()  # a handler may seed Python's own: then all retries would come in step


def by_curve(curve: Backoff, attempt: int) -> float:
    """Seconds after that attempt; below 0 for the default."""
    seconds = fastpath.delay(curve.curve, attempt, curve.base, curve.cap, _random.random())
    return -seconds if curve is DEFAULT_BACKOFF else seconds


def by_default(attempt: int) -> float:
    """The same for a job whose task names no curve, or that has no task."""
    return by_curve(DEFAULT_BACKOFF, attempt)


def called(backoff: Callable[[int], float], attempt: int) -> float | None:
    """What a task's own function says; None: nothing that could be waited for. Raises what it raises."""
    return as_seconds(float(backoff(attempt)))
