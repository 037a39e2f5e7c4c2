"""Between figures and the rows that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from forge.errors import UsageError
from forge.storage.contract.metrics import (
    COUNTERS,
    CPU,
    MEMORY,
    MINUTE,
    TIMINGS,
    Histogram,
    PodFigures,
    PodPoint,
    Point,
    QueueReport,
    Standing,
)

__all__ = ["added", "as_histogram", "as_pod_point", "as_point", "check_step", "part_row", "scaled", "vitals_row"]


def part_row(part: QueueReport) -> dict[str, Any]:
    """A part as both databases take it: every counter by name."""
    counts = {name: int(part.counts.get(name, 0)) for name in COUNTERS}
    return {"queue": part.queue, **counts, "latency": _keyed(part.latency), "run_time": _keyed(part.run_time)}


def vitals_row(vitals: PodFigures) -> dict[str, Any]:
    """A pod's own figures likewise."""
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
