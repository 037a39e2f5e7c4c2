"""Between PostgreSQL's rows and forge's values."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
import psycopg
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.pq.abc import PGresult
from psycopg.types.numeric import Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader

from forge import codec, fastpath
from forge.job import Claim, Job, Line, NewJob, Status
from forge.storage.postgres.wire import Int8Array, TextArray, UuidArray
from forge.storage.shared.low_water import Marks

__all__ = [
    "as_claims",
    "as_job",
    "bare_claim",
    "columns",
    "encoded",
    "fields",
    "lined_rows",
    "marks_params",
    "micros",
    "micros_since_2000",
    "packed_ids",
    "raw_rows",
    "text_array",
    "uuid_of",
]

_YEAR_2000 = datetime(2000, 1, 1, tzinfo=UTC)
_EPOCH_2000 = 946_684_800_000_000  # µs between 1970 and PostgreSQL's own epoch


def packed_ids(ids: Sequence[UUID]) -> UuidArray:
    return UuidArray(fastpath.uuid_array(ids))


def text_array(values: Iterable[str]) -> TextArray:
    return TextArray(fastpath.text_array([value.encode() for value in values]))


def marks_params(marks: Mapping[str, Marks]) -> dict[str, Any]:
    """Where to start in each priority of each queue, as the parameters of whoever reads the claim's index."""
    flat = [(queue, priority, *mark) for queue, by in marks.items() for priority, mark in by.items()]
    queues, priorities, run_ats, ids = zip(*flat, strict=True) if flat else ((), (), (), ())
    return {
        "mark_queues": text_array(queues),
        "mark_priorities": Int8Array(fastpath.int8_array(priorities)),
        "mark_run_ats": Int8Array(fastpath.int8_array(run_ats)),
        "mark_ids": packed_ids(ids),
    }


def uuid_of(value: Any) -> UUID:
    """asyncpg and some dialects answer with their own subclass or with text."""
    return value if type(value) is UUID else UUID(str(value))


def as_claims(result: PGresult, token: int, queue: str) -> list[Claim]:
    """What `claim` answered, in claim order (an UPDATE answers in the order of row addresses).

    Times and ids are left as the wire has them, a number and 16 bytes, which sort as what they mean does: with
    datetimes and UUIDs made by the driver a claim of 1000 took 2.5 ms, so it takes 1.3.
    """
    rows = raw_rows(result)
    rows.sort()
    return fastpath.claims(rows, token, queue)


def raw_rows(result: PGresult) -> list[tuple[Any, ...]]:
    """Rows with times, ids and payloads left as the wire has them."""
    loading = Transformer(_RAW)
    loading.set_pgresult(result)
    return loading.load_rows(0, result.ntuples, tuple)


def _raw_adapters() -> AdaptersMap:
    found = AdaptersMap(psycopg.adapters)
    for name in ("json", "uuid"):
        found.register_loader(name, ByteaBinaryLoader)
    found.register_loader("timestamptz", Int8BinaryLoader)
    return found


class _Raw:
    """What psycopg asks of a context."""

    connection = None
    adapters = _raw_adapters()


_RAW = _Raw()


def bare_claim(id_: UUID, token: int, keyed: bool, queue: str) -> Claim:
    """Just enough of a claim to end it."""
    return Claim(0, None, id_, token, queue, "", b"", 0, 0, 0, False, keyed)


def pushed_claim(text: str) -> Claim:
    """A job that came in a notification of `enqueue_one`."""
    head, _, payload = text.partition("\n")
    token, priority, micros_since_1970, id_, queue, kind, max_attempts, timeout, keep_result = orjson.loads(head)
    rest = (payload.encode(), 1, max_attempts, timeout, keep_result is not None, False)
    return Claim(priority, micros_since_1970 - _EPOCH_2000, UUID(id_), token, queue, kind, *rest)


def micros(job: NewJob, now: float) -> int:
    at = job.run_at.timestamp() if job.run_at else now + job.delay
    return round(at * 1_000_000) - _EPOCH_2000


def micros_since_2000(at: datetime) -> int:
    """A time as PostgreSQL has it, exactly."""
    return (at - _YEAR_2000) // timedelta(microseconds=1)


def fields(job: NewJob) -> dict[str, Any]:
    """One job as the parameters of `enqueue_one`."""
    return {
        "push": False,  # the transaction may be somebody else's, who would keep the offer and its pod's row locked
        "id": str(job.id),
        "queue": job.queue,
        "kind": job.kind,
        "payload": job.payload.decode(),
        "priority": job.priority,
        "run_at": job.run_at.timestamp() if job.run_at else None,
        "delay": float(job.delay),
        "max_attempts": job.max_attempts,
        "timeout": job.timeout,
        "keep_result": job.keep_result,
        "tags": _array_literal(job.tags) if job.tags else None,
    }


def encoded(job: NewJob) -> list[bytes | None]:
    """The same for a transaction of its own, as text of the wire and in the order of the statement's parameters; 20 µs
    less than one by one."""
    return [
        b"t",
        job.queue.encode(),
        b"%r" % job.run_at.timestamp() if job.run_at else None,
        b"%r" % job.delay,
        job.payload,
        job.kind.encode(),
        job.id.hex.encode(),
        b"%d" % job.priority,
        b"%d" % job.max_attempts,
        b"%d" % job.timeout,
        None if job.keep_result is None else b"%d" % job.keep_result,
        _array_literal(job.tags).encode() if job.tags else None,
    ]


def columns(jobs: Sequence[NewJob]) -> dict[str, list[Any]]:
    """Jobs as the arrays of `enqueue`, in types that every driver can send."""
    return {
        "ids": [str(job.id) for job in jobs],
        "queues": [job.queue for job in jobs],
        "kinds": [job.kind for job in jobs],
        "payloads": [job.payload.decode() for job in jobs],
        "priorities": [job.priority for job in jobs],
        "run_ats": [job.run_at.timestamp() if job.run_at else None for job in jobs],
        "delays": [float(job.delay) for job in jobs],
        "max_attempts": [job.max_attempts for job in jobs],
        "timeouts": [job.timeout for job in jobs],
        "dedupe_keys": [job.dedupe_key for job in jobs],
        "unique_fors": [job.unique_for for job in jobs],
        "keep_results": [job.keep_result for job in jobs],
        "tags": [_array_literal(job.tags) if job.tags else None for job in jobs],
        "lines": [job.line and job.line.name for job in jobs],
        "rate_limits": [job.line and job.line.rate_limit for job in jobs],
        "concurrency_keys": [job.line and job.line.concurrency_key for job in jobs],
        "concurrencies": [job.line and job.line.concurrency for job in jobs],
    }


def lined_rows(jobs: Sequence[NewJob], run_ats: Sequence[int] | None) -> bytes:
    """Rows of `copy_jobs_lined`: those of `copy_jobs_timed`, each with its line behind it."""
    assert run_ats is not None
    made: list[bytes] = []
    for job, run_at in zip(jobs, run_ats, strict=True):
        made += _LINED_HEAD, fastpath.copy_rows([job], [run_at])[2:], _line_fields(job.line)
    return b"".join(made)


_LINED_HEAD = struct.pack(">h", 14)


@functools.lru_cache(10_000)
def _line_fields(line: Line | None) -> bytes:
    fields: list[bytes | None] = [None] * 4
    if line is not None:
        texts = [None if text is None else text.encode() for text in line[:3]]
        fields = [*texts, None if line.concurrency is None else struct.pack(">h", line.concurrency)]
    return b"".join(struct.pack(">i", -1 if data is None else len(data)) + (data or b"") for data in fields)


def _array_literal(items: Iterable[str]) -> str:
    """A text[] as text: arrays of arrays must be rectangular, tags are not."""
    quoted = ('"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"' for item in items)
    return "{" + ",".join(quoted) + "}"


def as_job(row: Sequence[Any]) -> Job:
    """A row of `job_columns`, finished_at, result and progress. A result past its time is as good as not there."""
    id_, queue, kind, status, payload, priority, attempts, max_attempts, crashes, timeout, *rest = row
    run_at, enqueued_at, claimed_at, dedupe_key, unique_for, keep_result, tags, errors, cancelled_at, pod, *end = rest
    *line, now, finished_at, result, progress = end
    expired = keep_result is not None and finished_at is not None and (now - finished_at).total_seconds() > keep_result
    return Job(
        id=id_,
        queue=queue,
        kind=kind,
        status=Status(status),
        payload=codec.decode(payload),
        priority=priority,
        attempts=attempts,
        max_attempts=max_attempts,
        crashes=crashes,
        timeout=timeout,
        run_at=run_at.astimezone(UTC),
        enqueued_at=enqueued_at.astimezone(UTC),
        claimed_at=_utc(claimed_at),
        finished_at=_utc(finished_at),
        dedupe_key=dedupe_key,
        unique_for=unique_for,
        keep_result=keep_result,
        tags=tuple(tags or ()),
        errors=tuple(codec.decode(errors)) if errors else (),
        result=codec.decode(result) if result and not expired else None,
        cancel_requested_at=_utc(cancelled_at),
        pod=pod,
        progress=codec.decode(progress) if progress else None,
        line=None if line[0] is None else Line(*line),
    )


def _utc(value: datetime | None) -> datetime | None:
    return value and value.astimezone(UTC)
