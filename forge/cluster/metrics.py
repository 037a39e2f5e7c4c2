"""Histograms, and what is counted of a pod's work. Pure: no database, no clock.

**Buckets.** A histogram has 144, four for each doubling: bucket 0 ends at 10 µs, each next one 2^(1/4) = 1.19 times as
far, and the last has all beyond 5.6 days (`BOUNDS` has where each ends). They are the same everywhere and for ever, so
to merge two histograms, of pods or of minutes, is to add their counts, and loses nothing: a percentile of many merged
parts is the bucket in which the percentile of all samples lies, and so is known to 19 %.

**Counting.** A tally only grows, and one thread writes it; whoever reports takes what it has grown by since the last
time. So nothing is locked, and nothing that was counted can be missed.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

from forge.fastpath import BOUNDS, BUCKETS
from forge.storage.contract.metrics import COUNTERS, Point, QueueReport, Standing

__all__ = ["BOUNDS", "BUCKETS", "Bounds", "Growth", "Histogram", "Tally", "merged"]

_PLACE = {name: i for i, name in enumerate(COUNTERS)}


class Bounds(NamedTuple):
    """A bucket: more than `low`, `high` at most, in seconds."""

    low: float
    high: float


class Histogram(dict[int, int]):
    """Counts by bucket."""

    def add(self, seconds: float, n: int = 1) -> None:
        """Count a span of time."""
        at = bisect_left(BOUNDS, seconds)
        self[at] = self.get(at, 0) + n

    def merge(self, other: Mapping[int, int]) -> Self:
        """Count what another has counted, too."""
        for at, n in other.items():
            self[at] = self.get(at, 0) + n
        return self

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.values())

    def percentile(self, q: float) -> Bounds | None:
        """The bucket of the sample that has this part of all (0 to 1) not above it; None: there is none. It is the
        bucket of what `sorted(samples)[ceil(q * n) - 1]` would answer."""
        left = max(1, math.ceil(q * self.count))
        for at in sorted(self):
            left -= self[at]
            if left <= 0:
                return Bounds(BOUNDS[at - 1] if at else 0.0, BOUNDS[at] if at < len(BOUNDS) else math.inf)
        return None

    def quantile(self, q: float) -> float | None:
        """The same in one number, for people: where the bucket ends, or begins if it has no end."""
        found = self.percentile(q)
        if found is None:
            return None
        return found.high if found.high < math.inf else found.low


class Tally:
    """What became of the jobs of one queue, so far. One thread counts."""

    def __init__(self) -> None:
        self.counts = array("q", bytes(8 * len(COUNTERS)))
        # A histogram of run times and behind it one of latencies, as `forge.fastpath.timed` has them.
        self.times = array("q", bytes(16 * BUCKETS))

    def count(self, what: str, n: int = 1) -> None:
        """So many more."""
        self.counts[_PLACE[what]] += n


class Growth:
    """What arrays of counts have grown by, from one look to the next. Each look copies them at once."""

    def __init__(self) -> None:
        self._seen: dict[str, array[int]] = {}

    def take(self, name: str, counts: array[int]) -> dict[int, int]:
        """By place, what is more than at the last look at this name."""
        now, before = counts[:], self._seen.get(name)
        if before == now:
            return {}
        self._seen[name] = now
        if before is None:
            return {i: n for i, n in enumerate(now) if n}
        return {i: n - before[i] for i, n in enumerate(now) if n != before[i]}

    def part(self, queue: str, *tallies: Tally) -> QueueReport | None:
        """What is new of a queue, of all who count for it; None: nothing is."""
        counts: dict[str, int] = {}
        latency, run_time = Histogram(), Histogram()
        for number, tally in enumerate(tallies):
            for i, n in self.take(f"{number} counts {queue}", tally.counts).items():
                counts[COUNTERS[i]] = counts.get(COUNTERS[i], 0) + n
            for i, n in self.take(f"{number} times {queue}", tally.times).items():
                (run_time if i < BUCKETS else latency).merge({i % BUCKETS: n})
        return QueueReport(queue, counts, latency, run_time) if counts or run_time or latency else None


def merged(points: Iterable[Point]) -> list[Point]:
    """Points of several queues as one of all, step by step, under the name `*`; how they stand is added up, and the
    oldest is the oldest of all."""
    found: dict[float, Point] = {}
    for point in points:
        known = found.get(point.at)
        found[point.at] = point._replace(queue="*") if known is None else _together(known, point)
    return [found[at] for at in sorted(found)]


def _together(one: Point, other: Point) -> Point:
    enqueued = [n for n in (one.enqueued, other.enqueued) if n is not None]
    return Point(
        one.at,
        "*",
        {name: one.counts[name] + other.counts[name] for name in COUNTERS},
        Histogram(one.latency).merge(other.latency),
        Histogram(one.run_time).merge(other.run_time),
        sum(enqueued) if enqueued else None,
        _stand(one.standing, other.standing),
    )


def _stand(one: Standing | None, other: Standing | None) -> Standing | None:
    if one is None or other is None:
        return one or other
    return Standing(
        one.pending + other.pending,
        one.scheduled + other.scheduled,
        one.in_flight + other.in_flight,
        one.retrying + other.retrying,
        one.dead_jobs + other.dead_jobs,
        max(one.oldest, other.oldest),
        one.estimated or other.estimated,
    )
