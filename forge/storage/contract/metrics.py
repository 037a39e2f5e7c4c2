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
from typing import NamedTuple

__all__ = [
    "COUNTERS",
    "CPU",
    "MEMORY",
    "MINUTE",
    "TIMINGS",
    "DatabaseFigures",
    "DatabaseHealth",
    "DatabasePoint",
    "Histogram",
    "MetricReport",
    "MetricStore",
    "OpenTransaction",
    "PodFigures",
    "PodPoint",
    "Point",
    "QueueReport",
    "ReportTaken",
    "Standing",
]

MINUTE = 60

# What may become of a claim. Each that has ended is one of these, but for those that were given back as if never made;
# `dead` are jobs that were given up besides, and `reaped` claims that were taken from a pod that had gone silent.
COUNTERS = ("completed", "failed", "throttled", "snoozed", "crashed", "cancelled", "dead", "reaped")

CPU = ("master_cpu", "zygote_cpu", "workers_cpu")  # seconds
MEMORY = ("master_rss", "zygote_rss", "workers_rss", "master_pss", "zygote_pss", "workers_pss")  # bytes
TIMINGS = ("claims", "finalizes", "beats")  # histograms

LONG_OPEN = 300.0  # seconds for which a transaction may be open before that is worth a warning
MUCH_WAL = 10_000_000_000  # bytes

Histogram = Mapping[int, int]


class QueueReport(NamedTuple):
    """What is new of one queue of one pod."""

    queue: str
    counts: Mapping[str, int]  # by COUNTERS; what is not there is none
    latency: Histogram  # from when a job was due until it was given to a worker
    run_time: Histogram


class PodFigures(NamedTuple):
    """A pod's own figures. CPU and timings are what is new, the rest is how it stands; what the system does not say is
    missing."""

    host: str
    pid: int
    workers: int
    connections: int  # to the database, that are open
    cpu: Mapping[str, float]  # by CPU
    memory: Mapping[str, int]  # by MEMORY; the most of a minute is kept
    timings: Mapping[str, Histogram]  # by TIMINGS: each claim, each batch of endings, each heartbeat


class MetricReport(NamedTuple):
    """What a pod has to say."""

    writer: str  # a name of the process's own, for as long as it runs
    number: int  # one more than that of the report before
    pod: int
    parts: Sequence[QueueReport]
    vitals: PodFigures | None


class ReportTaken(NamedTuple):
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


class OpenTransaction(NamedTuple):
    """The one that has been open for longest of those that keep dead rows from being cleaned up."""

    pid: int
    user: str | None
    application: str | None
    client: str | None
    state: str | None
    age: float  # seconds
    query: str | None  # the beginning of its last statement


class DatabaseHealth(NamedTuple):
    """How a database stands beside its size. None: it does not say."""

    version: str
    connections: int | None = None
    active: int | None = None  # connections in the midst of a statement
    most_connections: int | None = None
    wal: int | None = None  # PostgreSQL: bytes written so far; SQLite: bytes of the log beside the file
    wal_held: int | None = None  # bytes that replication slots keep
    oldest: OpenTransaction | None = None

    def warnings(self) -> list[str]:
        """What is about to hurt, each in a sentence."""
        found = []
        if self.oldest is not None and self.oldest.age > LONG_OPEN:
            found.append(
                f"a transaction of pid {self.oldest.pid} has been open for {self.oldest.age:.0f} s: until it ends, "
                "dead rows stay and claims become slower"
            )
        if self.connections is not None and self.most_connections and self.connections > 0.9 * self.most_connections:
            found.append(f"{self.connections} of {self.most_connections} connections are in use")
        if self.wal_held is not None and self.wal_held > MUCH_WAL:
            found.append(f"replication slots hold {self.wal_held / 1e9:.1f} GB of WAL")
        return found


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


class MetricStore(abc.ABC):
    """A storage's verbs about figures: `storage.metrics`. Times are seconds since 1970 by the database's clock."""

    due_epoch: float  # when `Claim.run_at` is 0, seconds since 1970; it counts microseconds

    @abc.abstractmethod
    def write(self, report: MetricReport) -> ReportTaken:
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
    def health(self) -> DatabaseHealth:
        """Its connections, its log, and the transaction that has been open for longest."""

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
