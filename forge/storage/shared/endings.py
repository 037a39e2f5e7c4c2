"""What an ending means on every database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from uuid import UUID

from forge.job import Done, Ending, NewJob, Outcome, Throttled

__all__ = ["ERRORS_KEPT", "THROTTLE_GRACE_SECONDS", "accepted_children", "longest_hint", "spares_queue"]

ERRORS_KEPT = 32  # of a job; the oldest make room
# A success this long after a throttle window starts the curve over; sooner, a flapping limiter would reset it.
THROTTLE_GRACE_SECONDS = 120.0


def accepted_children(endings: Sequence[Ending], stale: Sequence[Ending]) -> list[NewJob]:
    """The jobs that are to be stored with these endings: those of each Done that was not stale. Ordered by key, None
    last: two transactions must take keys in one order."""
    # By identity and count: one ending given twice is accepted once.
    refused = Counter(map(id, stale))
    found: dict[UUID, NewJob] = {}
    for ending in endings:
        if not ending.children or type(ending.outcome) is not Done:
            continue
        if refused[id(ending)]:
            refused[id(ending)] -= 1
        else:
            found |= {job.id: job for job in ending.children}
    return sorted(found.values(), key=lambda job: (job.dedupe_key is None, job.dedupe_key))


def spares_queue(outcome: Outcome) -> bool:
    """Whether it may be that only the job waits, and not its queue: a `throttle = "hint"` of the queue heeds that."""
    return isinstance(outcome, Throttled) and outcome.job_only and outcome.retry_after is not None


def longest_hint(endings: Sequence[Ending]) -> float | None:
    """The longest time that throttled jobs were told to wait; None: none was told one."""
    hints = [ending.outcome.retry_after for ending in endings if isinstance(ending.outcome, Throttled)]
    return max((hint for hint in hints if hint is not None), default=None)
