"""Plans do not rot: a claim reads about n index entries whatever the backlog, the history and the statistics are.

The plans are made, and cached, while the tables are empty; then as many pending as finished jobs appear and nobody
tells the planner: so many that whatever grows with them stands out, and a million of each among the slow tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import apsw
import psycopg
import pytest
from psycopg import RawCursor

from forge import fastpath
from forge.job import Done, Ending, Failed, Line, NewJob, Throttled
from forge.storage import Storage, open_storage
from forge.storage.contract import Incarnation, LowWater
from forge.storage.contract.lines import Turns
from forge.storage.postgres import PostgresStorage
from forge.storage.postgres.rows import marks_params
from forge.storage.postgres.wire import WireFormats
from forge.storage.shared.statements import load_queries
from forge.storage.sqlite import SqliteStorage
from tests.conftest import new_database

pytestmark = pytest.mark.impl_free

MANY = [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)]
N = 100

PENDING = """
insert into forge.job (id, queue, kind, payload, priority, run_at)
select ('00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid,
       case when mod(i, 4) = 0 then 'other' else 'default' end, 'k', '{}', mod(i, 3),
       now() + case when mod(i, 3) = 0 then interval '1 day' else interval '-1 day' end + i * interval '1 microsecond'
  from generate_series(1, %s) i"""

FINISHED = """
insert into forge.job_history (id, run_at, enqueued_at, timeout, status, priority, attempts, max_attempts, crashes,
                               queue, kind, payload)
select ('00000000-0000-7000-9000-' || lpad(to_hex(i), 12, '0'))::uuid, now(), now(), 600, 'done', 0, 1, 5, 0,
       'default', 'k', '{}'
  from generate_series(1, %s) i"""


# Half of them in one line, the others in as many as there can be; some scheduled in front of those that are due.
LINED = """
insert into forge.job (id, queue, kind, payload, priority, run_at, line, concurrency_key, concurrency)
select ('00000000-0000-7000-a000-' || lpad(to_hex(i), 12, '0'))::uuid, 'lined', 'k', '{}', mod(i / 2, 2),
       now() + case mod(i / 2, 2) when 0 then interval '1 day' else interval '-1 day' end + i * interval '0.000001 s',
       case when mod(i, 2) = 0 then '||one' else '|key ' || i / 20 || '|' end,
       case when mod(i, 2) = 0 then null else 'key ' || i / 20 end, case when mod(i, 2) = 0 then null else 3 end
  from generate_series(1, %s) i"""

KEYS = """
insert into forge.job_key (key, job_id) select 'key ' || i, gen_random_uuid() from generate_series(1, %s) i"""


def warm_up(storage: Storage, rounds: int = 12) -> None:
    """Enough rounds over almost empty tables that every plan is made and cached for them."""
    who = storage.register("early", ["default"], "here", 1)
    for number in range(rounds):
        operate(storage, who, f"early {number}")
        storage.enqueue([NewJob(fastpath.uuid7(), "k", b"{}") for _ in range(3)])
        claims = storage.claim(who, "default", N)
        storage.finalize([Ending(claim, Failed("again")) for claim in claims])
        claims = storage.claim(who, "default", N)
        storage.finalize([Ending(claim, Done()) for claim in claims])
        storage.enqueue(
            [NewJob(fastpath.uuid7(), "k", b"{}", "lined", line=Line.of(partition=str(n))) for n in range(3)]
        )
        claims = storage.lines.claim(who, "lined", N).claims
        storage.finalize([Ending(claim, Done()) for claim in claims])
    storage.deregister(who)


def stock(storage: Storage, queue: str) -> list[NewJob]:
    """A few jobs with keys for `operate`."""
    jobs = [NewJob(fastpath.uuid7(), "k", b"{}", queue, dedupe_key=f"{queue} {n}") for n in range(6)]
    storage.enqueue(jobs)
    return jobs


def operate(storage: Storage, who: Incarnation, queue: str, jobs: list[NewJob] | None = None) -> None:
    """Every verb that finds jobs by id, or that a pod calls while it is idle, on a few jobs of a queue of their own."""
    ids = [job.id for job in jobs or stock(storage, queue)]
    claims = storage.claim(who, queue, 3)
    storage.progress([(claim.id, claim.token, 50.0, "half") for claim in claims])
    assert storage.next_due(["default", queue]) is not None
    assert queue in storage.shares.undeclared()
    assert len(storage.get(ids)) == len(ids)
    assert len(storage.cancel(ids)) == len(ids)
    assert len(storage.pulse(who)[1]) == 3
    assert storage.finalize([Ending(claim, Throttled()) for claim in claims]) == []
    if isinstance(storage, PostgresStorage):
        assert storage._claims._not_finalized([Ending(claim, Done()) for claim in claims]) == []
    assert storage.retry(ids[:4]) == set(ids[:4])
    assert storage.requeue(ids) == set(ids)
    assert len(storage.delete(ids)) == len(ids)


@pytest.fixture(scope="module", params=MANY)
def full_postgres(
    request: pytest.FixtureRequest, pg_server: str, pg_template: str
) -> Iterator[tuple[PostgresStorage, str]]:
    database = new_database(pg_server, pg_template)
    pg_url = next(database)
    with open_storage(pg_url, pool_size=1) as storage, psycopg.connect(pg_url, autocommit=True) as conn:
        assert isinstance(storage, PostgresStorage)
        for table in ("job", "job_history", "job_key"):
            conn.execute(f"alter table forge.{table} set (autovacuum_enabled = off)")
            conn.execute(f"analyze forge.{table}")
        warm_up(storage)
        conn.execute(PENDING, (request.param,))
        conn.execute(FINISHED, (request.param,))
        conn.execute(KEYS, (request.param // 10,))
        conn.execute(LINED, (request.param // 5,))
        conn.execute("select pg_stat_force_next_flush()")  # what this read itself is not counted later
        yield storage, pg_url
    next(database, None)


def entries_read(plan: list[tuple[str]]) -> int:
    """Rows that the scans of an analysed plan produced or threw away, heap fetches of dead ones included."""
    total = 0.0
    for (line,) in plan:
        if found := re.search(r"(?:Index|Tid|Seq|Bitmap).*Scan.*actual time=\S+ rows=([\d.]+) loops=(\d+)", line):
            total += float(found[1]) * int(found[2])
        if found := re.search(r"Rows Removed by \w+(?: \w+)*: (\d+)", line):
            total += int(found[1])
    return round(total)


def test_on_postgresql_a_claim_among_many_reads_a_small_multiple_of_n(
    full_postgres: tuple[PostgresStorage, str],
) -> None:
    _, url = full_postgres
    queries = load_queries("postgres")
    with psycopg.connect(url, context=WireFormats()) as conn:
        # The claim asks that its pod is known.
        conn.execute("insert into forge.pod (name, host, pid, queues) values ('p', 'h', 1, '{default}')")
        row = conn.execute("select max(id) from forge.pod").fetchone()
        assert row is not None
        local = queries.plan_by_index.args("dollar", {"local": True})
        RawCursor(conn).execute(queries.plan_by_index.text("dollar"), local)
        params: dict[str, Any] = {
            "unsynced": False, "claim": row[0] << 32 | 1, "queue": "default", "n": N, "most_bytes": 10**6,
            **marks_params({}),
        }  # fmt: skip
        explain = "explain (analyze, costs off) " + queries.claim.text("dollar")
        plan = RawCursor(conn).execute(explain, queries.claim.args("dollar", params)).fetchall()
        text = "\n".join(line for (line,) in plan)
        assert f"rows={N}" in text
        assert "Seq Scan" not in text
        assert "Bitmap" not in text
        assert entries_read(plan) <= 4 * N, text


def test_on_postgresql_a_claim_of_lines_reads_a_small_multiple_of_n(
    full_postgres: tuple[PostgresStorage, str],
) -> None:
    _, url = full_postgres
    queries = load_queries("postgres")
    with psycopg.connect(url) as conn:
        conn.execute("insert into forge.pod (name, host, pid, queues) values ('p', 'h', 1, '{lined}')")
        row = conn.execute("select max(id) from forge.pod").fetchone()
        assert row is not None
        local = queries.plan_by_index.args("dollar", {"local": True})
        RawCursor(conn).execute(queries.plan_by_index.text("dollar"), local)
        params: dict[str, Any] = {
            "claim": row[0] << 32 | 1, "queue": "lined", "n": N, "most_bytes": 10**6, "most": N,
            "after_line": "",
            "after_priority": -32768, "last_line": "", "last_priority": -32768, "unbounded": True, "scopes": [],
            "allowed": [], "behind": 16,
        }  # fmt: skip
        explain = "explain (analyze, costs off) " + queries.claim_lines.text("dollar")
        plan = RawCursor(conn).execute(explain, queries.claim_lines.args("dollar", params)).fetchall()
        text = "\n".join(line for (line,) in plan)
        assert f"rows={N}" in text
        assert not re.search("Seq Scan|Bitmap", text), text
        tables = [line for (line,) in plan if " on job" in line or "Removed" in line]
        assert entries_read([(line,) for line in tables]) <= 9 * N, text  # with what is removed from what was found
        conn.rollback()


def test_on_postgresql_the_plans_cached_while_the_tables_were_empty_still_read_few_rows(
    full_postgres: tuple[PostgresStorage, str],
) -> None:
    storage, url = full_postgres
    rounds, by_id = 5, 8
    jobs = [stock(storage, f"late {number}") for number in range(by_id)]
    with psycopg.connect(url) as conn:
        conn.execute("select pg_stat_force_next_flush()")
    before = table_reads(url)
    who = storage.register("late", ["default"], "here", 1)
    water = LowWater()
    for _ in range(rounds):
        claims = storage.claim(who, "default", N, water)
        assert len(claims) == N
        outcomes = [Done() if n % 2 else Failed("again") for n in range(N)]
        assert storage.finalize([Ending(c, o, 900.0) for c, o in zip(claims, outcomes, strict=True)]) == []
    turns = Turns()
    for _ in range(rounds):
        claims = storage.lines.claim(who, "lined", N, turns).claims
        assert len(claims) == N
        assert storage.finalize([Ending(claim, Done()) for claim in claims]) == []
    for number in range(by_id):
        operate(storage, who, f"late {number}", jobs[number])
    storage.close()  # a session reports what it read when it ends, at the latest
    seq_scans, index_rows = (late - early for late, early in zip(table_reads(url), before, strict=True))
    assert seq_scans == 0
    # Each job is found by the claim, by the finalize, and when it is changed or moved; the others by a dozen verbs.
    # A job of a line is also found as the head of its line, and its line once or twice on the way.
    assert index_rows <= 6 * N * rounds + by_id * 6 * 40 + 14 * N * rounds


def table_reads(url: str) -> tuple[int, int]:
    """(sequential scans, index entries read) of the tables that grow so far."""
    with psycopg.connect(url) as conn:
        conn.execute("select pg_stat_force_next_flush()")
        row = conn.execute(
            "select (select sum(seq_scan) from pg_stat_user_tables where relname in ('job', 'job_history', 'job_key')),"
            " (select sum(idx_tup_read) from pg_stat_user_indexes where relname in ('job', 'job_history', 'job_key'))"
        ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


SQLITE_PENDING = """
with recursive i(i) as (select 1 union all select i + 1 from i where i < ?)
insert into forge_job (id, queue, kind, payload, priority, run_at, enqueued_at)
select cast(printf('%016d', i) as blob), iif(i % 4 = 0, 'other', 'default'), 'k', '{}', i % 3,
       iif(i % 3 = 0, 4000000000000000, 1000000000000000) + i, 0 from i"""

SQLITE_LINED = """
with recursive i(i) as (select 1 union all select i + 1 from i where i < ?)
insert into forge_job (id, queue, kind, payload, priority, run_at, enqueued_at, line)
select cast(printf('l%015d', i) as blob), 'lined', 'k', '{}', i / 2 % 2,
       iif(i / 2 % 2 = 0, 4000000000000000, 1000000000000000) + i, 0, iif(i % 2, '||one', '||' || (i / 20)) from i"""

SQLITE_FINISHED = """
with recursive i(i) as (select 1 union all select i + 1 from i where i < ?)
insert into forge_job_history (id, run_at, enqueued_at, finished_at, timeout, status, priority, attempts, max_attempts,
                         crashes, queue, kind, payload)
select cast(printf('h%015d', i) as blob), i, 0, i, 600, 'done', 0, 1, 5, 0, 'default', 'k', '{}' from i"""


def steps_of_a_claim_and_finalize(storage: SqliteStorage) -> int:
    """Virtual machine steps that SQLite takes for one claim of N jobs and their finalize."""
    steps: list[int] = []
    who = storage.register("late", ["default"], "here", 1)
    with storage._writer.writing() as (wrapped, _):
        conn: apsw.Connection = wrapped._conn  # type: ignore[attr-defined]
    conn.trace_v2(
        apsw.SQLITE_TRACE_PROFILE, lambda seen: steps.append(seen["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"])
    )
    claims = storage.claim(who, "default", N) + storage.lines.claim(who, "lined", N).claims
    assert len(claims) == 2 * N
    assert storage.finalize([Ending(claim, Done()) for claim in claims]) == []
    conn.trace_v2(0, None)
    return sum(steps)


@pytest.mark.parametrize("many", MANY)
def test_on_sqlite_a_claim_among_many_takes_no_more_steps_than_among_a_thousand(sqlite_url: str, many: int) -> None:
    with open_storage(sqlite_url) as storage:
        assert isinstance(storage, SqliteStorage)
        warm_up(storage)
        taken: list[int] = []
        for size in (1_000, many):
            with storage._writer.writing() as (conn, _):
                if not taken:
                    conn.rows("analyze")  # of almost nothing: soon wrong by far
                conn.rows("delete from forge_job")
                conn.rows("delete from forge_job_history")
                conn.rows(SQLITE_PENDING, (size,))
                conn.rows(SQLITE_FINISHED, (size,))
                conn.rows(SQLITE_LINED, (max(size // 5, 4_000),))
            taken.append(steps_of_a_claim_and_finalize(storage))
    among_few, among_many = taken
    assert among_few > N
    assert among_many <= 1.3 * among_few
