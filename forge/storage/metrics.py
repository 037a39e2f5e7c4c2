"""Figures by the minute: what pods report, what the leader finds out, and what came of both.

A pod reports what is new since its last report, under a number, and the database takes each number once: a report whose
answer was lost is sent again as it was, and counts once. It is counted in the minute in which the database takes it, so
no pod ever writes a minute that is past, and its own clock says nothing. (Absolute values by minute would need no
number, but nobody could tell whether a write that was in doubt, of a minute that has been rolled up since, is in it.)

A histogram is a mapping from bucket to count; `forge.cluster.metrics` says what the buckets are.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from forge.errors import UsageError

__all__ = [
    "COUNTERS",
    "CPU",
    "MEMORY",
    "MINUTE",
    "TIMINGS",
    "DatabaseFigures",
    "DatabasePoint",
    "Histogram",
    "Metrics",
    "Part",
    "PodPoint",
    "Point",
    "Report",
    "Standing",
    "Taken",
    "Vitals",
    "added",
    "as_histogram",
    "as_pod_point",
    "as_point",
    "check_step",
    "part_row",
    "scaled",
    "vitals_row",
]

MINUTE = 60

# What may become of a claim. Each that has ended is one of these, but for those that were given back as if never made;
# `dead` are jobs that were given up besides, and `reaped` claims that were taken from a pod that had gone silent.
COUNTERS = ("completed", "failed", "throttled", "snoozed", "crashed", "cancelled", "dead", "reaped")

CPU = ("master_cpu", "zygote_cpu", "workers_cpu")  # seconds
MEMORY = ("master_rss", "zygote_rss", "workers_rss", "master_pss", "zygote_pss", "workers_pss")  # bytes
TIMINGS = ("claims", "finalizes", "beats")  # histograms

Histogram = Mapping[int, int]


class Part(NamedTuple):
    """What is new of one queue of one pod."""

    queue: str
    counts: Mapping[str, int]  # by COUNTERS; what is not there is none
    latency: Histogram  # from when a job was due until it was given to a worker
    run_time: Histogram


class Vitals(NamedTuple):
    """A pod's own figures. CPU and timings are what is new, the rest is how it stands; what the system does not say is
    missing."""

    host: str
    pid: int
    workers: int
    connections: int  # to the database, that are open
    cpu: Mapping[str, float]  # by CPU
    memory: Mapping[str, int]  # by MEMORY; the most of a minute is kept
    timings: Mapping[str, Histogram]  # by TIMINGS: each claim, each batch of endings, each heartbeat


class Report(NamedTuple):
    """What a pod has to say."""

    writer: str  # a name of the process's own, for as long as it runs
    number: int  # one more than that of the report before
    pod: int
    parts: Sequence[Part]
    vitals: Vitals | None


class Taken(NamedTuple):
    """What came of a report."""

    fresh: bool  # else it had been taken before
    now: float  # by the database's clock


class Standing(NamedTuple):
    """How a queue stands."""

    pending: int = 0  # due
    scheduled: int = 0  # due later
    in_flight: int = 0
    retrying: int = 0  # failed, waiting to be tried again
    dead_jobs: int = 0  # kept in history, up to a limit
    oldest: float = 0.0  # seconds that the first of those that wait has been due
    estimated: bool = False  # pending, scheduled and retrying are


class DatabaseFigures(NamedTuple):
    """Bytes, and rows that are gone but take room. None: the database does not say."""

    size: int
    job_size: int | None
    history_size: int | None
    job_dead: int | None
    history_dead: int | None


class Point(NamedTuple):
    """One queue in one step of time."""

    at: float  # when it began, seconds since 1970
    queue: str
    counts: Mapping[str, int]  # all of COUNTERS
    latency: Histogram
    run_time: Histogram
    enqueued: int | None  # None: not counted, or not yet
    standing: Standing | None  # at the last look of the step


class PodPoint(NamedTuple):
    """One pod in one step of time."""

    at: float
    pod: int
    host: str
    pid: int
    workers: int  # the most in the step
    connections: int  # the same
    cpu: Mapping[str, float]  # seconds in the step
    memory: Mapping[str, int]  # the most in the step
    timings: Mapping[str, Histogram]


class DatabasePoint(NamedTuple):
    """The database at the last look of one step of time."""

    at: float
    figures: DatabaseFigures


class Metrics(abc.ABC):
    """A storage's verbs about figures: `storage.metrics`. Times are seconds since 1970 by the database's clock."""

    due_epoch: float  # when `Claim.run_at` is 0, seconds since 1970; it counts microseconds

    @abc.abstractmethod
    def write(self, report: Report) -> Taken:
        """Take a report, once: in one transaction, in the minute that it is by the database's clock."""

    @abc.abstractmethod
    def connections(self) -> int:
        """How many this storage has open."""

    # -- for the leader ----------------------------------------------------------------------------------------

    @abc.abstractmethod
    def enqueued(self, minute: float, most: int) -> dict[str, int]:
        """Jobs by queue whose ids were made in that minute, wherever they are now. An id begins with the time at which
        its producer made it; one that is no UUIDv7 has none and is not counted. Of each table no more than `most` rows
        are read; if there are more, the rest of the minute is taken to be like its beginning."""

    @abc.abstractmethod
    def standing(self, most: int) -> dict[str, Standing]:
        """How every queue with jobs stands. Of a queue no more than about `most` jobs are read; beyond that it is an
        estimate (PostgreSQL) or the number read (SQLite), and says so."""

    @abc.abstractmethod
    def database(self) -> DatabaseFigures:
        """How large it is."""

    @abc.abstractmethod
    def record(
        self,
        term: int,
        minute: float,
        standing: Mapping[str, Standing],
        database: DatabaseFigures,
        enqueued: Mapping[tuple[float, str], int],
    ) -> None:
        """Keep what the leader found: `enqueued` by minute and queue, never less than was kept before. Safe to repeat.
        `LostLease`, and nothing kept, if the term is over."""

    @abc.abstractmethod
    def roll_up(self, term: int, older: float) -> int:
        """Add what pods reported in the oldest minute that ended at least `older` seconds ago to the cluster's; answers
        how many rows that were, 0: there is no such minute. Whoever does it again finds nothing left to add.
        `LostLease`, and nothing added, if the term is over."""

    @abc.abstractmethod
    def prune(self, term: int, keep: float, n: int = 1000) -> int:
        """Delete what is older than `keep` seconds, up to n rows of a kind; answers how many. `LostLease` as above."""

    # -- for readers -------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def read(self, since: float, until: float, step: int = MINUTE, queue: str | None = None) -> list[Point]:
        """Queues from `since` until before `until`, by step (whole minutes, counted from 1970) and name."""

    @abc.abstractmethod
    def read_pods(self, since: float, until: float, step: int = MINUTE) -> list[PodPoint]:
        """The same of pods, gone or not, by step and number."""

    @abc.abstractmethod
    def read_database(self, since: float, until: float, step: int = MINUTE) -> list[DatabasePoint]:
        """The same of the database."""


def part_row(part: Part) -> dict[str, Any]:
    """A part as both databases take it: every counter by name."""
    counts = {name: int(part.counts.get(name, 0)) for name in COUNTERS}
    return {"queue": part.queue, **counts, "latency": _keyed(part.latency), "run_time": _keyed(part.run_time)}


def vitals_row(vitals: Vitals) -> dict[str, Any]:
    """Vitals likewise."""
    row: dict[str, Any] = {name: getattr(vitals, name) for name in ("host", "pid", "workers", "connections")}
    row |= {name: vitals.cpu.get(name) for name in CPU}
    row |= {name: vitals.memory.get(name) for name in MEMORY}
    return row | {name: _keyed(vitals.timings.get(name, {})) for name in TIMINGS}


def _keyed(histogram: Histogram) -> dict[str, int]:
    return {str(bucket): n for bucket, n in histogram.items() if n}


def as_histogram(text: str | bytes | None) -> dict[int, int]:
    """A histogram as stored."""
    return {int(bucket): n for bucket, n in orjson.loads(text).items()} if text else {}


def as_point(row: Sequence[Any]) -> Point:
    """A row of `read_metrics`."""
    at, queue, *rest = row
    counts, (latency, run_time, enqueued, *stood) = rest[: len(COUNTERS)], rest[len(COUNTERS) :]
    standing = None if stood[0] is None else Standing._make([*stood[:-1], bool(stood[-1])])
    return Point(
        float(at),
        queue,
        dict(zip(COUNTERS, counts, strict=True)),
        as_histogram(latency),
        as_histogram(run_time),
        enqueued,
        standing,
    )


def as_pod_point(row: Sequence[Any]) -> PodPoint:
    """A row of `read_pod_metrics`."""
    at, pod, host, pid, workers, connections, *rest = row
    cpu = {name: value for name, value in zip(CPU, rest[:3], strict=True) if value is not None}
    memory = {name: value for name, value in zip(MEMORY, rest[3:9], strict=True) if value is not None}
    timings = {name: as_histogram(text) for name, text in zip(TIMINGS, rest[9:], strict=True)}
    return PodPoint(float(at), pod, host, pid, workers, connections, cpu, memory, timings)


def scaled(counts: Mapping[str, int], last_ms: int, minute: float, most: int) -> dict[str, int]:
    """Counts of a minute by queue, of which no more than `most` were read, the last one made at `last_ms`."""
    if sum(counts.values()) < most:
        return dict(counts)
    covered = min(max((last_ms - minute * 1000 + 1) / (MINUTE * 1000), 0.001), 1.0)
    return {queue: round(n / covered) for queue, n in counts.items()}


def added(*parts: Mapping[str, int]) -> dict[str, int]:
    """Counts together."""
    total: dict[str, int] = {}
    for part in parts:
        for name, n in part.items():
            total[name] = total.get(name, 0) + n
    return total


def check_step(step: int) -> int:
    """Whole minutes."""
    if step < MINUTE or step % MINUTE:
        raise UsageError(f"a step of {step} s is not whole minutes; take 60, 300, 3600 …")
    return step
