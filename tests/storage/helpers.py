"""What the storage suite is written with: sample jobs, expected rows, and the only code that knows its databases apart.

Tests never sleep to let time pass: `age` moves stored times into the past instead.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import apsw
import psycopg

from forge.job import Claim, Done, Ending, Enqueued, Failed, Job, NewJob, Outcome, Receipt, Status
from forge.storage import Storage
from forge.storage.contract import Incarnation, Plan, Step
from forge.storage.contract.statements import Query
from forge.storage.shared.plans import run_plan

_numbers = itertools.count(1)

# Half of what a database may round a stored time by.
ROUNDING = timedelta(milliseconds=2)


def new_id() -> UUID:
    """A UUIDv7 later than every one this process made before."""
    milliseconds = time.time_ns() // 1_000_000
    number = next(_numbers)
    high = milliseconds << 80 | 7 << 76 | (number >> 30 & 0xFFF) << 64
    return UUID(int=high | 2 << 62 | (number & 0x3FFFFFFF) << 32 | int.from_bytes(os.urandom(4)))


def full_job(**changes: Any) -> NewJob:
    """A due job with a value of its own in every field."""
    number = next(_numbers)
    job = NewJob(
        id=new_id(),
        kind="mail.send",
        payload=b'{"to":"ann@example.org","copies":%d}' % number,
        queue="letters",
        priority=3,
        run_at=datetime(2024, 2, 29, 12, 34, 56, 123457, UTC) + timedelta(seconds=number),
        max_attempts=7,
        timeout=45,
        dedupe_key=f"letter-{number}",
        unique_for=90,
        tags=("red", "blue"),
        keep_result=1200,
    )
    return job._replace(**changes)


def plain_job(queue: str = "letters", **changes: Any) -> NewJob:
    """A job with nothing but what it needs."""
    return NewJob(new_id(), "noop", b'{"n":1}', queue)._replace(**changes)


def plain_jobs(count: int, queue: str = "letters", **changes: Any) -> list[NewJob]:
    """Several of them, in order."""
    return [plain_job(queue, **changes) for _ in range(count)]


def told(receipts: Sequence[Receipt]) -> list[tuple[str, UUID]]:
    """Receipts in a form in which one that stored and one that did not are never equal (as tuples they are)."""
    return [(type(receipt).__name__, receipt.id) for receipt in receipts]


def ids(jobs: Sequence[NewJob | Claim | Job]) -> list[UUID]:
    """Their ids, in order."""
    return [job.id for job in jobs]


def row(new: NewJob, **changes: Any) -> Job:
    """What a job looks like right after it was enqueued. Say `enqueued_at`, and `run_at` unless the job had one."""
    values: dict[str, Any] = {
        "id": new.id,
        "queue": new.queue,
        "kind": new.kind,
        "status": Status.PENDING,
        "payload": json.loads(new.payload),
        "priority": new.priority,
        "attempts": 0,
        "max_attempts": new.max_attempts,
        "crashes": 0,
        "timeout": new.timeout,
        "run_at": new.run_at,
        "claimed_at": None,
        "finished_at": None,
        "dedupe_key": new.dedupe_key,
        "unique_for": new.unique_for,
        "keep_result": new.keep_result,
        "tags": new.tags,
        "errors": (),
        "result": None,
        "cancel_requested_at": None,
        "pod": None,
    }
    return Job(**values | changes)


class Moment:
    """Equal to any time, written or not, between two readings of the database's clock."""

    def __init__(self) -> None:
        self.low = datetime.max.replace(tzinfo=UTC)
        self.high = datetime.min.replace(tzinfo=UTC)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            other = datetime.fromisoformat(other)
        return isinstance(other, datetime) and self.low - ROUNDING <= other <= self.high + ROUNDING

    __hash__ = None  # type: ignore[assignment]  # equality with a tolerance has no hash

    def __add__(self, seconds: float) -> Any:
        moved = Moment()
        moved.low, moved.high = (at + timedelta(seconds=seconds) for at in (self.low, self.high))
        return moved

    def __repr__(self) -> str:
        return f"<{self.low.isoformat()} … {self.high.isoformat()}>"


def clock(storage: Storage) -> datetime:
    """The database's clock."""
    return datetime.fromtimestamp(storage.now(), UTC)


@contextlib.contextmanager
def during(storage: Storage) -> Iterator[Any]:
    """A `Moment` that spans the block."""
    moment = Moment()
    moment.low = clock(storage)
    yield moment
    moment.high = clock(storage)


def error(at: Any, attempt: int, message: str, traceback: str | None = None) -> dict[str, Any]:
    """One entry of a job's `errors`."""
    return {"at": at, "attempt": attempt, "message": message, "traceback": traceback}


def one(storage: Storage, job_id: UUID) -> Job:
    """The job as stored now."""
    return storage.get([job_id])[job_id]


def statuses(storage: Storage, wanted: Sequence[UUID]) -> list[Status | None]:
    """Where each stands, in order; None where it is gone."""
    found = storage.get(wanted)
    return [found[i].status if i in found else None for i in wanted]


def end(storage: Storage, claims: Sequence[Claim], outcome: Outcome | None = None, **more: Any) -> None:
    """Finalize claims that must all still be ours, all with one outcome (Done unless said)."""
    assert storage.finalize([Ending(claim, outcome or Done(), **more) for claim in claims]) == []


def claimed(storage: Storage, who: Incarnation, new: NewJob | None = None) -> Claim:
    """A job enqueued and claimed; there must be no other in its queue."""
    new = new or plain_job()
    assert told(storage.enqueue([new])) == told([Enqueued(new.id)])
    (claim,) = storage.claim(who, new.queue, 2)
    assert claim.id == new.id
    return claim


def ended(storage: Storage, who: Incarnation, new: NewJob, outcome: Outcome | None = None) -> Job:
    """A job enqueued, claimed and finalized."""
    end(storage, [claimed(storage, who, new)], outcome)
    return one(storage, new.id)


def fail(claim: Claim, message: str = "no luck", delay: float = 0.0) -> Ending:
    """The claim's handler raised."""
    return Ending(claim, Failed(message), delay, f"Traceback of {message}")


# Only what follows knows the two databases apart.

MICROSECONDS = 1_000_000


def is_sqlite(url: str) -> bool:
    """Which of the two."""
    return url.startswith("sqlite:")


def sqlite_path(url: str) -> str:
    """The file behind the URL."""
    return url.removeprefix("sqlite:///")


@contextlib.contextmanager
def _sqlite(url: str) -> Iterator[apsw.Connection]:
    conn = apsw.Connection(sqlite_path(url))
    conn.set_busy_timeout(10_000)
    try:
        yield conn
    finally:
        conn.close()


TABLES = (
    "job",
    "job_history",
    "job_key",
    "queue",
    "pod",
    "offer",
    "migration",
    "leader",
    "share",
    "schedule",
    "schedule_fire_time",
    "budget",
    "budget_lease",
    "line_queue",
    "metric",
    "metric_part",
    "metric_pod",
    "metric_database",
    "metric_writer",
)


def sql(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement as written for both: `{job}` stands for forge's table of that name."""
    if is_sqlite(url):
        with _sqlite(url) as conn:
            return list(conn.execute(statement.format(**{table: f"forge_{table}" for table in TABLES})))
    with psycopg.connect(url, autocommit=True) as pg:
        cursor = pg.execute(statement.format(**{table: f"forge.{table}" for table in TABLES}).encode())
        return cursor.fetchall() if cursor.description else []


def early(storage: Storage) -> None:
    """The next minute is not about to begin."""
    while storage.now() % 60 > 57:
        time.sleep(0.05)  # between two looks at the clock


def age(url: str, table: str, column: str, seconds: float, where: str = "true") -> None:
    """Move a stored time into the past, as if `seconds` had gone by for it."""
    if is_sqlite(url):
        earlier = f"{column} - {round(seconds * MICROSECONDS)}"
    else:
        earlier = f"{column} - make_interval(secs => {seconds})"
    sql(url, f"update {{{table}}} set {column} = {earlier} where {where}")


DAY = 86_400.0


def long_ago(job: NewJob) -> NewJob:
    """The same job, made three years before: an id begins with the time."""
    return job._replace(id=UUID(int=job.id.int - (round(3 * 365 * DAY * 1000) << 80)))


def lead(url: str, term: int) -> None:
    """Make this the term of whoever leads."""
    later = round((time.time() + 3600) * MICROSECONDS) if is_sqlite(url) else "now() + interval '1 hour'"
    sql(url, f"update {{leader}} set term = {term}, holder = 'somebody', pod = null, until = {later}")


def same_finish(url: str) -> None:
    """Make every ended job one that ended at the same time as the last of them."""
    sql(url, "update {job_history} set finished_at = (select max(finished_at) from {job_history})")


def columns(url: str) -> dict[str, set[str]]:
    """Every table of forge's and its columns."""
    if is_sqlite(url):
        every = "select m.name, c.name from sqlite_schema m, pragma_table_info(m.name) c where m.type = 'table'"
        named = [(table, column) for table, column in sql(url, every) if not table.startswith("sqlite_")]
        found = [(table.removeprefix("forge_"), column) for table, column in named if table.startswith("forge_")]
        assert len(found) == len(named), "every table of forge's says so, in a file that is the user's"
    else:
        found = sql(url, "select table_name, column_name from information_schema.columns where table_schema = 'forge'")
    tables: dict[str, set[str]] = {}
    for table, column in found:
        tables.setdefault(table, set()).add(column)
    return tables


def prepare(url: str, query: Query) -> None:
    """Have the database parse and plan a query without running it."""
    if is_sqlite(url):
        with _sqlite(url) as conn:
            conn.execute(f"explain {query.sql}", dict.fromkeys(query.names))
    else:
        with psycopg.connect(url) as pg:
            pg.execute(f"prepare checked as {query.text('dollar')}".encode())


def check_whole(url: str) -> None:
    """What must hold at any moment, whatever was killed: no job in two places, each key with the job that has it."""
    # One statement each: what a killed process had sent may still be committing.
    keys, keyed = (
        "select key, job_id from {job_key} where held_until is null",
        "select dedupe_key, id from {job} where dedupe_key is not null",
    )
    both = f"select * from ({keys} except {keyed}) a union all select * from ({keyed} except {keys}) b"
    assert sql(url, both) == []
    assert sql(url, "select id from {job} where id in (select id from {job_history})") == []
    assert sql(url, "select id from {job} where (status = 'in_progress') <> (claim is not null)") == []
    misplaced = "select id from {job} where place is not null and (status <> 'in_progress' or concurrency_key is null)"
    assert sql(url, misplaced) == []
    if is_sqlite(url):
        assert sql(url, "pragma integrity_check") == [("ok",)]


def enqueue_as_caller(url: str, plan: Plan, commit: bool) -> list[Receipt]:
    """Run a plan on a connection of our own, as an application would, and commit or roll back."""
    if is_sqlite(url):
        with _sqlite(url) as conn:
            conn.execute("begin immediate")
            receipts = run_plan(plan, lambda step: list(conn.execute(step.query.text("named"), dict(step.params))))
            conn.execute("commit" if commit else "rollback")
            return receipts
    with psycopg.connect(url) as pg:

        def execute(step: Step) -> list[Any]:
            cursor = pg.execute(step.query.text("format").encode(), step.query.args("format", step.params))
            return cursor.fetchall() if cursor.description else []

        receipts = run_plan(plan, execute)
        if not commit:
            pg.rollback()
        return receipts
