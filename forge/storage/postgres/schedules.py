"""Schedules on PostgreSQL."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import orjson

from forge.job import Line, NewJob, Receipt
from forge.storage.contract import Step
from forge.storage.contract.schedules import FireTime, Firing, NewSchedule, Schedule
from forge.storage.postgres.database import PostgresConnection, pipeline
from forge.storage.postgres.enqueue import enqueue_plan
from forge.storage.postgres.facet import PostgresFacet
from forge.storage.postgres.rows import uuid_of
from forge.storage.shared.plans import run_plan
from forge.storage.shared.scheduling import Row, ScheduleChange, SqlSchedules, pauses_of
from forge.storage.shared.statements import Queries

__all__ = ["PostgresScheduleStore"]

T = TypeVar("T")
_NAMES = tuple(field.name for field in dataclasses.fields(Schedule))


class _PostgresChange(ScheduleChange):
    def __init__(self, conn: PostgresConnection, queries: Queries) -> None:
        self._conn, self._queries = conn, queries

    def rows(self, query: str, /, **params: Any) -> Sequence[Row]:
        return pipeline(self._conn, [Step(getattr(self._queries, query), params)])[0].fetchall()

    def take_fire_times(self, name: str, firings: Sequence[Firing]) -> set[datetime]:
        fire_times, jobs = [each.at for each in firings], [each.job.id for each in firings]
        return {
            row[0].astimezone(UTC) for row in self.rows("take_fire_times", name=name, fire_times=fire_times, jobs=jobs)
        }

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        # Planned by index: with a plan made while the table was empty, ids would be looked for in the whole backlog.
        self.rows("plan_by_index", local=True)
        return run_plan(enqueue_plan(self._queries, jobs), lambda step: pipeline(self._conn, [step])[0].fetchall())


class PostgresScheduleStore(PostgresFacet, SqlSchedules):
    """See `ScheduleStore`."""

    def _change(self, work: Callable[[ScheduleChange], T], term: int | None = None) -> T:
        return self._led(term, lambda conn: work(_PostgresChange(conn, self._queries)))

    def _read(self, query: str, /, **params: Any) -> Sequence[Row]:
        return self._rows(query, **params)

    def _written(self, value: Any) -> Any:
        return value

    def _columns(self, new: NewSchedule) -> dict[str, Any]:
        found = {field.name: getattr(new, field.name) for field in dataclasses.fields(NewSchedule)}
        return (
            found
            | {"payload": new.payload.decode(), "tags": list(new.tags) or None, "jitter": float(new.jitter)}
            | {"line": None if new.line is None else orjson.dumps(list(new.line)).decode()}
        )

    def _schedule(self, row: Row) -> Schedule:
        found = dict(zip(_NAMES, row, strict=False))
        for name in ("next_at", "last_fire_time", "paused_at"):
            found[name] = found[name] and self._time(found[name])
        found["pauses"] = pauses_of(found["pauses"])
        found["tags"] = tuple(found["tags"] or ())
        found["line"] = None if found["line"] is None else Line(*orjson.loads(found["line"]))
        return Schedule(**found)

    def _fire_time(self, row: Row) -> FireTime:
        fire_time, fired_at, job, skipped = row
        return FireTime(self._time(fire_time), self._time(fired_at), uuid_of(job), skipped)

    def _time(self, value: Any) -> datetime:
        found: datetime = value.astimezone(UTC)
        return found
