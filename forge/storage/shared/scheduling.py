"""Schedules in SQL: the steps of each verb, the same on every database. What differs is how values are written."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

import orjson

from forge.job import Deduped, NewJob, Receipt
from forge.storage.contract.schedules import (
    FIRE_TIMES_KEPT,
    Due,
    Fired,
    FireTime,
    Firing,
    NewSchedule,
    Pause,
    Schedule,
    ScheduleStore,
    Seeded,
    Synced,
)

__all__ = ["ScheduleChange", "SqlSchedules", "pauses_of"]

T = TypeVar("T")
Row = Sequence[Any]

_SOURCES = ("config", "code", "runtime")


def pauses_of(text: str) -> tuple[Pause, ...]:
    """The pauses of a schedule, as they are stored."""
    return tuple(Pause(*map(datetime.fromisoformat, pause)) for pause in orjson.loads(text))


class ScheduleChange(abc.ABC):
    """A transaction that writes."""

    @abc.abstractmethod
    def rows(self, query: str, /, **params: Any) -> Sequence[Row]:
        """Run a named query."""

    @abc.abstractmethod
    def take_fire_times(self, name: str, firings: Sequence[Firing]) -> set[datetime]:
        """Write the fire times; those that were not there."""

    @abc.abstractmethod
    def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """Store jobs."""


class SqlSchedules(ScheduleStore):
    """The verbs of schedules as statements of a transaction; each database says how that is run."""

    @abc.abstractmethod
    def _change(self, work: Callable[[ScheduleChange], T], term: int | None = None) -> T:
        """Do it in one transaction; again if need be. With a term, only in that one: `LostLease`."""

    @abc.abstractmethod
    def _read(self, query: str, /, **params: Any) -> Sequence[Row]:
        """Run a query that changes nothing."""

    @abc.abstractmethod
    def _written(self, value: Any) -> Any:
        """A time, an id or a list of names as a parameter."""

    @abc.abstractmethod
    def _columns(self, new: NewSchedule) -> dict[str, Any]:
        """A schedule as the parameters of `put_schedule`."""

    @abc.abstractmethod
    def _schedule(self, row: Row) -> Schedule:
        """A row of `schedule_columns`, and more perhaps."""

    @abc.abstractmethod
    def _fire_time(self, row: Row) -> FireTime:
        """A row of `schedule_fire_times`."""

    @abc.abstractmethod
    def _time(self, value: Any) -> datetime:
        """A time as stored."""

    # -- anybody's ---------------------------------------------------------------------------------------------

    def all(self) -> list[Schedule]:
        return [self._schedule(row) for row in self._read("schedules")]

    def get(self, name: str) -> Schedule | None:
        found = self._read("schedule", name=name)
        return self._schedule(found[0]) if found else None

    def put(self, wanted: Seeded) -> Schedule:
        def work(change: ScheduleChange) -> Schedule:
            self._put(change, wanted, (wanted.new.source,))
            return self._schedule(change.rows("schedule", name=wanted.new.name)[0])

        return self._change(work)

    def _put(self, change: ScheduleChange, wanted: Seeded, over: Sequence[str]) -> bool:
        """Whether that changed anything."""
        columns = self._columns(wanted.new) | {"disabled": wanted.disabled, "next_at": self._written(wanted.next_at)}
        return bool(change.rows("put_schedule", over=self._written(list(over)), **columns))

    def pause(self, name: str) -> bool:
        return self._change(lambda change: bool(change.rows("pause_schedule", name=name)))

    def resume(self, schedule: Schedule, next_at: datetime, pauses: Sequence[Pause] = ()) -> bool:
        params = {
            "name": schedule.name,
            "revision": schedule.revision,
            "paused": schedule.paused,
            "paused_at": self._written(schedule.paused_at),
            "disabled": schedule.disabled,
            "next_at": self._written(next_at),
            "pauses": orjson.dumps([list(pause) for pause in pauses]).decode(),
        }
        return self._change(lambda change: bool(change.rows("resume_schedule", **params)))

    def remove(self, name: str, *, declared: bool = False) -> bool:
        return self._change(lambda change: bool(change.rows("remove_schedule", name=name, declared=declared)))

    def sync(self, project: str, wanted: Sequence[Seeded]) -> Synced:
        ours = {each.new.name: each._replace(new=replace(each.new, project=project)) for each in wanted}
        params = {"project": project, "names": self._written(list(ours))}

        def work(change: ScheduleChange) -> Synced:
            before = {row[0]: row[1:] for row in change.rows("lock_schedules", **params)}
            removed = change.rows("remove_declared", **params)
            put = [name for name, each in sorted(ours.items()) if self._put(change, each, _SOURCES)]
            known = [name for name in put if name in before]
            return Synced(
                added=tuple(name for name in put if name not in before),
                changed=tuple(known),
                removed=tuple(sorted(row[0] for row in removed)),
                taken_over=tuple(name for name in known if before[name][0] == "runtime"),
                contested=tuple(name for name in known if before[name][1] not in ("", project)),
            )

        return self._change(work)

    def fire_times(self, name: str, n: int = 20) -> list[FireTime]:
        return [self._fire_time(row) for row in self._read("schedule_fire_times", name=name, n=n)]

    def due(self, n: int = 100) -> Due:
        found = self._read("due_schedules", n=n)
        soonest, now = found[0][-2:]
        return Due(
            self._time(now),
            [self._schedule(row) for row in found if row[0] is not None],
            None if soonest is None else self._time(soonest),
        )

    # -- a leader's --------------------------------------------------------------------------------------------

    def fire(self, term: int, schedule: Schedule, firings: Sequence[Firing], next_at: datetime) -> Fired:
        def work(change: ScheduleChange) -> Fired:
            standing = change.rows("lock_schedule", name=schedule.name, revision=schedule.revision)
            if not standing:
                return Fired()
            since = self._time(standing[0][0])
            free = change.take_fire_times(schedule.name, [each for each in firings if each.at >= since])
            taken = [each for each in firings if each.at in free]
            receipts = change.enqueue([each.job for each in taken]) if taken else []
            fired = [
                (each.at, receipt.id, isinstance(receipt, Deduped))
                for each, receipt in zip(taken, receipts, strict=True)
            ]
            for fire_time, job, skipped in fired:
                if skipped:
                    params = {"fire_time": self._written(fire_time), "job": self._written(job)}
                    change.rows("skip_fire_time", name=schedule.name, **params)
            last = dict(zip(("fire_time", "job", "skipped"), fired[-1] if fired else (None,) * 3, strict=True))
            params = {key: self._written(value) for key, value in {**last, "next_at": next_at}.items()}
            change.rows("advance_schedule", name=schedule.name, **params)
            return Fired(tuple(each[0] for each in fired), tuple(each[0] for each in fired if each[2]))

        return self._change(work, term)

    def disable(self, term: int, schedule: Schedule, reason: str) -> bool:
        params = {"name": schedule.name, "revision": schedule.revision, "reason": reason}
        return self._change(lambda change: bool(change.rows("disable_schedule", **params)), term)

    def prune(self, term: int, keep: float = FIRE_TIMES_KEPT, n: int = 1000) -> int:
        return self._change(lambda change: len(change.rows("prune_fire_times", keep=float(keep), n=n)), term)
