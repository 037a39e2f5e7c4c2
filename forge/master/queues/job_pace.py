"""How long jobs take, as far as is known: what decides how many are worth having at hand."""

from __future__ import annotations

import math

__all__ = ["AHEAD", "LONG", "JobPace"]

# Seconds of work that may wait for a place: so that it need not wait for the master between short jobs. Longer jobs
# come one at a time, so that none waits behind another while a third place is idle.
AHEAD = 0.005
# One job that takes this long is reason enough to have none wait behind the next. Shorter ones count by the mean: among
# jobs of some µs, one of 10 ms is a process that did not have its core, which on a shared machine is seen all the time.
LONG = 0.05

KEPT = 0.95  # how much of what was known stays with each job that ends
# The same for the first jobs, which are slow in a new worker: a backlog of 50,000 came to full speed 40 ms sooner.
KEPT_AT_FIRST = 0.5
AT_FIRST = 50  # jobs that count as the first ones


class JobPace:
    """Seconds that a job takes, smoothed. Once one has taken long, no more are worth having at hand than have ended
    since: where one in a thousand does, ten thousand at hand would mean ten of those, and the others behind them."""

    def __init__(self) -> None:
        self._took: float | None = None
        self._seen = 0
        self._quick = math.inf  # jobs since the last one that took long

    def note(self, n: int, total: float, longest: float) -> None:
        """So many jobs have ended, which took `total` seconds together; the longest of them took `longest`."""
        mean = total / n
        kept = KEPT if self._seen >= AT_FIRST else KEPT_AT_FIRST
        self._seen += n
        self._took = mean if self._took is None else mean + (self._took - mean) * kept**n
        self._quick += n
        if longest > LONG:
            self._took, self._quick = max(self._took, longest), 0

    def jobs_in(self, seconds: float) -> float:
        """How many jobs a place runs in so many seconds; 0 as long as that is not known."""
        return 0.0 if self._took is None else min(seconds / max(self._took, 1e-6), self._quick)
