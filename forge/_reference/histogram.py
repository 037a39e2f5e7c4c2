"""Histograms of how long jobs took and how long they had waited."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Any

# Where the buckets of a histogram end, in seconds: four for each doubling, from 10 µs to 5.6 days. The first has all
# that is not above the first bound, the last all that is above the last.
BOUNDS = [1e-5 * 2.0 ** (i / 4) for i in range(143)]
BUCKETS = len(BOUNDS) + 1


def timed(times: array[int], seconds: float, run_at: Any, sent: float, ahead: float | None) -> None:
    """Count a job that took so long in `times`, which has a histogram of run times and one of latencies behind it. That
    is how long it had been due (`run_at`, in microseconds) when it was sent to a worker, on a clock that is `ahead` of
    the one that `sent` was read from; None: it is not known."""
    times[bisect_left(BOUNDS, seconds)] += 1
    if type(run_at) is int and ahead is not None:
        times[BUCKETS + bisect_left(BOUNDS, sent + ahead - run_at / 1e6)] += 1
