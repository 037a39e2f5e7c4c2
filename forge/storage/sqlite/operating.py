"""What operators do on SQLite: to jobs by id, to queues, and retention; and what they look at."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

import orjson

from forge.errors import UsageError
from forge.job import ACTIVE, ENDED, Counts, Job, JobFilter, Page, QueueSettings, Status
from forge.storage.contract.storage import Storage
from forge.storage.contract.values import Cancellation, Deletion, Note, Pruned
from forge.storage.shared.notes import tidy_notes
from forge.storage.shared.queue_settings import check_settings
from forge.storage.shared.statements import Queries
from forge.storage.sqlite import rows
from forge.storage.sqlite.drivers import SqliteConnection
from forge.storage.sqlite.endings import CANCELLED, end_job
from forge.storage.sqlite.facet import SqliteFacet
from forge.storage.sqlite.rows import add_error, written

__all__ = ["SqliteOperating"]

_AFTER_ALL = b"\xff" * 16  # an id


class SqliteOperating(SqliteFacet, Storage):
    """See `Storage`."""

    def cancel(self, ids: Collection[UUID]) -> dict[UUID, Cancellation]:
        with self._writing() as (conn, now):
            return _cancel(conn, self._sql, ids, now)

    def delete(self, ids: Collection[UUID]) -> dict[UUID, Deletion]:
        with self._writing() as (conn, now):
            return _delete(conn, self._sql, ids, now)

    def retry(self, ids: Collection[UUID]) -> set[UUID]:
        with self._writing() as (conn, now):
            return _revive(conn, self._sql, ids, now, reset=True)

    def requeue(self, ids: Collection[UUID]) -> set[UUID]:
        with self._writing() as (conn, now):
            return _revive(conn, self._sql, ids, now, reset=False)

    def get(self, ids: Collection[UUID]) -> dict[UUID, Job]:
        def work(conn: SqliteConnection) -> list[tuple[Any, ...]]:
            asked = [(id_.bytes,) for id_ in ids]
            statements = self._sql.get_live.text("qmark"), self._sql.get_ended.text("qmark")
            return [row for statement in statements for id_ in asked for row in conn.rows(statement, id_)]

        now = self._now()
        return {job.id: job for row in self._reader.read(work) for job in [rows.as_job(row, now)]}

    def find(self, where: JobFilter, limit: int = 50, cursor: str | None = None) -> Page:
        params = {
            "before": UUID(cursor).bytes if cursor else _AFTER_ALL,
            "statuses": rows.as_list(str(status) for status in where.statuses),
            "queues": rows.as_list(where.queues),
            "kinds": rows.as_list(where.kinds),
            "tag": where.tag,
            "limit": limit + 1,
        }
        wanted = []
        if not where.statuses or where.statuses & ACTIVE:
            wanted.append(self._sql.list_live.sql)
        if not where.statuses or where.statuses & ENDED:
            happy = not where.statuses or Status.DONE in where.statuses
            wanted.append((self._sql.list_ended if happy else self._sql.list_unhappy).sql)
        found = self._reader.read(lambda conn: [row for sql in wanted for row in conn.rows(sql, params)])
        found.sort(reverse=True)
        now = self._now()
        jobs = [rows.as_job(row, now) for row in found[:limit]]
        return Page(jobs, jobs[-1].id.hex if len(found) > limit else None)

    def counts(self) -> dict[str, Counts]:
        return {row[0]: Counts(*row[1:]) for row in self._rows("counts", now=self._now())}

    def ended_counts(self) -> dict[str, dict[Status, int]]:
        found: dict[str, dict[Status, int]] = {}
        for queue, status, count in self._rows("ended_counts"):
            found.setdefault(queue, {})[Status(status)] = count
        return found

    def queues(self) -> dict[str, QueueSettings]:
        return {row[0]: rows.as_queue(row) for row in self._rows("queues")}

    def set_queue(self, name: str, **settings: Any) -> QueueSettings:
        params = {"name": name, **check_settings(name, settings)}
        with self._writing() as (conn, _):
            return rows.as_queue(conn.rows(self._sql.set_queue.sql, params)[0])

    def set_wake(self, queue: str, wake: bool) -> None:
        with self._writing() as (conn, _):
            conn.rows(self._sql.set_wake.sql, {"queue": queue, "wake": wake})

    def prune(self, n: int = 1000, after: str | None = None, *, term: int | None = None) -> Pruned:
        with self._led(term) as (conn, now):
            return _prune(conn, self._sql, n, after, now)

    def progress(self, notes: Sequence[Note]) -> None:
        if notes := tidy_notes(notes):
            with self._writing() as (conn, now):
                _progress(conn, self._sql, notes, now)


def _cancel(conn: SqliteConnection, sql: Queries, ids: Collection[UUID], now: int) -> dict[UUID, Cancellation]:
    """What has not started ends now, what runs is flagged for its owner."""
    answer: dict[UUID, Cancellation] = {}
    for job_id in ids:
        id_ = job_id.bytes
        live = conn.rows(sql.live_job.sql, {"id": id_})
        if not live:
            if conn.rows(sql.ended_job.sql, {"id": id_}):
                answer.setdefault(job_id, "ended")
            continue
        status, attempts, crashes, errors, _ = live[0]
        if status == Status.IN_PROGRESS:
            conn.rows(sql.request_cancel.sql, {"id": id_, "now": now})
            answer[job_id] = "requested"
        else:
            errors = add_error(errors, now, attempts, CANCELLED, None)
            end_job(conn, sql, id_, Status.CANCELLED, crashes, errors, now)
            answer[job_id] = "cancelled"
    return answer


def _delete(conn: SqliteConnection, sql: Queries, ids: Collection[UUID], now: int) -> dict[UUID, Deletion]:
    """What does not run goes, with its key; what runs is flagged for its owner."""
    answer: dict[UUID, Deletion] = {}
    for job_id in ids:
        id_ = job_id.bytes
        live = conn.rows(sql.live_job.sql, {"id": id_})
        if live and live[0][0] == Status.IN_PROGRESS:
            conn.rows(sql.request_cancel.sql, {"id": id_, "now": now})
            answer[job_id] = "requested"
            continue
        ended = conn.rows(sql.ended_job.sql, {"id": id_})
        for row in (*live, *ended):
            conn.rows((sql.remove_job if live else sql.remove_ended).sql, {"id": id_})
            conn.rows(sql.drop_key.sql, {"id": id_, "key": row[-1]})
            answer[job_id] = "deleted"
    return answer


def _revive(conn: SqliteConnection, sql: Queries, ids: Collection[UUID], now: int, *, reset: bool) -> set[UUID]:
    """An ended job returns to pending, unless its key is another's now; a waiting one runs now."""
    revived = set()
    for job_id in sorted(ids, key=lambda i: i.int):
        params = {"id": job_id.bytes, "now": now, "reset": reset}
        ended = conn.rows(sql.ended_job.sql, params)
        if not ended:
            if conn.change(sql.hurry.sql, params):
                revived.add(job_id)
            continue
        key = ended[0][0]
        if key is None or conn.change(sql.retake_key.sql, {**params, "key": key}):
            conn.rows(sql.revive_job.sql, params)
            conn.rows(sql.remove_ended.sql, params)
            revived.add(job_id)
    return revived


def _progress(conn: SqliteConnection, sql: Queries, notes: Sequence[Note], now: int) -> None:
    """Say how far running jobs are."""
    at = written(now)
    for job_id, token, percent, message in notes:
        said = orjson.dumps({"percent": percent, "message": message, "at": at}).decode()
        conn.rows(sql.progress.sql, {"id": job_id.bytes, "token": token, "progress": said})


def _prune(conn: SqliteConnection, sql: Queries, n: int, after: str | None, now: int) -> Pruned:
    """One batch of retention. `after` is the last row looked at: when it ended and its rowid."""
    try:
        after_at, after_row = map(int, (after or "-1.0").split("."))
    except ValueError:
        raise UsageError(f"after {after!r} is not what an earlier call gave; start again without it") from None
    least = conn.rows(sql.shortest_retention.sql)[0][0]
    params = {"after_at": after_at, "after_row": after_row, "now": now, "least": least, "n": n}
    walked = conn.rows(sql.prune_walk.sql, params)
    deleted = conn.many(sql.prune_row.sql, [{"row": row} for row, _, old in walked if old])
    if len(walked) < n:
        conn.rows(sql.prune_keys.sql, params)
        return Pruned(len(walked), deleted, None)
    row, finished_at, _ = walked[-1]
    return Pruned(len(walked), deleted, f"{finished_at}.{row}")
