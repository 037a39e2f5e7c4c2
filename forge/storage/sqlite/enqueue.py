"""Storing jobs on SQLite: in one transaction, without keys by few statements for all, with keys job by job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forge.job import Deduped, Enqueued, NewJob, Receipt
from forge.storage.contract.statements import Plan, Step
from forge.storage.contract.storage import Storage
from forge.storage.shared.plans import run_plan
from forge.storage.shared.statements import Queries
from forge.storage.sqlite import rows
from forge.storage.sqlite.facet import SqliteFacet

__all__ = ["SqliteEnqueue", "enqueue_plan"]


class SqliteEnqueue(SqliteFacet, Storage):
    """See `Storage`."""

    def enqueue(self, jobs: Iterable[NewJob]) -> list[Receipt]:
        jobs = list(jobs)  # made before the lock is taken, not while others wait for it
        with self._writing() as (conn, now):
            if any(job.dedupe_key is not None for job in jobs):
                return run_plan(enqueue_plan(self._sql, jobs, now), lambda step: conn.rows(step.query.sql, step.params))
            plain, lined = jobs, [job for job in jobs if job.line is not None]
            if lined:
                plain = [job for job in jobs if job.line is None]
                conn.many(self._sql.mark_lines.sql, [{"queue": queue} for queue in {job.queue for job in lined}])
                conn.many(self._sql.insert_lined_job.sql, (rows.lined_params(job, now) for job in lined))
            conn.many(self._sql.insert_job.text("qmark"), (rows.job_params(job, now) for job in plain))
            return [Enqueued(job.id) for job in jobs]

    def enqueue_plan(self, jobs: Sequence[NewJob]) -> Plan:
        return enqueue_plan(self._sql, jobs, self._now())


def enqueue_plan(sql: Queries, jobs: Sequence[NewJob], now: int) -> Plan:
    """See `Storage.enqueue_plan`; `now` is the time of the transaction."""
    receipts: list[Receipt] = []
    for job in jobs:
        if job.line is None:
            insert = Step(sql.insert_job, dict(zip(rows.JOB_PARAMS, rows.job_params(job, now), strict=False)))
        else:
            yield Step(sql.mark_lines, {"queue": job.queue})
            insert = Step(sql.insert_lined_job, rows.lined_params(job, now))
        key = {"key": job.dedupe_key, "id": job.id.bytes, "now": now}
        if job.dedupe_key is None or (yield Step(sql.take_key, key)):
            yield insert
            receipts.append(Enqueued(job.id))
            continue
        found = yield Step(sql.key_owner, key)
        known, owner = found[0]
        if known:
            receipts.append(Enqueued(job.id))
            continue
        if job.on_conflict == "replace":
            yield Step(sql.replace_payload, {"id": owner, "payload": job.payload.decode()})
        elif job.on_conflict == "push":
            yield Step(sql.push_run_at, {"id": owner, "run_at": rows.run_at(job, now)})
        receipts.append(Deduped(rows.as_uuid(owner)))
    return receipts
