"""Between forge's values and SQLite's: ids are 16 bytes, times microseconds since 1970, lists JSON text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, SafeUUID

import orjson

from forge import codec, fastpath
from forge.codec import clean_text
from forge.job import Claim, Job, Line, NewJob, Pod, QueueSettings, Status
from forge.storage.shared.endings import ERRORS_KEPT

__all__ = [
    "JOB_PARAMS",
    "add_error",
    "after",
    "as_datetime",
    "as_job",
    "as_list",
    "as_pod",
    "as_queue",
    "as_uuid",
    "claims",
    "job_params",
    "lined_params",
    "micros",
    "run_at",
    "written",
]

# What `job_params` answers, by name.
JOB_PARAMS = ("id", "queue", "kind", "payload", "priority", "run_at", "now", "max_attempts", "timeout", "dedupe_key",
              "unique_for", "keep_result", "tags")  # fmt: skip
# What it has behind them for `insert_lined_job`.
_LINE_PARAMS = ("line", "rate_limit", "concurrency_key", "concurrency")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND  # the last time that can be read back


_new, _put, _number, _UNKNOWN = object.__new__, object.__setattr__, int.from_bytes, SafeUUID.unknown


def as_uuid(data: bytes) -> UUID:
    """An id as stored."""
    # UUID() checks its arguments for 0.9 µs; its slots are set directly, as its own __init__ does in the end.
    found = _new(UUID)
    _put(found, "int", _number(data, "big"))
    _put(found, "is_safe", _UNKNOWN)
    return found


def as_datetime(at: int) -> datetime:
    """A time as stored."""
    return _EPOCH + timedelta(microseconds=at)


def micros(at: datetime) -> int:
    """A time, as stored."""
    return (at - _EPOCH) // _MICROSECOND


def after(now: int, seconds: float) -> int:
    """The time `seconds` after `now`, as stored; one past the calendar's end is its end."""
    return now + round(min(seconds * 1e6, _LAST - now))


def as_list(items: Iterable[Any]) -> str | None:
    """A list as JSON text; an empty one is null."""
    found = list(items)
    return orjson.dumps(found).decode() if found else None


def run_at(job: NewJob, now: int) -> int:
    """When a new job may run."""
    if job.run_at is not None:
        return micros(job.run_at)
    return after(now, job.delay) if job.delay else now


def job_params(job: NewJob, now: int) -> tuple[Any, ...]:
    """The parameters of `insert_job` in the order of its question marks (the id stands there twice)."""
    id_ = job.id.bytes
    return (
        id_, job.queue, job.kind, job.payload.decode(), job.priority, run_at(job, now), now, job.max_attempts,
        job.timeout, job.dedupe_key, job.unique_for, job.keep_result, as_list(job.tags) if job.tags else None, id_,
    )  # fmt: skip


def lined_params(job: NewJob, now: int) -> dict[str, Any]:
    """The parameters of `insert_lined_job`."""
    assert job.line is not None
    found = dict(zip(JOB_PARAMS, job_params(job, now), strict=False))
    return found | dict(zip(_LINE_PARAMS, job.line, strict=True))


def claims(rows: list[tuple[Any, ...]], token: int, queue: str) -> list[Claim]:
    """Rows of `claim` as claims, in claim order (an UPDATE answers in its own). 16 bytes sort as their UUID does."""
    rows.sort()
    return fastpath.claims(rows, token, queue)


def written(now: int) -> str:
    """A time as it stands in JSON."""
    return f"{as_datetime(now):%Y-%m-%dT%H:%M:%S.%f}Z"


def add_error(errors: str | None, now: int, attempt: int, message: str, traceback: str | None) -> str:
    """A job's `errors` with one more; the oldest make room."""
    entry = {
        "at": written(now),
        "attempt": attempt,
        "message": clean_text(message),
        "traceback": traceback and clean_text(traceback),
    }
    return orjson.dumps([*(codec.decode(errors) if errors else ()), entry][-ERRORS_KEPT:]).decode()


def as_job(row: Sequence[Any], now: int) -> Job:
    """A row of `get_live`, `get_ended` or a listing."""
    (id_, queue, kind, status, payload, priority, attempts, max_attempts, crashes, timeout, run, enqueued, claimed,
     dedupe_key, unique_for, keep_result, tags, errors, cancelled, pod, *line, finished, result,
     progress) = row  # fmt: skip
    expired = keep_result is not None and finished is not None and now - finished > keep_result * 1_000_000
    return Job(
        id=as_uuid(id_), queue=queue, kind=kind, status=Status(status), payload=codec.decode(payload),
        priority=priority, attempts=attempts, max_attempts=max_attempts, crashes=crashes, timeout=timeout,
        run_at=as_datetime(run), enqueued_at=as_datetime(enqueued), claimed_at=_time(claimed),
        finished_at=_time(finished), dedupe_key=dedupe_key, unique_for=unique_for, keep_result=keep_result,
        tags=tuple(codec.decode(tags)) if tags else (), errors=tuple(codec.decode(errors)) if errors else (),
        result=codec.decode(result) if result and not expired else None, cancel_requested_at=_time(cancelled), pod=pod,
        progress=codec.decode(progress) if progress else None, line=None if line[0] is None else Line(*line),
    )  # fmt: skip


def as_queue(row: Sequence[Any]) -> QueueSettings:
    """A row of `queues`."""
    name, workers, paused, backoff, base, most, throttle, done_days, dead_days, attempts, until = row
    return QueueSettings(
        name, workers, bool(paused), bool(backoff), base, most, throttle, done_days, dead_days, attempts, _time(until)
    )


def as_pod(row: Sequence[Any]) -> Pod:
    """A row of `pods`."""
    id_, name, host, pid, queues, started, beat, *rest = row
    return Pod(id_, name, host, pid, tuple(codec.decode(queues)), as_datetime(started), as_datetime(beat), *rest)


def _time(at: int | None) -> datetime | None:
    return None if at is None else as_datetime(at)
