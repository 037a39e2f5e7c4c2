"""The hand-written opponents: the least SQL that claims jobs and moves them to history.

`SameTables` works on forge's own tables, `Lean` on the smallest ones that could do (ARCHITECTURE's appendix). Both keep
the low-water mark, both let the claim skip the wait for the disk as forge does, and neither checks a token, a pause, a
cool-down, a dedupe key or a cancellation.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg
from psycopg import RawCursor
from psycopg.types.string import ByteaBinaryLoader

from bench.common import PAYLOAD

START = ("-infinity", UUID(int=0))

LEAN_TABLES = """
drop schema if exists lean cascade;
create schema lean;
create table lean.job (id uuid primary key, run_at timestamptz not null default now(), queue text not null,
    status smallint not null default 0, priority smallint not null default 0, attempts smallint not null default 0,
    owner int, claimed_at timestamptz, kind text not null, payload json not null);
create index on lean.job (queue, priority, run_at, id) where status = 0;
create table lean.job_done (like lean.job);
"""

LEAN_CLAIM = """
update lean.job set status = 1, attempts = attempts + 1, owner = 1, claimed_at = now()
 where ctid = any(array(select ctid from lean.job where queue = 'default' and status = 0 and run_at <= now()
                           and (priority, run_at, id) > (0::smallint, $2::timestamptz, $3::uuid)
                         order by priority, run_at, id limit $1 for update skip locked))
returning run_at, id, kind, payload, attempts"""

LEAN_FINALIZE = """
with d as (delete from lean.job where id = any($1::uuid[]) and owner = 1 and status = 1 returning *)
insert into lean.job_done select * from d"""

SAME_CLAIM = """
update forge.job set status = 'in_progress', attempts = attempts + 1, claim = 1, claimed_at = now()
 where ctid = any(array(select ctid from forge.job
                         where queue = 'default' and line is null and status in ('pending', 'failed')
                           and run_at <= now() and priority = 0 and (run_at, id) > ($2::timestamptz, $3::uuid)
                         order by run_at, id limit $1 for update skip locked))
returning run_at, id, kind, payload, attempts"""

COLUMNS = """id, run_at, enqueued_at, claimed_at, claim, timeout, unique_for, keep_result, priority, attempts,
    max_attempts, crashes, queue, kind, payload, dedupe_key, tags, errors"""

SAME_FINALIZE = f"""
with d as (delete from forge.job where id = any($1::uuid[]) and claim = 1 returning *)
insert into forge.job_history ({COLUMNS}, status) select {COLUMNS}, 'done' from d"""


class Raw:
    """A claim connection and a finalize connection, binary, prepared."""

    claim = SAME_CLAIM
    finalize = SAME_FINALIZE
    table = "forge.job"

    def __init__(self, url: str) -> None:
        self._claims = self._connect(url)
        self._claims.execute("set synchronous_commit = off")
        self._ends = self._connect(url)
        for conn in (self._claims, self._ends):
            # A plan cached while the tables were small would decide the result.
            conn.execute("set enable_seqscan = off")
            conn.execute("set enable_bitmapscan = off")

    @staticmethod
    def _connect(url: str) -> psycopg.Connection[Any]:
        conn = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        conn.adapters.register_loader("json", ByteaBinaryLoader)
        return conn

    def fill(self, ids: Sequence[UUID]) -> None:
        """A backlog, by COPY."""
        with self._ends.cursor().copy(f"copy {self.table} (id, queue, kind, payload) from stdin") as copy:
            for id_ in ids:
                copy.write_row((id_, "default", "tasks.noop", PAYLOAD.decode()))

    def drain(self, batch: int, until: int | None = None) -> int:
        """Claim and finalize until nothing is left, or so many jobs have been; how many that was."""
        claim, end = RawCursor(self._claims), RawCursor(self._ends)
        mark: tuple[Any, UUID] = START
        total = 0
        while until is None or total < until:
            rows = claim.execute(self.claim, (batch, *mark), binary=True).fetchall()
            if not rows:
                if until is None:
                    break
                time.sleep(0.001)
                continue
            last = max(rows, key=lambda row: (row[0], row[1].int))
            mark = (last[0], last[1])
            end.execute(self.finalize, ([row[1] for row in rows],))
            assert end.rowcount == len(rows)
            total += len(rows)
        return total

    def close(self) -> None:
        """Both connections."""
        self._claims.close()
        self._ends.close()


class Lean(Raw):
    """The same on tables of nine columns."""

    claim = LEAN_CLAIM
    finalize = LEAN_FINALIZE
    table = "lean.job"
