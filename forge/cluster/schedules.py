"""What people do with schedules: make, change, pause, resume, run now, remove. For the API, shell and dashboard.

Every time is the database's. Nothing here needs a leader.
"""

from __future__ import annotations

import dataclasses
import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from forge.cluster.cron import FireTimes
from forge.config import suggest
from forge.errors import UsageError
from forge.fastpath import uuid7
from forge.job import NewJob, Receipt
from forge.storage import Storage
from forge.storage.contract.schedules import NewSchedule, Pause, Schedule, Seeded

__all__ = ["change", "find", "job_at", "now_of", "pause", "put", "remove", "resume", "run_now", "seed"]

# Remembered of a schedule that is paused and resumed while nobody leads; times between later ones are lost.
MOST_PAUSES = 100
_WHERE = {"config": "in forge.toml", "code": "in code"}


def now_of(storage: Storage) -> datetime:
    """The database's clock."""
    return datetime.fromtimestamp(storage.now(), UTC)


def seed(new: NewSchedule, now: datetime) -> Seeded:
    """The schedule with its first fire time: a new one does not fire at once. `UsageError` if it can never come due."""
    fire_time = FireTimes(new.expression, new.timezone).after(now)
    if fire_time is None:
        raise UsageError(f"schedule {new.expression!r} must be a schedule that ever comes")
    return Seeded(new, fire_time)


def job_at(schedule: NewSchedule, fire_time: datetime) -> NewJob:
    """The job of a fire time. It is the same however often it is made: its id, and the delay that jitter gives it, are
    made of the schedule's name and the fire time."""
    digest = hashlib.sha256(f"{schedule.name}\n{fire_time.astimezone(UTC).isoformat()}".encode()).digest()
    late = int.from_bytes(digest[16:24], "big") / 2**64 * schedule.jitter
    return _job(schedule, _id(fire_time, digest))._replace(run_at=fire_time + timedelta(seconds=late))


def _id(fire_time: datetime, digest: bytes) -> UUID:
    """A UUIDv7 of that time."""
    bits = int.from_bytes(digest[:10], "big")
    milliseconds = max(0, int(fire_time.timestamp() * 1000))
    return UUID(int=milliseconds << 80 | 7 << 76 | (bits >> 62 & 0xFFF) << 64 | 2 << 62 | bits & (1 << 62) - 1)


def _job(schedule: NewSchedule, id: UUID) -> NewJob:
    return NewJob(
        id,
        schedule.kind,
        schedule.payload,
        schedule.queue,
        schedule.priority,
        max_attempts=schedule.max_attempts,
        timeout=schedule.timeout,
        dedupe_key=schedule.dedupe_key,
        unique_for=schedule.unique_for,
        tags=(*schedule.tags, f"cron:{schedule.name}"),
        keep_result=schedule.keep_result,
        line=schedule.line,
    )


def find(storage: Storage, name: str) -> Schedule:
    """The schedule, or `UsageError`."""
    found = storage.schedules.get(name)
    if found is None:
        names = [each.name for each in storage.schedules.all()]
        raise UsageError(f"no schedule {name}{suggest(name, names)}   (forge schedules lists all)")
    return found


def put(storage: Storage, new: NewSchedule) -> Schedule:
    """Add a schedule, or change the one of that name."""
    stored = storage.schedules.put(seed(new, now_of(storage)))
    if stored.source != new.source:
        raise UsageError(f"schedule {new.name} is {_WHERE[stored.source]}; change it there, or pause it")
    return stored


def change(storage: Storage, name: str, **changes: Any) -> Schedule:
    """Some of what a schedule says, otherwise."""
    known = find(storage, name)
    said = {field.name: getattr(known, field.name) for field in dataclasses.fields(NewSchedule)}
    return put(storage, NewSchedule(**{**said, "source": "runtime", **changes}))


def pause(storage: Storage, name: str) -> Schedule:
    """Let it not come due until it is resumed."""
    if not storage.schedules.pause(name):
        find(storage, name)
    return find(storage, name)


def resume(storage: Storage, name: str) -> Schedule:
    """Let it come due again, from its next fire time on: what has passed meanwhile was not missed, it was paused. What
    came before the pause and has not fired is still to come. One that was disabled is tried again."""
    while True:
        known = find(storage, name)
        if known.state == "active":
            return known
        if storage.schedules.resume(known, *_going_on(known, now_of(storage))):
            return find(storage, name)


def _going_on(known: Schedule, now: datetime) -> tuple[datetime, list[Pause]]:
    """The fire time from which it goes on, and the pauses in between."""
    upcoming = seed(known, now).next_at
    assert upcoming is not None
    since, first = known.paused_at, known.next_at
    if known.disabled is not None or since is None or first is None or first > since:
        return upcoming, []
    fire_times = FireTimes(known.expression, known.timezone)
    pauses = list[Pause]()
    for pause in (*known.pauses, Pause(since, max(since, now))):
        if pause.until < first:
            continue  # it is behind us
        between = fire_times.after(pauses[-1].until) if pauses and len(pauses) < MOST_PAUSES else None
        if pauses and (between is None or between > pause.since):
            pauses[-1] = Pause(pauses[-1].since, pause.until)  # nothing came in between
        else:
            pauses.append(pause)
    return first, pauses


def run_now(storage: Storage, name: str) -> Receipt:
    """Enqueue its job now, whatever its fire times are. `Deduped`: the job of an earlier one is still active."""
    return storage.enqueue([_job(find(storage, name), uuid7())])[0]


def remove(storage: Storage, name: str, *, declared: bool = False) -> None:
    """Forget one that was made at run time, or `declared` by a project that is no more."""
    if not storage.schedules.remove(name, declared=declared):
        known = find(storage, name)
        of = f" of project {known.project}" * bool(known.project)
        raise UsageError(
            f"schedule {name} is {_WHERE.get(known.source, 'changing')}{of}; remove it there, or pause it; --declared "
            "removes it until a pod that declares it starts"
        )
