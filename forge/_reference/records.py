"""Jobs and claims, many at once: made of rows and calls, and looked over."""

from __future__ import annotations

from typing import Any
from uuid import UUID, SafeUUID

import orjson

from forge._reference.json import check_json
from forge.job import Claim, NewJob


def claims(rows: list[tuple[Any, ...]], token: int, queue: str) -> list[Claim]:
    """Rows of `claim` as claims: ids from 16 bytes, payloads from text or its bytes, nulls as booleans."""
    new, put, unknown = object.__new__, object.__setattr__, SafeUUID.unknown
    number, make = int.from_bytes, tuple.__new__
    found = []
    for priority, run_at, data, kind, payload, attempt, most, timeout, keep, key in rows:
        id_ = new(UUID)
        put(id_, "int", number(data, "big"))
        put(id_, "is_safe", unknown)
        if type(payload) is str:
            payload = payload.encode()  # noqa: PLW2901 (the same thing)
        values = (priority, run_at, id_, token, queue, kind, payload, attempt, most, timeout, keep is not None,
                  key is not None)  # fmt: skip
        found.append(make(Claim, values))  # Claim() costs 0.3 µs more
    return found


def task_jobs(
    calls: list[Any],
    start: int,
    stop: int,
    shape: tuple[type, ...],
    ids: list[UUID],
    kind: str,
    rest: tuple[Any, ...],
    max_depth: int,
    limit: int,
) -> list[NewJob]:
    """Jobs of a task for calls[start:stop], each a tuple of arguments whose types are `shape`, with the id at its place
    and the same `rest` of the fields. Ends before the first call that is anything else or may not be stored."""
    made: list[NewJob] = []
    payload: dict[str, Any] = {"args": (), "kwargs": {}}
    for i in range(start, min(stop, len(calls))):
        call = calls[i]
        if type(call) is not tuple or tuple(map(type, call)) != shape:
            break
        payload["args"] = call
        if not check_json(payload, max_depth, limit):
            break
        data = orjson.dumps(payload)
        if len(data) > limit:
            break
        # orjson's own bytes sit in a block of a kilobyte or more; a copy is as large as its content.
        made.append(tuple.__new__(NewJob, (ids[i], kind, b"%b" % data, *rest)))
    return made


def survey(jobs: list[NewJob]) -> tuple[bool, bool, bool]:
    """Whether any of the jobs has a dedupe key, is to run at a time of its own, or is in a line."""
    keyed = timed = lined = False
    for job in jobs:
        keyed |= job.dedupe_key is not None
        timed |= job.run_at is not None or job.delay != 0
        lined |= job.line is not None
    return keyed, timed, lined
