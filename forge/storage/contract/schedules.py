"""Schedules as stored, and what a storage does with them. When they come due is not its business: it is given fire
times.

Firing is one transaction: the fire times, which are unique, the jobs, and the next fire time. Whatever leaders believe,
a fire time fires once: not below its schedule's `next_at`, not where its row is there already, and the job's id is made
of it.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, Self
from uuid import UUID

from forge.job import DEFAULT_ATTEMPTS, DEFAULT_TIMEOUT, Line, NewJob

__all__ = [
    "CatchUp",
    "Due",
    "FireTime",
    "Fired",
    "Firing",
    "NewSchedule",
    "Pause",
    "Schedule",
    "ScheduleStore",
    "Seeded",
    "Source",
    "Synced",
]

CatchUp = Literal["one", "all", "none"]  # which fire times that were missed are made up for
Source = Literal["config", "code", "runtime"]  # who says so, and may change it

FIRE_TIMES_KEPT = 7 * 86_400.0  # seconds that those which have fired can be looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    """What is enqueued when; checked and encoded."""

    name: str
    expression: str
    kind: str
    payload: bytes = b"null"  # JSON text
    timezone: str = "UTC"
    queue: str = "default"
    priority: int = 0
    max_attempts: int = DEFAULT_ATTEMPTS
    timeout: int = DEFAULT_TIMEOUT
    keep_result: int | None = None
    dedupe_key: str | None = None  # a fire time is skipped while an active job has it
    unique_for: int | None = None
    tags: tuple[str, ...] = ()
    catch_up: CatchUp = "one"
    jitter: float = 0.0  # seconds: each job runs up to this long after its fire time
    source: Source = "runtime"
    line: Line | None = None  # of its jobs
    project: str = ""  # whose it is, if it is declared

    def as_message(self) -> dict[str, Any]:
        """For JSON."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(NewSchedule)}
        return found | {"payload": self.payload.decode(), "line": None if self.line is None else list(self.line)}

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> Self:
        """From JSON."""
        line = message.get("line")
        said = {**message, "payload": message["payload"].encode(), "tags": tuple(message["tags"])}
        return cls(**{**said, "line": None if line is None else Line(*line)})


class Pause(NamedTuple):
    """When a schedule was paused: fire times in (since, until] do not fire."""

    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(NewSchedule):
    """A schedule as stored. Times are UTC."""

    paused: bool = False
    disabled: str | None = None  # why it cannot come due
    next_at: datetime | None = None  # its next fire time; jitter comes on top
    last_fire_time: datetime | None = None
    last_job: UUID | None = None  # of that fire time; of a skipped one, the job that was still active
    last_skipped: bool = False
    revision: int = 1  # of what it says
    paused_at: datetime | None = None
    pauses: tuple[Pause, ...] = ()  # that are over, as long as fire times before them may not have fired

    @property
    def state(self) -> str:
        """In a word or few."""
        if self.disabled is not None:
            return f"disabled: {self.disabled}"
        return "paused" if self.paused else "active"


class Seeded(NamedTuple):
    """A schedule that is wanted, and its next fire time if it is new or says another time."""

    new: NewSchedule
    next_at: datetime | None
    disabled: str | None = None  # why there is none


class Firing(NamedTuple):
    """One fire time, and the job to be stored with it."""

    at: datetime
    job: NewJob


class Fired(NamedTuple):
    """What came of firing."""

    fire_times: tuple[datetime, ...] = ()  # that fired now, skipped ones included
    skipped: tuple[datetime, ...] = ()  # that found an earlier job still active


class Due(NamedTuple):
    """Schedules whose next fire time is past, by the database's clock."""

    now: datetime
    schedules: list[Schedule]
    soonest: datetime | None = None  # the next fire time of any, due or not


class Synced(NamedTuple):
    """What a sync changed, by name."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    taken_over: tuple[str, ...] = ()  # were set at run time before
    contested: tuple[str, ...] = ()  # were another project's before


class FireTime(NamedTuple):
    """One that has passed, and what came of it."""

    at: datetime
    fired_at: datetime
    job: UUID  # of a skipped one, the job that was still active
    skipped: bool


class ScheduleStore(abc.ABC):
    """The schedules of a storage. What takes a term is a leader's: `LostLease` if it is another's by now."""

    @abc.abstractmethod
    def all(self) -> list[Schedule]:
        """Every schedule, by name."""

    @abc.abstractmethod
    def get(self, name: str) -> Schedule | None:
        """The one of that name, if there is one."""

    @abc.abstractmethod
    def put(self, wanted: Seeded) -> Schedule:
        """Add a schedule, or change the one of that name; the answer is what is stored. One of the configuration or of
        code stays as it is, unless `wanted` is of that source too. Its next fire time stays unless its time changed."""

    @abc.abstractmethod
    def pause(self, name: str) -> bool:
        """Let it not come due. False: there is none."""

    @abc.abstractmethod
    def resume(self, schedule: Schedule, next_at: datetime, pauses: Sequence[Pause] = ()) -> bool:
        """Let it come due from this fire time on but for these pauses, also if it was disabled. False: it has changed
        or gone, or is not in the state any more that this says."""

    @abc.abstractmethod
    def remove(self, name: str, *, declared: bool = False) -> bool:
        """Forget one that was made at run time, or `declared` by anybody. False: there is none."""

    @abc.abstractmethod
    def sync(self, project: str, wanted: Sequence[Seeded]) -> Synced:
        """Have exactly these of what this project declares. Others stay unless their name is among them."""

    @abc.abstractmethod
    def fire_times(self, name: str, n: int = 20) -> list[FireTime]:
        """The latest that have passed, newest first."""

    @abc.abstractmethod
    def due(self, n: int = 100) -> Due:
        """Up to n that are due, the longest due first."""

    @abc.abstractmethod
    def fire(self, term: int, schedule: Schedule, firings: Sequence[Firing], next_at: datetime) -> Fired:
        """Store the fire times, their jobs and the next fire time, all or nothing. Nothing at all if the schedule has
        changed, is paused or gone; of the fire times, none that fired before."""

    @abc.abstractmethod
    def disable(self, term: int, schedule: Schedule, reason: str) -> bool:
        """It cannot come due, and why. False: it has changed meanwhile."""

    @abc.abstractmethod
    def prune(self, term: int, keep: float = FIRE_TIMES_KEPT, n: int = 1000) -> int:
        """Forget up to n fire times that passed more than `keep` seconds ago; how many."""
