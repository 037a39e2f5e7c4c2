"""Ending a claim on a connection of the caller's, in the caller's transaction."""

from __future__ import annotations

from typing import Any

from psycopg import RawCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from forge.errors import UsageError
from forge.job import Done, Ending
from forge.storage.contract import Step
from forge.storage.postgres.enqueue import enqueue_plan
from forge.storage.shared.endings import THROTTLE_GRACE_SECONDS
from forge.storage.shared.plans import run_plan
from forge.storage.shared.statements import Queries

__all__ = ["complete"]


def complete(conn: Any, queries: Queries, ending: Ending) -> bool:
    """See `Storage.complete_in`."""
    if type(ending.outcome) is not Done:
        raise UsageError(f"only a job that is Done can end in a transaction of the caller's, not {ending.outcome!r}")
    if conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
        raise UsageError("the connection has no transaction open; begin one, or use a connection without autocommit")
    claim = ending.claim
    # In types that every psycopg connection can send, whatever the caller has registered on it.
    ids = {"ids": [str(claim.id)]}
    params = {
        **ids,
        "claims": [claim.token],
        "results": [ending.result.decode() if ending.result is not None else None],
        "n": 1,
        "queues": [claim.queue],
        "grace": THROTTLE_GRACE_SECONDS,
    }
    with RawCursor(conn, row_factory=tuple_row) as cursor:

        def execute(step: Step) -> list[tuple[Any, ...]]:
            # Not prepared: planned for the tables as they are, on a connection whose life we do not know.
            cursor.execute(step.query.text("dollar"), step.query.args("dollar", step.params), prepare=False)
            return cursor.fetchall() if cursor.description else []

        if int(execute(Step(queries.finalize_done_results, params))[0][0]) != 1:
            return False
        if claim.keyed:
            execute(Step(queries.settle_keys, ids))
        if ending.children:
            run_plan(enqueue_plan(queries, ending.children), execute)
    return True
