"""Metrics on SQLite."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import orjson

from forge.storage.contract.metrics import (
    MINUTE,
    DatabaseFigures,
    DatabaseHealth,
    DatabasePoint,
    MetricReport,
    MetricStore,
    PodPoint,
    Point,
    ReportTaken,
    Standing,
)
from forge.storage.shared.metric_rows import added, as_pod_point, as_point, check_step, part_row, scaled, vitals_row
from forge.storage.sqlite.claims import BEFORE_ALL
from forge.storage.sqlite.drivers import SqliteConnection
from forge.storage.sqlite.facet import SqliteFacet

__all__ = ["SqliteMetricStore"]

_MINUTE = MINUTE * 1_000_000


class SqliteMetricStore(SqliteFacet, MetricStore):
    """See `MetricStore`."""

    due_epoch = 0.0

    def write(self, report: MetricReport) -> ReportTaken:
        with self._writing(durable=False) as (conn, now):
            params = {"writer": report.writer, "number": report.number, "now": now}
            fresh = bool(conn.rows(self._sql.take_report.sql, params))
            if fresh:
                key = {"minute": now // _MINUTE * _MINUTE, "pod": report.pod}
                for part in report.parts:
                    conn.rows(self._sql.write_part.sql, key | _flat(part_row(part)))
                if report.vitals is not None:
                    conn.rows(self._sql.write_vitals.sql, key | _flat(vitals_row(report.vitals)))
            return ReportTaken(fresh, now / 1e6)

    def connections(self) -> int:
        return self._reader.is_open + self._writer.is_open

    # -- for the leader ----------------------------------------------------------------------------------------

    def enqueued(self, minute: float, most: int) -> dict[str, int]:
        first, last = (int(at * 1000).to_bytes(6, "big") + bytes(10) for at in (minute, minute + MINUTE))
        params = {"first": first, "last": last, "most": most}

        def work(conn: SqliteConnection) -> list[list[tuple[Any, ...]]]:
            return [conn.rows(query.sql, params) for query in (self._sql.enqueued_live, self._sql.enqueued_past)]

        found = []
        for rows in self._reader.read(work):
            upto = max((int.from_bytes(last_id[:6], "big") for _, _, last_id in rows), default=0)
            found.append(scaled({queue: n for queue, n, _ in rows}, upto, minute, most))
        return added(*found)

    def standing(self, most: int) -> dict[str, Standing]:
        now = self._now()

        def work(conn: SqliteConnection) -> dict[str, Standing]:
            found: dict[str, Standing] = {}
            for queue, counts in conn.rows(self._sql.standing_waiting.sql, {"now": now, "most": most}):
                pending, scheduled, retrying, seen = orjson.loads(counts)
                if not seen:
                    continue  # there were some in lines
                oldest = max(0.0, (now - self._oldest(conn, queue)) / 1e6)
                found[queue] = Standing(pending, scheduled, 0, retrying, 0, oldest, seen >= most)
            for queue, n in conn.rows(self._sql.standing_running.sql, {"most": most}):
                found[queue] = found.get(queue, Standing())._replace(in_flight=n)
            for queue, n in conn.rows(self._sql.dead_jobs.sql, {"most": most}):
                found[queue] = found.get(queue, Standing())._replace(dead_jobs=n)
            return found

        return self._reader.read(work)

    def _oldest(self, conn: SqliteConnection, queue: str) -> int:
        """When the first of those that wait was due; it is the first of some priority, or of those in lines."""
        params: dict[str, Any] = {"queue": queue, "priority": BEFORE_ALL}
        times = [run_at for (run_at,) in conn.rows(self._sql.first_lined_due.sql, {"queue": queue})]
        while level := conn.rows(self._sql.next_priority.sql, params):
            params["priority"] = level[0][0]
            times.append(conn.rows(self._sql.first_due.sql, params)[0][0])
        return int(min(times))

    def database(self) -> DatabaseFigures:
        """How much of it is for which table is known only to who reads it all."""
        return DatabaseFigures(self._rows("database_pages")[0][0], None, None, None, None)

    def health(self) -> DatabaseHealth:
        """Who else has the file open, the file does not know."""
        version, file = self._rows("database_version")[0]
        try:
            wal = os.stat(f"{file}-wal").st_size if file else None
        except OSError:
            wal = 0
        return DatabaseHealth(version, wal=wal)

    def record(
        self,
        term: int,
        minute: float,
        standing: Mapping[str, Standing],
        database: DatabaseFigures,
        enqueued: Mapping[tuple[float, str], int],
    ) -> None:
        at = int(minute * 1e6)
        with self._led(term) as (conn, _):
            conn.rows(self._sql.record_database.sql, {"minute": at, **database._asdict()})
            for queue, stands in standing.items():
                conn.rows(self._sql.record_standing.sql, {"minute": at, "queue": queue, **stands._asdict()})
            for (then, queue), n in enqueued.items():
                conn.rows(self._sql.record_enqueued.sql, {"minute": int(then * 1e6), "queue": queue, "enqueued": n})

    def roll_up(self, term: int, older: float) -> int:
        with self._led(term) as (conn, now):
            oldest = conn.rows(self._sql.oldest_parts.sql, {"before": now - int((MINUTE + older) * 1e6)})
            if not oldest:
                return 0
            conn.rows(self._sql.roll_up_metrics.sql, {"minute": oldest[0][0]})
            return conn.change(self._sql.remove_parts.sql, {"minute": oldest[0][0]})

    def prune(self, term: int, keep: float, n: int = 1000) -> int:
        kinds = ("prune_metric", "prune_metric_pod", "prune_metric_database", "prune_metric_writer")
        with self._led(term) as (conn, now):
            params = {"before": now - int(keep * 1e6), "n": n}
            return sum(conn.change(getattr(self._sql, kind).sql, params) for kind in kinds)

    # -- for readers -------------------------------------------------------------------------------------------

    def read(self, since: float, until: float, step: int = MINUTE, queue: str | None = None) -> list[Point]:
        return [as_point(row) for row in self._range("read_metrics", since, until, step, queue=queue)]

    def read_pods(self, since: float, until: float, step: int = MINUTE) -> list[PodPoint]:
        return [as_pod_point(row) for row in self._range("read_pod_metrics", since, until, step)]

    def read_database(self, since: float, until: float, step: int = MINUTE) -> list[DatabasePoint]:
        rows = self._range("read_database_metrics", since, until, step)
        return [DatabasePoint(at, DatabaseFigures(*figures)) for at, *figures, _ in rows]

    def _range(self, name: str, since: float, until: float, step: int, **more: Any) -> list[tuple[Any, ...]]:
        span = {"since": int(since * 1e6), "until": int(until * 1e6), "step": check_step(step) * 1_000_000}
        return [(row[0] / 1e6, *row[1:]) for row in self._rows(name, **span, **more)]


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose histograms are text."""
    return {name: orjson.dumps(value).decode() if isinstance(value, dict) else value for name, value in row.items()}
