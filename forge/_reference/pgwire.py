"""PostgreSQL's binary formats: rows of COPY, and arrays."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from forge.errors import InvalidJob
from forge.job import NewJob

UUID_OID, INT8_OID, TEXT_OID = 2950, 20, 25
_NULL = b"\xff\xff\xff\xff"  # a length of -1


def copy_rows(jobs: Sequence[NewJob], run_ats: Sequence[int] | None = None) -> bytes:
    """Rows of PostgreSQL's binary COPY, without its header and trailer.

    Columns: id, queue, kind, payload, priority, max_attempts, timeout, keep_result, tags; and run_at when `run_ats`
    gives one for each job, in microseconds since 2000-01-01 UTC. Other fields of a job are not looked at.
    """
    if run_ats is not None and len(run_ats) != len(jobs):
        raise ValueError("copy_rows needs as many run_ats as jobs")
    head = struct.pack(">hi", 9 if run_ats is None else 10, 16)
    names: dict[tuple[str, str], bytes] = {}  # most jobs of a batch share these
    tails: dict[tuple[Any, ...], bytes] = {}
    parts: list[bytes] = []
    for i, job in enumerate(jobs):
        name = job.queue, job.kind
        tail = job.priority, job.max_attempts, job.timeout, job.keep_result, job.tags
        if (packed_name := names.get(name)) is None:
            packed_name = names[name] = _field(name[0].encode()) + _field(name[1].encode())
        if (packed_tail := tails.get(tail)) is None:
            packed_tail = tails[tail] = _tail(*tail)
        parts += head, job.id.int.to_bytes(16, "big"), packed_name, _field(job.payload), packed_tail
        if run_ats is not None:
            parts.append(struct.pack(">iq", 8, run_ats[i]))
    return b"".join(parts)


def _field(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big", signed=True) + data


def _tail(priority: int, max_attempts: int, timeout: int, keep_result: int | None, tags: tuple[str, ...]) -> bytes:
    _check_range("priority", priority, 2**15)
    _check_range("max_attempts", max_attempts, 2**15)
    _check_range("timeout", timeout, 2**31)
    packed = struct.pack(">ihihii", 2, priority, 2, max_attempts, 4, timeout)
    if keep_result is None:
        packed += _NULL
    else:
        _check_range("keep_result", keep_result, 2**31)
        packed += struct.pack(">ii", 4, keep_result)
    return packed + (_field(text_array(tags)) if tags else _NULL)


def _check_range(field: str, value: int, end: int) -> None:
    if not -end <= value < end:
        raise InvalidJob(f"{field} is {value}; the database holds {-end} to {end - 1}")


def uuid_array(ids: Sequence[UUID]) -> bytes:
    """PostgreSQL's binary uuid[]."""
    return array_of(UUID_OID, [b"\0\0\0\x10" + found.int.to_bytes(16, "big") for found in ids])


def int8_array(values: Sequence[int]) -> bytes:
    """PostgreSQL's binary bigint[]."""
    pack = struct.Struct(">iq").pack
    return array_of(INT8_OID, [pack(8, value) for value in values])


def text_array(values: Sequence[str | bytes | None]) -> bytes:
    """PostgreSQL's binary text[]; bytes are UTF-8 already."""
    items, nulls = [], False
    for value in values:
        if value is None:
            nulls = True
            items.append(_NULL)
        else:
            items.append(_field(value if isinstance(value, bytes) else value.encode()))
    return array_of(TEXT_OID, items, nulls)


def array_of(oid: int, items: list[bytes], nulls: bool = False) -> bytes:
    """A binary array of items of this type, each with its length before it."""
    if not items:
        return struct.pack(">iii", 0, 0, oid)
    return struct.pack(">iiiii", 1, nulls, oid, len(items), 1) + b"".join(items)
