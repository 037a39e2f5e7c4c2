"""Whether SQLite takes endings at all. Nobody else can lock a single row: the file has one lock, which all wait for."""

from __future__ import annotations

import contextlib
import os

from forge.storage.shared.statements import Queries
from forge.storage.sqlite.facet import Writing

__all__ = ["try_writing"]

_SMALLEST_TRY = 262_144  # bytes
_PAGES_KEPT = 10  # in memory, of a transaction that is to reach the disk although it is undone


class _Undone(Exception):
    """Ends a transaction that is not to be committed."""


def try_writing(writing: Writing, sql: Queries, size: int) -> None:
    """See `Storage.try_writing`. A transaction that is undone is written nowhere while it fits into the cache: so this
    one has a small cache, and more than fits in there."""
    with contextlib.suppress(_Undone), writing as (conn, _):
        ((before,),) = conn.rows("pragma cache_size")
        conn.rows(f"pragma cache_size = {_PAGES_KEPT}")
        try:
            conn.rows(sql.try_history.sql, {"result": f'"{os.urandom(max(size, _SMALLEST_TRY) // 2).hex()}"'})
        finally:
            conn.rows(f"pragma cache_size = {before}")
        raise _Undone
