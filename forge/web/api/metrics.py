"""Figures over time, for charts: of queues, of pods, of the database; and how the database stands now.

A range is cut into steps of whole minutes, `MOST_POINTS` at most, and every step has its point: where nothing was
counted the counts are 0. Percentiles are of the merged histograms of all pods, queues and minutes in the step, and so
are those of all jobs in it, to 19 %.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from forge.cluster.metrics import Histogram, merged
from forge.storage.contract.metrics import COUNTERS, MINUTE, PodPoint, Point, Standing
from forge.web.endpoint import ApiCall, Endpoint, Problem

__all__ = ["ENDPOINTS", "Span", "SpanQuery", "span_of", "when"]

RANGE = r"^[1-9][0-9]{0,3}[mhd]$"
UNITS = {"m": 60, "h": 3600, "d": 86_400}
LONGEST = 31 * 86_400  # seconds: figures are kept for 30 days
AIM = 360  # points, where the caller names no step
MOST_POINTS = 1500
MOST_GROUPS = 100  # queues, kinds or pods with a series each
STEPS = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
SETTLED = 120.0  # seconds after which the leader has counted what was enqueued in a minute


class SpanQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """From when to when. `range` goes back from now; `since` and `until` are used instead if given."""

    range: Annotated[str, Meta(pattern=RANGE, description="such as 5m, 1h, 6h, 24h, 7d, 30d")] = "1h"
    since: datetime | None = None
    until: datetime | None = None
    step: Annotated[int, Meta(ge=60, le=86_400, description="seconds, whole minutes")] | None = None


class SeriesQuery(SpanQuery, forbid_unknown_fields=True, kw_only=True):
    """Of one queue, or of all; `by` asks for a series for each besides."""

    queue: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    by: Literal["queue"] | None = None


class Percentiles(msgspec.Struct, frozen=True):
    """Seconds. None: there was nothing to measure."""

    count: int
    p50: float | None
    p95: float | None
    p99: float | None


class SeriesPoint(msgspec.Struct, frozen=True):
    """One step. The counts are of attempts that ended in it; the last ones are how it stood at the last look in it,
    None: nobody has looked (pods' leader does, once a minute)."""

    at: datetime
    completed: int
    failed: int
    throttled: int
    snoozed: int
    crashed: int
    cancelled: int
    dead: int
    reaped: int
    enqueued: int | None  # None: not counted yet, or nobody did
    latency: Percentiles
    run_time: Percentiles
    pending: int | None
    scheduled: int | None
    in_flight: int | None
    retrying: int | None
    oldest: float | None
    estimated: bool | None


class MetricSeries(msgspec.Struct, frozen=True):
    """`points` of all that was asked for together; `groups` one by one, those with the most attempts first."""

    since: datetime
    until: datetime
    step: int
    points: list[SeriesPoint]
    groups: dict[str, list[SeriesPoint]] | None
    groups_left_out: int  # more than are answered at once


class PodSample(msgspec.Struct, frozen=True):
    """A pod in one step. CPU in cores that were kept busy; memory in bytes, the most of the step."""

    at: datetime
    workers: int
    connections: int
    cpu: dict[str, float]
    memory: dict[str, int]
    claims: Percentiles
    finalizes: Percentiles
    beats: Percentiles


class PodSeries(msgspec.Struct, frozen=True):
    """One pod, gone or not. There is no point for a step in which it did not report."""

    pod: int
    host: str
    pid: int
    points: list[PodSample]


class PodMetrics(msgspec.Struct, frozen=True):
    """The pods that reported last come first."""

    since: datetime
    until: datetime
    step: int
    pods: list[PodSeries]
    pods_left_out: int


class DatabaseSample(msgspec.Struct, frozen=True):
    """The database at the last look in a step, None: nobody looked or it does not say; and how long it took to answer
    all pods in it."""

    at: datetime
    size: int | None
    job_size: int | None
    history_size: int | None
    job_dead: int | None
    history_dead: int | None
    claims: Percentiles
    finalizes: Percentiles
    beats: Percentiles


class DatabaseMetrics(msgspec.Struct, frozen=True):
    """Its figures over time."""

    since: datetime
    until: datetime
    step: int
    points: list[DatabaseSample]


class OldTransaction(msgspec.Struct, frozen=True):
    """One that has been open for long: until it ends, no row that was deleted since can be cleaned up."""

    pid: int
    user: str | None
    application: str | None
    client: str | None
    state: str | None
    age: float  # seconds
    query: str | None  # the beginning of its last statement; not for a caller that sees some queues only


class DatabaseNow(msgspec.Struct, frozen=True):
    """How the database stands. None: it does not say."""

    at: datetime
    dialect: str
    version: str
    size: int  # bytes
    job_size: int | None
    history_size: int | None
    job_dead: int | None  # rows that are gone but take room
    history_dead: int | None
    connections: int | None
    connections_active: int | None
    connections_most: int | None  # that the server takes
    wal: int | None  # PostgreSQL: bytes written so far; SQLite: bytes of the log beside the file
    wal_held: int | None  # bytes that replication slots keep
    oldest_transaction: OldTransaction | None
    claims: Percentiles  # how long they took, over the last ten minutes
    finalizes: Percentiles
    beats: Percentiles
    warnings: list[str]  # sentences for people


class Span(NamedTuple):
    """A range that begins and ends with a step, seconds since 1970."""

    since: int
    until: int
    step: int

    def steps(self) -> range:
        """When each begins."""
        return range(self.since, self.until, self.step)


def when(at: float) -> datetime:
    """As the API writes times."""
    return datetime.fromtimestamp(at, UTC)


def span_of(query: SpanQuery, now: float) -> Span:
    """What is asked for, in steps. `Problem` 422 if that is too much, or nothing."""
    found = re.fullmatch(RANGE, query.range)
    if found is None:  # where the query was not checked
        raise Problem(422, "invalid-field", f"range is {query.range}; use 5m, 1h, 7d …", field="range")
    until = _stamp(query.until, "until") if query.until is not None else now
    back = int(query.range[:-1]) * UNITS[query.range[-1]]
    since = _stamp(query.since, "since") if query.since is not None else until - back
    if not 0 <= since < until <= now + 86_400:
        raise Problem(422, "invalid-field", "since must be before until, and until not after tomorrow", field="since")
    if until - since > LONGEST:
        raise Problem(422, "invalid-field", "the range is longer than 31 days", field="range")
    step = query.step or next((step for step in STEPS if (until - since) / step <= AIM), STEPS[-1])
    if step % MINUTE:
        raise Problem(422, "invalid-field", f"a step of {step} s is not whole minutes; use 60, 300 …", field="step")
    span = Span(int(since // step * step), int(-(-until // step) * step), step)
    if len(span.steps()) > MOST_POINTS + 1:
        raise Problem(
            422, "invalid-field", f"that are {len(span.steps())} points; {MOST_POINTS} are the most", field="step"
        )
    return span


def _stamp(at: datetime, field: str) -> float:
    if at.tzinfo is None:
        raise Problem(422, "invalid-field", f"{field} needs a time zone, such as 2026-01-31T12:00:00Z", field=field)
    return at.timestamp()


def _percentiles(histogram: Mapping[int, int]) -> Percentiles:
    of = Histogram(histogram)
    return Percentiles(of.count, of.quantile(0.5), of.quantile(0.95), of.quantile(0.99))


# -- queues ------------------------------------------------------------------------------------------------------------


def metric_series(call: ApiCall) -> MetricSeries:
    """`/metrics/series`"""
    query: SeriesQuery = call.query
    if query.queue is not None and not call.caller.sees(query.queue):
        raise Problem(404, "not-found", f"there is no queue {query.queue}")
    now = call.storage.now()
    span = span_of(query, now)
    found = call.storage.metrics.read(span.since, span.until, span.step, query.queue)
    points = [point for point in found if call.caller.sees(point.queue)]
    looked = {round(point.at) for point in call.storage.metrics.read_database(span.since, span.until, span.step)}
    groups, left_out = None, 0
    if query.by == "queue":
        named: dict[str, list[Point]] = {}
        for point in points:
            named.setdefault(point.queue, []).append(point)
        order = sorted(named, key=lambda name: (-sum(sum(p.counts.values()) for p in named[name]), name))
        left_out = max(0, len(order) - MOST_GROUPS)
        groups = {name: _filled(named[name], span, looked, now) for name in order[:MOST_GROUPS]}
    every = _filled(merged(points), span, looked, now)
    return MetricSeries(when(span.since), when(span.until), span.step, every, groups, left_out)


def _filled(points: Iterable[Point], span: Span, looked: set[int], now: float) -> list[SeriesPoint]:
    """A point for each step, where nothing was counted too. In a step in which the leader has looked at the database it
    has looked at every queue: one of which it says nothing has nothing."""
    known = {round(point.at): point for point in points}
    none = dict.fromkeys(COUNTERS, 0)
    filled = []
    for at in span.steps():
        point = known.get(at) or Point(at, "*", none, {}, {}, None, None)
        standing, enqueued = point.standing, point.enqueued
        if at in looked:
            standing = standing or Standing()
            if enqueued is None and at + span.step <= now - SETTLED:
                enqueued = 0
        filled.append(
            SeriesPoint(
                at=when(at),
                **point.counts,
                enqueued=enqueued,
                latency=_percentiles(point.latency),
                run_time=_percentiles(point.run_time),
                pending=standing and standing.pending,
                scheduled=standing and standing.scheduled,
                in_flight=standing and standing.in_flight,
                retrying=standing and standing.retrying,
                oldest=standing and standing.oldest,
                estimated=standing and standing.estimated,
            )
        )
    return filled


# -- pods --------------------------------------------------------------------------------------------------------------


def metric_pods(call: ApiCall) -> PodMetrics:
    """`/metrics/pods`"""
    span = span_of(call.query, call.storage.now())
    by_pod: dict[int, list[PodPoint]] = {}
    for point in call.storage.metrics.read_pods(span.since, span.until, span.step):
        by_pod.setdefault(point.pod, []).append(point)
    last = sorted(by_pod, key=lambda pod: (-by_pod[pod][-1].at, pod))
    pods = [_pod_series(pod, by_pod[pod], span.step) for pod in last[:MOST_GROUPS]]
    return PodMetrics(when(span.since), when(span.until), span.step, pods, max(0, len(last) - MOST_GROUPS))


def _pod_series(pod: int, points: list[PodPoint], step: int) -> PodSeries:
    samples = [
        PodSample(
            when(point.at),
            point.workers,
            point.connections,
            {name.removesuffix("_cpu"): seconds / step for name, seconds in point.cpu.items()},
            dict(point.memory),
            *(_percentiles(point.timings[name]) for name in ("claims", "finalizes", "beats")),
        )
        for point in points
    ]
    return PodSeries(pod, points[-1].host, points[-1].pid, samples)


# -- the database ------------------------------------------------------------------------------------------------------


def metric_database(call: ApiCall) -> DatabaseMetrics:
    """`/metrics/database`"""
    span = span_of(call.query, call.storage.now())
    metrics = call.storage.metrics
    figures = {round(point.at): point.figures for point in metrics.read_database(span.since, span.until, span.step)}
    timings: dict[int, dict[str, Histogram]] = {}
    for pod in metrics.read_pods(span.since, span.until, span.step):
        _merge_timings(timings.setdefault(round(pod.at), {}), pod)
    points = []
    for at in span.steps():
        known = figures.get(at)
        points.append(
            DatabaseSample(
                at=when(at),
                size=known and known.size,
                job_size=known and known.job_size,
                history_size=known and known.history_size,
                job_dead=known and known.job_dead,
                history_dead=known and known.history_dead,
                **_timings(timings.get(at, {})),
            )
        )
    return DatabaseMetrics(when(span.since), when(span.until), span.step, points)


def _merge_timings(into: dict[str, Histogram], pod: PodPoint) -> None:
    for name, counts in pod.timings.items():
        into.setdefault(name, Histogram()).merge(counts)


def _timings(of: Mapping[str, Histogram]) -> dict[str, Percentiles]:
    return {name: _percentiles(of.get(name, {})) for name in ("claims", "finalizes", "beats")}


def database_now(call: ApiCall) -> DatabaseNow:
    """`/database`"""
    metrics, now = call.storage.metrics, call.storage.now()
    figures, health = metrics.database(), metrics.health()
    timings: dict[str, Histogram] = {}
    for pod in metrics.read_pods(now - 600, now + MINUTE):
        _merge_timings(timings, pod)
    oldest = health.oldest
    if oldest is not None and call.caller.queues is not None:
        oldest = oldest._replace(query=None)
    return DatabaseNow(
        at=when(now),
        dialect=call.storage.dialect,
        version=health.version,
        size=figures.size,
        job_size=figures.job_size,
        history_size=figures.history_size,
        job_dead=figures.job_dead,
        history_dead=figures.history_dead,
        connections=health.connections,
        connections_active=health.active,
        connections_most=health.most_connections,
        wal=health.wal,
        wal_held=health.wal_held,
        oldest_transaction=OldTransaction(**oldest._asdict()) if oldest is not None else None,
        **_timings(timings),
        warnings=health.warnings(),
    )


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/metrics/series",
        scope="read",
        call=metric_series,
        summary="What became of jobs over time, with percentiles of latency and run time, and how queues stood.",
        query=SeriesQuery,
        answer=MetricSeries,
        problems=(404, 422),
    ),
    Endpoint(
        method="GET",
        path="/metrics/pods",
        scope="read",
        call=metric_pods,
        summary="CPU, memory, workers, connections and database times of each pod over time.",
        query=SpanQuery,
        answer=PodMetrics,
        problems=(422,),
    ),
    Endpoint(
        method="GET",
        path="/metrics/database",
        scope="read",
        call=metric_database,
        summary="Size and dead rows of the database over time, and how long it took to answer pods.",
        query=SpanQuery,
        answer=DatabaseMetrics,
        problems=(422,),
    ),
    Endpoint(
        method="GET",
        path="/database",
        scope="read",
        call=database_now,
        summary="How the database stands now: size, connections, the oldest transaction, warnings.",
        answer=DatabaseNow,
    ),
)
