"""Values as PostgreSQL reads and writes them: what is sent in its binary formats, and what comes back."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
from psycopg.adapt import AdaptersMap, Buffer, Dumper, Transformer
from psycopg.pq import Format
from psycopg.pq.abc import PGresult
from psycopg.types.string import ByteaBinaryLoader

__all__ = ["Float8Array", "Int8Array", "TextArray", "UuidArray", "WireFormats", "parameter", "rows_of"]


class UuidArray(bytes):
    """A uuid[] in the wire's own format: 3x faster for the server to read than text."""


class Int8Array(bytes):
    """A bigint[] likewise."""


class Float8Array(bytes):
    """A float8[] likewise."""


class TextArray(bytes):
    """A text[] likewise."""


class _Packed(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> Buffer | None:
        return bytes(obj)


class _UuidArrayDumper(_Packed):
    oid = 2951


class _Int8ArrayDumper(_Packed):
    oid = 1016


class _Float8ArrayDumper(_Packed):
    oid = 1022


class _TextArrayDumper(_Packed):
    oid = 1009


def _adapters() -> AdaptersMap:
    """JSON stays text: payloads pass through undecoded."""
    found = AdaptersMap(psycopg.adapters)
    found.register_loader("json", ByteaBinaryLoader)
    found.register_dumper(UuidArray, _UuidArrayDumper)
    found.register_dumper(Int8Array, _Int8ArrayDumper)
    found.register_dumper(Float8Array, _Float8ArrayDumper)
    found.register_dumper(TextArray, _TextArrayDumper)
    return found


class WireFormats:
    """What psycopg asks of `context=`."""

    connection = None
    adapters = _adapters()


def rows_of(result: PGresult) -> list[tuple[Any, ...]]:
    """What a statement answered."""
    loading = Transformer(WireFormats())
    loading.set_pgresult(result)
    return loading.load_rows(0, result.ntuples, tuple)


def parameter(value: Any) -> tuple[bytes | None, int]:
    """A parameter as the server reads it, and whether that is binary."""
    kind = type(value)
    if kind is int:
        return b"%d" % value, 0
    if kind is str:
        return value.encode(), 0
    if kind is bool:
        return b"t" if value else b"f", 0
    if kind is UUID:
        return value.hex.encode(), 0
    if kind is float:
        return b"%r" % value, 0
    if value is None:
        return None, 0
    assert isinstance(value, bytes), value
    return bytes(value), 1
