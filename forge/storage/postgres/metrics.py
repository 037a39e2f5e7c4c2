"""Metrics on PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson

from forge.storage.contract import Step
from forge.storage.contract.metrics import (
    MINUTE,
    DatabaseFigures,
    DatabaseHealth,
    DatabasePoint,
    MetricReport,
    MetricStore,
    OpenTransaction,
    PodPoint,
    Point,
    ReportTaken,
    Standing,
)
from forge.storage.postgres.database import LONG, PostgresDatabase
from forge.storage.postgres.facet import PostgresFacet
from forge.storage.postgres.rows import marks_params, micros_since_2000
from forge.storage.shared.metric_rows import added, as_pod_point, as_point, check_step, part_row, scaled, vitals_row
from forge.storage.shared.statements import Queries

__all__ = ["PostgresMetricStore"]

MARGIN = timedelta(seconds=60)  # that a producer's transaction may take, for its jobs to be counted at the next look
SAMPLE = 4000  # pages of the table of jobs that are read for an estimate: 32 MB, some 80,000 jobs


class Looks:
    """Whole looks at all queues: when the next is due. They read every dead index entry that a snapshot keeps; then
    they take a fiftieth of the time, but one is made every ten minutes."""

    CHEAP, SHARE, MOST_APART = 0.05, 50, 600.0  # seconds, times, seconds

    def __init__(self) -> None:
        self._at = -self.MOST_APART  # monotonic
        self._cost = 0.0

    def due(self, now: float) -> bool:
        """Whether the look that begins now is to be a whole one."""
        return self._cost <= self.CHEAP or now - self._at >= min(self.SHARE * self._cost, self.MOST_APART)

    def note(self, began: float, ended: float) -> None:
        """One has been made."""
        self._cost, self._at = ended - began, ended


class PostgresMetricStore(PostgresFacet, MetricStore):
    """See `MetricStore`."""

    due_epoch = 946_684_800.0

    def __init__(self, db: PostgresDatabase, queries: Queries, connections: Callable[[], int]) -> None:
        super().__init__(db, queries)
        self._connections = connections
        self._fronts: dict[str, dict[int, tuple[int, UUID]]] = {}  # where queues began at the last look
        self._looks = Looks()

    def write(self, report: MetricReport) -> ReportTaken:
        parts = [part_row(part) for part in report.parts]
        params = {
            "writer": report.writer,
            "number": report.number,
            "pod": report.pod,
            "parts": _json(parts),
            "vitals": _json(vitals_row(report.vitals)) if report.vitals is not None else None,
        }
        return ReportTaken(*self._rows("write_metrics", **params)[0])

    def connections(self) -> int:
        return self._connections()

    # -- for the leader ----------------------------------------------------------------------------------------

    def enqueued(self, minute: float, most: int) -> dict[str, int]:
        first, last = (UUID(int=int(at * 1000) << 80) for at in (minute, minute + MINUTE))
        rows = self._by_index("enqueued_between", first=first, last=last, most=most)
        found = []
        for ended in (False, True):
            counts = {queue: n for past, queue, n, _ in rows if past is ended}
            upto = max((UUID(text).int >> 80 for past, _, _, text in rows if past is ended), default=0)
            found.append(scaled(counts, upto, minute, most))
        return added(*found)

    def standing(self, most: int) -> dict[str, Standing]:
        """A job that has come in front of where its queue began at the last look is counted at the next whole one."""
        oldest = self._look()
        fronts = {queue: dict(sorted(levels.items())) for queue, levels in self._fronts.items()}
        found: dict[str, Standing] = {}
        full = False
        rows = self._by_index("standing", most=most, **marks_params(fronts))
        for queue, pending, scheduled, in_flight, retrying, seen in rows:
            cut = seen >= most
            full = full or cut
            found[queue] = Standing(pending, scheduled, in_flight, retrying, 0, oldest.get(queue, 0.0), cut)
        if full:
            self._estimate(found)
        for queue, dead in self._by_index("dead_jobs", most=most):
            found[queue] = found.get(queue, Standing())._replace(dead_jobs=dead)
        return found

    def _look(self) -> dict[str, float]:
        """Find where queues begin, from where they did on; from the start if that is cheap or has not been done for
        long. Answers how long the oldest waiting job of each has been due."""
        began = time.monotonic()
        whole = self._looks.due(began)
        before = {} if whole else self._fronts
        oldest: dict[str, float] = {}
        fronts: dict[str, dict[int, tuple[int, UUID]]] = {queue: dict(levels) for queue, levels in before.items()}
        for queue, priority, run_at, id_, age, now in self._by_index("fronts", **marks_params(before)):
            if age is not None:
                oldest[queue] = max(oldest.get(queue, 0.0), age)
            if priority is not None:
                # Where there is none, the next look need not read what has come and gone until a while before now.
                nowhere = (micros_since_2000(now - MARGIN), UUID(int=0))
                first = (micros_since_2000(run_at), id_) if id_ is not None else nowhere
                fronts.setdefault(queue, {})[priority] = first
        self._fronts = fronts
        if whole:
            self._looks.note(began, time.monotonic())
        return oldest

    def _estimate(self, found: dict[str, Standing]) -> None:
        """Queues of which not all was read: from some pages of the table, taken at random."""
        pages = self._rows("pages_of_jobs")[0][0]
        share = min(1.0, SAMPLE / max(pages, 1))
        sample = {row[0]: row[1:] for row in self._rows("sample_standing", percent=100.0 * share)}
        for queue, known in found.items():
            if known.estimated:
                pending, scheduled, retrying = (round(n / share) for n in sample.get(queue, (0, 0, 0)))
                found[queue] = known._replace(
                    pending=max(pending, known.pending),
                    scheduled=max(scheduled, known.scheduled),
                    retrying=max(retrying, known.retrying),
                )

    def database(self) -> DatabaseFigures:
        return DatabaseFigures(*self._rows("database_figures")[0])

    def health(self) -> DatabaseHealth:
        oldest = [OpenTransaction(*row) for row in self._rows("oldest_transaction")]
        return DatabaseHealth(*self._one("database_health"))._replace(oldest=oldest[0] if oldest else None)

    def record(
        self,
        term: int,
        minute: float,
        standing: Mapping[str, Standing],
        database: DatabaseFigures,
        enqueued: Mapping[tuple[float, str], int],
    ) -> None:
        stood = [{"queue": queue, **each._asdict()} for queue, each in standing.items()]
        came = [{"minute": at, "queue": queue, "enqueued": n} for (at, queue), n in enqueued.items()]
        steps = [Step(self._queries.record_database, {"minute": minute, **database._asdict()})]
        if stood:
            steps.append(Step(self._queries.record_standing, {"minute": minute, "rows": _json(stood)}))
        if came:
            steps.append(Step(self._queries.record_enqueued, {"rows": _json(came)}))
        self._led_rows(term, *steps)

    def roll_up(self, term: int, older: float) -> int:
        return int(self._led_rows(term, self._step("roll_up_metrics", older=older))[0][0])

    def prune(self, term: int, keep: float, n: int = 1000) -> int:
        return int(self._led_rows(term, Step(self._queries.prune_metrics, {"keep": keep, "n": n}))[0][0])

    # -- for readers -------------------------------------------------------------------------------------------

    def read(self, since: float, until: float, step: int = MINUTE, queue: str | None = None) -> list[Point]:
        return [as_point(row) for row in self._range("read_metrics", since, until, step, queue=queue)]

    def read_pods(self, since: float, until: float, step: int = MINUTE) -> list[PodPoint]:
        return [as_pod_point(row) for row in self._range("read_pod_metrics", since, until, step)]

    def read_database(self, since: float, until: float, step: int = MINUTE) -> list[DatabasePoint]:
        rows = self._range("read_database_metrics", since, until, step)
        return [DatabasePoint(at, DatabaseFigures(*figures)) for at, *figures in rows]

    def _range(self, name: str, since: float, until: float, step: int, **more: Any) -> Sequence[tuple[Any, ...]]:
        params = {"since": since, "until": until, "step": check_step(step), **more}
        steps = self._step("take_your_time"), self._step(name, **params)
        return self._db.run(*steps, limit=LONG)[1].fetchall()


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
