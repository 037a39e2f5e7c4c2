"""Storing jobs on PostgreSQL: one by a statement of its own, many by COPY, those with keys by one statement for all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from forge.job import Deduped, Enqueued, NewJob, Receipt
from forge.storage.contract.statements import Plan, Step
from forge.storage.contract.storage import Storage
from forge.storage.postgres.bulk import Bulk
from forge.storage.postgres.database import PostgresConnection, bare, pipeline
from forge.storage.postgres.facet import PostgresFacet
from forge.storage.postgres.rows import columns, encoded, fields, uuid_of
from forge.storage.shared.plans import run_plan
from forge.storage.shared.statements import Queries

__all__ = ["PostgresEnqueue", "enqueue_plan"]


class PostgresEnqueue(PostgresFacet, Storage):
    """See `Storage`."""

    def enqueue(self, jobs: Iterable[NewJob]) -> list[Receipt]:
        if isinstance(jobs, list) and len(jobs) == 1 and jobs[0].dedupe_key is None and jobs[0].line is None:
            values = encoded(jobs[0])
            self._db.attempt(lambda conn: bare(conn, self._queries.enqueue_one, values))
            return [Enqueued(jobs[0].id)]
        bulk = Bulk(self._db, self._queries, jobs)
        receipts = bulk.store()
        return receipts if receipts is not None else self._insert(bulk.all())

    def _insert(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """By statements; in one transaction where there may be several. Planned by index: with a plan made while the
        table was empty, each looked for its ids in the whole backlog."""
        several = any(job.on_conflict != "keep" for job in jobs)
        settle = self._step("plan_by_index", local=True)

        def work(conn: PostgresConnection) -> list[Receipt]:
            def execute(step: Step) -> list[tuple[Any, ...]]:
                return pipeline(conn, (settle, step))[1].fetchall()

            if not several:
                return run_plan(enqueue_plan(self._queries, jobs), execute)
            with conn.transaction():
                return run_plan(enqueue_plan(self._queries, jobs), execute)

        return self._db.attempt(work)

    def enqueue_plan(self, jobs: Sequence[NewJob]) -> Plan:
        return enqueue_plan(self._queries, jobs)


def enqueue_plan(queries: Queries, jobs: Sequence[NewJob]) -> Plan:
    """See `Storage.enqueue_plan`."""
    if len(jobs) == 1 and jobs[0].dedupe_key is None and jobs[0].line is None:
        yield Step(queries.enqueue_one, fields(jobs[0]))
        return [Enqueued(jobs[0].id)]
    owner: dict[UUID, UUID] = {}
    waiting = list(jobs)
    while waiting:
        rows = yield Step(queries.enqueue, columns(waiting))
        owner |= {waiting[row[0] - 1].id: uuid_of(row[1]) for row in rows if row[1] is not None}
        # No owner yet: a racing producer took the key after our statement began. Now we can see it.
        waiting = [job for job in waiting if job.id not in owner]
    for job in jobs:
        if owner[job.id] != job.id and job.on_conflict != "keep":
            yield _conflict(queries, job, owner[job.id])
    return [Enqueued(job.id) if owner[job.id] == job.id else Deduped(owner[job.id]) for job in jobs]


def _conflict(queries: Queries, job: NewJob, owner: UUID) -> Step:
    if job.on_conflict == "replace":
        return Step(queries.replace_payload, {"id": str(owner), "payload": job.payload.decode()})
    at = job.run_at.timestamp() if job.run_at else None
    return Step(queries.push_run_at, {"id": str(owner), "run_at": at, "delay": job.delay})
