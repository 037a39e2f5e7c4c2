"""The hand-written opponent on SQLite: apsw, forge's own tables, the least SQL that claims jobs and moves them.

Every commit waits for the disk, or its claim does not, as forge's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from uuid import UUID

import apsw

from bench.common import PAYLOAD

COLUMNS = """id, run_at, enqueued_at, claimed_at, claim, timeout, unique_for, keep_result, priority, attempts,
    max_attempts, crashes, queue, kind, payload, dedupe_key, tags, errors"""

CLAIM = """
update forge_job set status = 'in_progress', attempts = attempts + 1, claim = 1, claimed_at = ?1
 where rowid in (select rowid from forge_job
                  where queue = 'default' and line is null and status in ('pending', 'failed') and priority = 0
                    and run_at <= ?1 order by run_at, id limit ?2)
returning rowid, id, kind, payload, attempts"""

MOVE = f"""
insert into forge_job_history ({COLUMNS}, status, finished_at)
select {COLUMNS}, 'done', ?1 from forge_job where rowid in (select value from json_each(?2))"""

INSERT = "insert into forge_job (id, run_at, enqueued_at, queue, kind, payload) values (?, ?, ?, ?, ?, ?)"

REMOVE = "delete from forge_job where rowid in (select value from json_each(?1))"


class RawSqlite:
    """One connection with the durable settings."""

    def __init__(self, path: str, sync_claims: bool = True) -> None:
        self._sync_claims = sync_claims
        self._conn = apsw.Connection(path)
        self._conn.set_busy_timeout(30_000)
        self._conn.execute("pragma journal_mode = wal")
        self._conn.execute("pragma synchronous = full")

    def clear(self) -> None:
        """Empty tables and an empty log."""
        self._conn.execute("delete from forge_job")
        self._conn.execute("delete from forge_job_history")
        self._conn.execute("pragma wal_checkpoint(truncate)")

    def fill(self, ids: Sequence[UUID]) -> None:
        """A backlog, in one transaction."""
        now = int(time.time() * 1e6)
        with self._conn:
            self._conn.executemany(
                INSERT, ((id_.bytes, now, now, "default", "tasks.noop", PAYLOAD.decode()) for id_ in ids)
            )

    def drain(self, batch: int, until: int | None = None) -> int:
        """Claim and finalize, a transaction each, until nothing is left, or so many jobs have been."""
        conn, total = self._conn, 0
        while until is None or total < until:
            now = int(time.time() * 1e6)
            if not self._sync_claims:
                conn.execute("pragma synchronous = normal")
            conn.execute("begin immediate")
            rows = conn.execute(CLAIM, (now, batch)).fetchall()
            conn.execute("commit")
            if not rows:
                if until is None:
                    break
                time.sleep(0.001)
                continue
            claimed = json.dumps([row[0] for row in rows])
            if not self._sync_claims:
                conn.execute("pragma synchronous = full")
            conn.execute("begin immediate")
            conn.execute(MOVE, (int(time.time() * 1e6), claimed))
            conn.execute(REMOVE, (claimed,))
            conn.execute("commit")
            total += len(rows)
        return total

    def ended(self) -> int:
        """Jobs in history."""
        (count,) = next(iter(self._conn.execute("select count(*) from forge_job_history")))
        return int(count)

    def close(self) -> None:
        """The connection."""
        self._conn.close()
