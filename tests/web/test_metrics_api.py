"""Figures over HTTP: as many points as fit a chart, percentiles of all jobs, and only what a caller may see."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from forge.config import Config
from forge.storage import Storage
from forge.storage.contract.leases import Holder
from forge.storage.contract.metrics import (
    DatabaseFigures,
    DatabaseHealth,
    MetricReport,
    OpenTransaction,
    PodFigures,
    QueueReport,
    Standing,
)
from forge.web.api.metrics import ENDPOINTS, SeriesQuery, SpanQuery, span_of
from forge.web.endpoint import ApiCall, Caller, Problem

pytestmark = pytest.mark.impl_free

LETTERS = QueueReport("letters", {"completed": 5, "failed": 2, "dead": 1}, {3: 4, 40: 3}, {7: 5, 8: 2})
PARCELS = QueueReport("parcels", {"completed": 90, "snoozed": 1}, {60: 90}, {9: 1})
VITALS = PodFigures(
    "north", 4711, 4, 7, {"master_cpu": 6.0}, {"master_rss": 1000}, {"claims": {30: 2}, "beats": {28: 10}}
)
EVERYTHING = Caller("local", "admin", "127.0.0.1")
CALLS = {endpoint.path: endpoint for endpoint in ENDPOINTS}


def ask(storage: Storage, path: str, caller: Caller = EVERYTHING, **query: Any) -> Any:
    """What a client would read."""
    endpoint = CALLS[path]
    checked = msgspec.convert(query, endpoint.query, strict=False) if endpoint.query is not None else None
    answer = endpoint.call(ApiCall(storage, Config(), caller, query=checked))
    assert isinstance(answer, endpoint.answer)
    return msgspec.json.decode(msgspec.json.encode(answer))


@pytest.mark.parametrize(
    ("span", "step", "most"),
    [("5m", 60, 6), ("1h", 60, 61), ("6h", 60, 361), ("24h", 300, 289), ("7d", 1800, 337), ("30d", 7200, 361)],
)
def test_a_range_has_as_many_points_as_a_chart_can_show(span: str, step: int, most: int) -> None:
    now = 1_800_000_017.5
    found = span_of(SpanQuery(range=span), now)
    assert found.step == step
    assert len(found.steps()) in (most, most - 1)
    assert found.since % step == found.until % step == 0
    assert found.until >= now


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (SpanQuery(range="5 weeks"), "range"),
        (SpanQuery(range="99d"), "range"),
        (SpanQuery(range="30d", step=60), "step"),
        (SpanQuery(step=90), "step"),
        (SpanQuery(since=datetime(2026, 1, 2, tzinfo=UTC), until=datetime(2026, 1, 1, tzinfo=UTC)), "since"),
        (SpanQuery(since=datetime(2026, 1, 2)), "since"),  # noqa: DTZ001 (as a client may write it)
        (SpanQuery(until=datetime(9999, 1, 1, tzinfo=UTC)), "since"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused_by_its_field(query: SpanQuery, field: str) -> None:
    with pytest.raises(Problem) as refused:
        span_of(query, datetime(2026, 1, 3, tzinfo=UTC).timestamp())
    assert (refused.value.status, refused.value.type, refused.value.more["field"]) == (422, "invalid-field", field)


def test_a_series_has_all_queues_together_and_each(storage: Storage) -> None:
    storage.metrics.write(MetricReport("w", 1, 1, [LETTERS, PARCELS], VITALS))
    answer = ask(storage, "/metrics/series", range="5m", by="queue")
    assert answer["step"] == 60
    assert len(answer["points"]) in (5, 6)
    assert sum(point["completed"] for point in answer["points"]) == 95
    assert list(answer["groups"]) == ["parcels", "letters"]
    assert answer["groups_left_out"] == 0
    point = next(point for point in answer["points"] if point["completed"])
    assert point["at"].endswith("Z")
    assert (point["failed"], point["dead"], point["snoozed"], point["pending"]) == (2, 1, 1, None)
    assert point["latency"]["count"] == 97
    letters = next(point for point in answer["groups"]["letters"] if point["completed"])
    assert letters["latency"]["p50"] < letters["latency"]["p95"] < point["latency"]["p95"]
    one = ask(storage, "/metrics/series", range="5m", queue="letters")
    assert sum(point["completed"] for point in one["points"]) == 5
    assert one["groups"] is None


def test_a_caller_sees_its_own_queues_only(storage: Storage) -> None:
    storage.metrics.write(MetricReport("w", 1, 1, [LETTERS, PARCELS], VITALS))
    caller = Caller("c", "read", "::1", frozenset({"letters"}))
    answer = ask(storage, "/metrics/series", caller, range="5m", by="queue")
    assert list(answer["groups"]) == ["letters"]
    assert sum(point["completed"] for point in answer["points"]) == 5
    with pytest.raises(Problem) as refused:
        ask(storage, "/metrics/series", caller, queue="parcels")
    assert refused.value.status == 404


def test_where_the_leader_has_looked_nothing_is_a_number(storage: Storage) -> None:
    term = storage.leases.acquire(Holder("a", None, "north", 1), 600.0).term
    assert term is not None
    now = storage.now() // 60 * 60
    stood = {"letters": Standing(7, 1, 2, 3, 0, 12.5)}
    storage.metrics.record(term, now - 600, stood, DatabaseFigures(10, 9, 8, 7, 6), {(now - 600, "letters"): 3})
    storage.metrics.record(term, now - 540, {}, DatabaseFigures(11, 9, 8, 7, 6), {})
    points = {point["at"]: point for point in ask(storage, "/metrics/series", range="15m")["points"]}
    first, second, third = (_text(now - back) for back in (600, 540, 480))
    assert (points[first]["pending"], points[first]["oldest"], points[first]["enqueued"]) == (7, 12.5, 3)
    assert (points[second]["pending"], points[second]["enqueued"]) == (0, 0)
    assert (points[third]["pending"], points[third]["enqueued"]) == (None, None)
    sizes = {point["at"]: point["size"] for point in ask(storage, "/metrics/database", range="15m")["points"]}
    assert (sizes[first], sizes[second], sizes[third]) == (10, 11, None)


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def test_pods_have_a_series_each(storage: Storage) -> None:
    storage.metrics.write(MetricReport("w", 1, 1, [], VITALS))
    storage.metrics.write(MetricReport("v", 1, 2, [], VITALS._replace(host="south", pid=815)))
    answer = ask(storage, "/metrics/pods", range="1h")
    assert [(pod["pod"], pod["host"], pod["pid"]) for pod in answer["pods"]] == [(1, "north", 4711), (2, "south", 815)]
    point = answer["pods"][0]["points"][0]
    assert point["cpu"] == {"master": 0.1}
    assert point["memory"] == {"master_rss": 1000}
    assert (point["claims"]["count"], point["finalizes"]["p50"]) == (2, None)


def test_the_database_says_how_it_stands(storage: Storage) -> None:
    storage.metrics.write(MetricReport("w", 1, 1, [], VITALS))
    answer = ask(storage, "/database")
    assert answer["size"] > 0
    assert answer["dialect"] == storage.dialect
    assert answer["version"][0].isdigit()
    assert answer["wal"] >= 0
    assert answer["claims"]["count"] == 2
    assert answer["warnings"] == []


def test_a_transaction_that_stays_open_is_shown_with_its_query(pg_url: str) -> None:
    from forge.storage import open_storage

    with open_storage(pg_url) as storage, psycopg.connect(pg_url) as conn:
        pid = conn.execute("select pg_backend_pid(), 'the culprit'").fetchall()[0][0]
        while (found := ask(storage, "/database")["oldest_transaction"]) is None:
            time.sleep(0.05)
        assert found["pid"] == pid
        assert "the culprit" in found["query"]
        assert found["state"] == "idle in transaction"
        limited = ask(storage, "/database", Caller("c", "read", "::1", frozenset({"letters"})))
        assert limited["oldest_transaction"]["query"] is None


def test_what_is_about_to_hurt_is_said_in_a_sentence() -> None:
    old = OpenTransaction(12, "ada", "psql", "local", "active", 4000.0, "select 1")
    health = DatabaseHealth("18.0", 95, 3, 100, 1, 20_000_000_000, old)
    assert [line.split(":")[0] for line in health.warnings()] == [
        "a transaction of pid 12 has been open for 4000 s",
        "95 of 100 connections are in use",
        "replication slots hold 20.0 GB of WAL",
    ]


def test_a_query_has_no_fields_that_it_does_not_know() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"rnage": "1h"}, SeriesQuery, strict=False)
    assert msgspec.convert({"since": "2026-01-01T00:00:00Z", "step": "120"}, SeriesQuery, strict=False) == SeriesQuery(
        since=datetime(2026, 1, 1, tzinfo=UTC), step=120
    )
    assert span_of(SpanQuery(since=datetime.now(UTC) - timedelta(days=2)), time.time()).step == 600
