"""Schedules on SQLite."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from forge import codec
from forge.job import Line, NewJob, Receipt
from forge.storage.contract.schedules import FireTime, Firing, NewSchedule, Schedule
from forge.storage.shared.plans import run_plan
from forge.storage.shared.scheduling import Row, ScheduleChange, SqlSchedules, pauses_of
from forge.storage.shared.statements import Queries
from forge.storage.sqlite import rows
from forge.storage.sqlite.drivers import SqliteConnection
from forge.storage.sqlite.enqueue import enqueue_plan
from forge.storage.sqlite.facet import SqliteFacet

__all__ = ["SqliteScheduleStore"]

T = TypeVar("T")
_NAMES = tuple(field.name for field in dataclasses.fields(Schedule))


class _SqliteChange(ScheduleChange):
    def __init__(self, conn: SqliteConnection, now: int, sql: Queries) -> None:
        self._conn, self._now, self._sql = conn, now, sql

    def rows(self, query: str, /, **params: Any) -> Sequence[Row]:
        return self._conn.rows(getattr(self._sql, query).sql, params | {"now": self._now})

    def take_fire_times(self, name: str, firings: Sequence[Firing]) -> set[datetime]:
        return {
            each.at
            for each in firings
            if self.rows("take_fire_time", name=name, fire_time=rows.micros(each.at), job=each.job.id.bytes)
        }

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        return run_plan(
            enqueue_plan(self._sql, jobs, self._now), lambda step: self._conn.rows(step.query.sql, step.params)
        )


class SqliteScheduleStore(SqliteFacet, SqlSchedules):
    """See `ScheduleStore`."""

    def _change(self, work: Callable[[ScheduleChange], T], term: int | None = None) -> T:
        with self._led(term) as (conn, now):
            return work(_SqliteChange(conn, now, self._sql))

    def _read(self, query: str, /, **params: Any) -> Sequence[Row]:
        return self._rows(query, now=self._now(), **params)

    def _written(self, value: Any) -> Any:
        if isinstance(value, datetime):
            return rows.micros(value)
        if isinstance(value, UUID):
            return value.bytes
        return (rows.as_list(value) or "[]") if isinstance(value, list) else value

    def _columns(self, new: NewSchedule) -> dict[str, Any]:
        found = {field.name: getattr(new, field.name) for field in dataclasses.fields(NewSchedule)}
        return (
            found
            | {"payload": new.payload.decode(), "tags": rows.as_list(new.tags), "jitter": float(new.jitter)}
            | {"line": None if new.line is None else rows.as_list(new.line)}
        )

    def _schedule(self, row: Row) -> Schedule:
        found = dict(zip(_NAMES, row, strict=False))
        for name in ("next_at", "last_fire_time", "paused_at"):
            found[name] = None if found[name] is None else rows.as_datetime(found[name])
        found["payload"] = found["payload"].encode()
        found["pauses"] = pauses_of(found["pauses"])
        found["tags"] = tuple(codec.decode(found["tags"])) if found["tags"] else ()
        found["line"] = None if found["line"] is None else Line(*codec.decode(found["line"]))
        found["last_job"] = found["last_job"] and rows.as_uuid(found["last_job"])
        found |= {name: bool(found[name]) for name in ("paused", "last_skipped")}
        return Schedule(**found)

    def _fire_time(self, row: Row) -> FireTime:
        fire_time, fired_at, job, skipped = row
        return FireTime(rows.as_datetime(fire_time), rows.as_datetime(fired_at), rows.as_uuid(job), bool(skipped))

    def _time(self, value: Any) -> datetime:
        return rows.as_datetime(value)
