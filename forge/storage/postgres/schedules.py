"""Schedules on PostgreSQL."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import orjson

from forge.job import Line, NewJob, Receipt
from forge.storage.contract import Plan, Step, run_plan
from forge.storage.postgres.connection import Connection, Database, pipeline
from forge.storage.postgres.leases import led
from forge.storage.postgres.rows import uuid_of
from forge.storage.schedules import Firing, NewSchedule, Schedule, Slot
from forge.storage.scheduling import Change, Row, SqlSchedules, pauses_of
from forge.storage.statements import Queries

__all__ = ["PostgresSchedules"]

T = TypeVar("T")
_NAMES = tuple(field.name for field in dataclasses.fields(Schedule))
Plans = Callable[[Sequence[NewJob]], Plan]


class _Transaction(Change):
    def __init__(self, conn: Connection, queries: Queries, plan: Plans) -> None:
        self._conn, self._queries, self._plan = conn, queries, plan

    def rows(self, query: str, /, **params: Any) -> Sequence[Row]:
        return pipeline(self._conn, [Step(getattr(self._queries, query), params)])[0].fetchall()

    def take_slots(self, name: str, firings: Sequence[Firing]) -> set[datetime]:
        slots, jobs = [each.slot for each in firings], [each.job.id for each in firings]
        return {row[0].astimezone(UTC) for row in self.rows("take_slots", name=name, slots=slots, jobs=jobs)}

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        # Planned by index: with a plan made while the table was empty, ids would be looked for in the whole backlog.
        self.rows("plan_by_index", local=True)
        return run_plan(self._plan(jobs), lambda step: pipeline(self._conn, [step])[0].fetchall())


class PostgresSchedules(SqlSchedules):
    """See `Schedules`."""

    def __init__(self, db: Database, queries: Queries, plan: Plans) -> None:
        self._db, self._queries, self._plan = db, queries, plan

    def _change(self, work: Callable[[Change], T], term: int | None = None) -> T:
        return led(self._db, self._queries, term, lambda conn: work(_Transaction(conn, self._queries, self._plan)))

    def _read(self, query: str, /, **params: Any) -> Sequence[Row]:
        return self._db.run(Step(getattr(self._queries, query), params))[0].fetchall()

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
        for name in ("next_at", "last_slot", "paused_at"):
            found[name] = found[name] and self._time(found[name])
        found["pauses"] = pauses_of(found["pauses"])
        found["tags"] = tuple(found["tags"] or ())
        found["line"] = None if found["line"] is None else Line(*orjson.loads(found["line"]))
        return Schedule(**found)

    def _slot(self, row: Row) -> Slot:
        slot, fired_at, job, skipped = row
        return Slot(self._time(slot), self._time(fired_at), _uuid(job), skipped)

    def _time(self, value: Any) -> datetime:
        found: datetime = value.astimezone(UTC)
        return found


def _uuid(value: Any) -> UUID:
    return uuid_of(value)
