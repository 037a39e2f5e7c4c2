"""What operators do to jobs by id, and retention: each inside a write transaction of the caller's."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import orjson

from forge.errors import UsageError
from forge.job import Status
from forge.storage.contract import Cancellation, Deletion, Note, Pruned
from forge.storage.sqlite.drivers import Connection
from forge.storage.sqlite.endings import CANCELLED, end_job
from forge.storage.sqlite.rows import add_error, written
from forge.storage.statements import Queries

__all__ = ["BEFORE_ALL", "cancel", "delete", "fitting", "next_due", "progress", "prune", "revive"]

BEFORE_ALL = -(1 << 62)  # a priority


def cancel(conn: Connection, sql: Queries, ids: Collection[UUID], now: int) -> dict[UUID, Cancellation]:
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


def delete(conn: Connection, sql: Queries, ids: Collection[UUID], now: int) -> dict[UUID, Deletion]:
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


def revive(conn: Connection, sql: Queries, ids: Collection[UUID], now: int, *, reset: bool) -> set[UUID]:
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


def progress(conn: Connection, sql: Queries, notes: Sequence[Note], now: int) -> None:
    """Say how far running jobs are."""
    at = written(now)
    for job_id, token, percent, message in notes:
        said = orjson.dumps({"percent": percent, "message": message, "at": at}).decode()
        conn.rows(sql.progress.sql, {"id": job_id.bytes, "token": token, "progress": said})


def fitting(conn: Connection, sql: Queries, params: Mapping[str, Any], most_bytes: int) -> tuple[int, int]:
    """How many of the jobs that a claim with these parameters would find it may have, and what is left of `most_bytes`
    then: all, or those up to the one with which their payloads come to as much."""
    if params["n"] == 1:  # whatever it weighs
        return 1, most_bytes
    version = tuple(map(int, str(conn.rows("select sqlite_version()")[0][0]).split(".")))
    weigh = sql.weigh if version >= (3, 43) else sql.weigh_by_reading
    total = conn.rows(weigh.sql, params)[0][0] or 0
    if total < most_bytes:
        return params["n"], most_bytes - total
    n = 0
    for (size,) in conn.rows(sql.weigh_each.sql, params):
        n, most_bytes = n + 1, most_bytes - size
        if most_bytes <= 0:
            break
    return n, most_bytes


def next_due(conn: Connection, sql: Queries, queues: Sequence[str], now: int) -> float | None:
    """Seconds until something may be claimed from these queues."""
    times = []
    for queue in queues:
        found = conn.rows(sql.standing.sql, {"queue": queue})
        paused, until = found[0] if found else (False, None)
        params: dict[str, Any] = {"queue": queue, "priority": BEFORE_ALL}
        while not paused and (level := conn.rows(sql.next_priority.sql, params)):
            params["priority"] = level[0][0]
            times.append(max(conn.rows(sql.first_due.sql, params)[0][0], until or 0))
        if not paused and (lined := conn.rows(sql.first_lined_due.sql, {"queue": queue})):
            times.append(max(lined[0][0], until or 0))
    return (min(times) - now) / 1e6 if times else None


def prune(conn: Connection, sql: Queries, n: int, after: str | None, now: int) -> Pruned:
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
