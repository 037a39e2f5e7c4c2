"""Why PostgreSQL does not take an ending: somebody has locked its row, or it takes no writes at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from uuid import UUID

from forge import fastpath
from forge.job import Claim
from forge.storage.contract import Step
from forge.storage.postgres.database import PostgresConnection, PostgresDatabase, pipeline
from forge.storage.postgres.wire import UuidArray
from forge.storage.shared.statements import Queries

__all__ = ["impatience", "lock_holder", "locked", "try_writing"]

_PERHAPS = "perhaps "


def impatience(conn: PostgresConnection, queries: Queries, seconds: float) -> list[Step]:
    """What makes locks be waited for no longer than so. On a session of our own it is set once, and stays; behind a
    pooler it is for the caller to run, in the same transaction."""
    if conn.__dict__.get("forge_lock_wait") == seconds:
        return []
    behind_pooler = conn.prepare_threshold is None
    step = Step(queries.wait_for_locks, {"wait": f"{max(1, round(seconds * 1000))}ms", "local": behind_pooler})
    if behind_pooler:
        return [step]
    pipeline(conn, [step])
    conn.__dict__["forge_lock_wait"] = seconds
    return []


def locked(db: PostgresDatabase, queries: Queries, ids: Sequence[UUID]) -> set[UUID]:
    """Those of the jobs whose row, or the row of whose key, somebody has locked now."""
    step = Step(queries.locked_jobs, {"ids": UuidArray(fastpath.uuid_array(sorted(ids)))})
    return {row[0] for row in db.run(step)[0].fetchall()}


def lock_holder(db: PostgresDatabase, queries: Queries, claim: Claim) -> str | None:
    """Who has locked the job's row, as far as the row itself tells; else who may hold what else its end needs."""
    for words, query, params in (("", queries.lock_holder, {"id": claim.id}), (_PERHAPS, queries.lock_suspect, {})):
        if rows := db.run(Step(query, params))[0].fetchall():
            pid, application, state, seconds = rows[0]
            who = f"{application or 'no name'}, {state}, its transaction is {seconds:.0f} s old"
            return f"{words}process {pid} ({who})"
    return None


def try_writing(db: PostgresDatabase, queries: Queries, size: int) -> None:
    """See `Storage.try_writing`. Not compressible: it takes as much of the disk as it says."""
    steps = [Step(queries.try_history, {"result": os.urandom(size // 2).hex()}), Step(queries.try_job, {})]

    def work(conn: PostgresConnection) -> None:
        with conn.transaction(force_rollback=True):
            pipeline(conn, steps)

    db.attempt(work)
