"""`forge metrics`: what became of jobs, minute by minute, and how long they waited and ran."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any

import click

from forge.cli.command import Command
from forge.cli.common import Cli, draw, duration, table
from forge.cluster.metrics import Histogram, merged
from forge.errors import UsageError
from forge.storage.contract.metrics import MINUTE, PodPoint, Point

__all__ = ["cores", "memory", "metrics", "seconds_of", "size"]

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
PARTS = (0.5, 0.95, 0.99)
HEAD = ("from", "enqueued", "done", "per s", "failed", "dead", "waiting", "latency p50", "p95", "p99",
        "run p50", "p95", "p99")  # fmt: skip


@click.command(cls=Command)
@click.argument("queue", metavar="[QUEUE]", required=False)
@click.option("--since", "span", default="1h", metavar="SPAN", help="how far back, such as 15m or 7d; default 1h")
@click.option("--step", "each", default="1m", metavar="SPAN", help="a row for each; default 1m")
def metrics(cli: Cli, queue: str | None, span: str, each: str) -> None:
    """Rates, failures, and percentiles of latency and run time, of one queue or of all together."""
    since, step = seconds_of(span, "--since"), seconds_of(each, "--step")
    storage = cli.storage()
    now = storage.now()
    first = (now - since) // step * step
    points = storage.metrics.read(first, now + MINUTE, step, queue)
    shown = points if queue is not None else merged(points)
    if cli.json:
        document: dict[str, Any] = {
            "since": _time(first),
            "step": step,
            "points": [_as_json(point) for point in points],
            "pods": [_pod_json(point) for point in storage.metrics.read_pods(first, now + MINUTE, step)],
            "database": [
                {"at": _time(point.at), **point.figures._asdict()}
                for point in storage.metrics.read_database(first, now + MINUTE, step)
            ],
        }
        cli.document(document)
    elif not shown:
        of = f" of queue {queue}" if queue is not None else ""
        cli.print(f"no figures{of} since {span} ago; pods write them while they run")
    else:
        draw(table(HEAD, (_row(point, step, since) for point in shown)))


def seconds_of(text: str, option: str) -> int:
    """`90s`, `5m`, `1h`, `2d`"""
    found = re.fullmatch(r"([1-9]\d{0,8})([smhd])", text)
    if found is None:
        raise UsageError(f"{option} is a number and s, m, h or d, such as 15m; not {text}")
    return int(found[1]) * UNITS[found[2]]


def _row(point: Point, step: int, since: int) -> tuple[object, ...]:
    clock = time.strftime("%H:%M" if since <= UNITS["d"] else "%m-%d %H:%M", time.localtime(point.at))
    waiting = "-"
    if point.standing is not None:
        waiting = f"{'~' * point.standing.estimated}{point.standing.pending}"
    return (
        clock,
        "-" if point.enqueued is None else point.enqueued,
        point.counts["completed"],
        f"{point.counts['completed'] / step:.1f}",
        *(point.counts["failed"], point.counts["dead"], waiting),
        *(_span(Histogram(point.latency).quantile(q)) for q in PARTS),
        *(_span(Histogram(point.run_time).quantile(q)) for q in PARTS),
    )


def _span(seconds: float | None) -> str:
    """In the unit a person would use, to two digits: no more is known."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.2g} ms" if seconds < 0.0995 else f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 9.95 else duration(seconds)


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _percentiles(histogram: Any) -> dict[str, Any]:
    """With the bucket's bounds: the percentile lies between them."""
    found = {f"p{100 * q:g}": Histogram(histogram).percentile(q) for q in PARTS}
    return {name: bounds and [bounds.low, bounds.high] for name, bounds in found.items()}


def _as_json(point: Point) -> dict[str, Any]:
    return {
        "at": _time(point.at),
        "queue": point.queue,
        "enqueued": point.enqueued,
        **point.counts,
        "latency": {**_percentiles(point.latency), "buckets": dict(point.latency)},
        "run_time": {**_percentiles(point.run_time), "buckets": dict(point.run_time)},
        "standing": point.standing and point.standing._asdict(),
    }


def _pod_json(point: PodPoint) -> dict[str, Any]:
    timings = {name: _percentiles(counts) for name, counts in point.timings.items()}
    return {**point._asdict(), "at": _time(point.at), "timings": timings}


def cores(points: list[PodPoint]) -> str:
    """How many a pod has kept busy, over its last minutes."""
    used = [sum(point.cpu.values()) for point in points if point.cpu]
    return f"{sum(used) / len(used) / MINUTE:.2f}" if used else "-"


def memory(points: list[PodPoint]) -> str:
    """What its processes have, memory that they share counted once where the system says."""
    for point in reversed(points):
        for kind in ("pss", "rss"):
            if found := [n for name, n in point.memory.items() if name.endswith(kind)]:
                return size(sum(found))
    return "-"


def size(n: int) -> str:
    """`85 MB`"""
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.0f} MB"
