"""SQLite behind the storage contract. The SQL is in sql/sqlite/queries.sql; the rules are the same as PostgreSQL's."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from forge.errors import UsageError
from forge.job import (
    ACTIVE,
    ENDED,
    Claim,
    Counts,
    Deduped,
    Done,
    Ending,
    Enqueued,
    Failed,
    Job,
    JobFilter,
    NewJob,
    Page,
    Pod,
    QueueSettings,
    Receipt,
    Released,
    Status,
)
from forge.storage.contract import (
    MAX_CRASHES,
    Cancellation,
    Deletion,
    Fates,
    Incarnation,
    LowWater,
    Note,
    Plan,
    Pruned,
    Reaped,
    Step,
    Storage,
    Want,
    accepted_children,
    check_settings,
    run_plan,
)
from forge.storage.listener import Deaf, Listener
from forge.storage.low_water import MOST_BYTES
from forge.storage.migrations import SchemaState
from forge.storage.notes import tidy_notes
from forge.storage.sqlite import operating, rows, schema
from forge.storage.sqlite.budgets import SqliteBudgets
from forge.storage.sqlite.database import PATIENCE, Database, Handle
from forge.storage.sqlite.drivers import Borrowed, Connection, DriverName
from forge.storage.sqlite.endings import Endings, try_writing
from forge.storage.sqlite.leases import SqliteLeases, hold_term
from forge.storage.sqlite.lines import SqliteLines
from forge.storage.sqlite.listener import SqliteListener
from forge.storage.sqlite.metrics import SqliteMetrics
from forge.storage.sqlite.schedules import SqliteSchedules
from forge.storage.sqlite.shares import SqliteShares
from forge.storage.statements import load_queries

__all__ = ["SqliteStorage"]

_AFTER_ALL = b"\xff" * 16  # an id
_TAKEN_BACK_AT_ONCE = 500  # claims in one transaction: others wait for it some 20 ms


class SqliteStorage(Storage):
    """See `Storage`. Two connections, each for one thread at a time: one writes, one reads while the other writes.

    `clock` is the database's clock: SQLite has none of its own. Every transaction reads it once.
    """

    dialect = "sqlite"

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] = time.time,
        listen: bool = True,
        timeout: float | None = None,
    ) -> None:
        self.url = url
        self._db = Database(url, PATIENCE if timeout is None else timeout)
        self._clock = clock
        self._listens = listen
        self._sql = load_queries("sqlite")
        self._writer = Handle(self._db)
        self._reader = Handle(self._db)
        self.leases = SqliteLeases(self._reader, self._writer, clock, self._sql)
        self.shares = SqliteShares(self._reader, self._writer, clock, self._sql)
        self.budgets = SqliteBudgets(self._reader, self._writer, clock, self._sql)
        self.lines = SqliteLines(self._reader, self._writer, clock, self._sql)
        self.metrics = SqliteMetrics(self._reader, self._writer, clock, self._sql)
        here = weakref.proxy(self)  # else only the collector would close what a storage that nobody needs has open
        self.schedules = SqliteSchedules(
            self._sql,
            lambda: here._writing(durable=True),
            lambda query, /, **params: list(here._rows_now(query, **params)),
            lambda jobs, now: here._plan(list(jobs), now),
        )

    def adopt_driver(self, kind: DriverName) -> None:
        """Use the library of a connection that the caller passes along, for there may be only one on a file.

        A UsageError if this process has the file open with the other one already.
        """
        self._db.use_driver(kind)

    # -- the database ------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._writer.close()
        self._reader.close()

    def schema_state(self) -> SchemaState:
        return schema.state(self._db, self._reader)

    def migrate(self) -> list[tuple[int, str]]:
        return schema.migrate(self._writer, self._now())

    def check_schema(self) -> None:
        schema.check(self._db, self._reader)

    def now(self) -> float:
        return self._clock()

    def _now(self) -> int:
        return int(self._clock() * 1e6)

    def _writing(self, durable: bool = True) -> contextlib.AbstractContextManager[tuple[Connection, int]]:
        """A write transaction and its time."""
        return self._writer.writing(durable=durable, clock=self._now)

    def _rows(self, name: str, /, **params: Any) -> list[tuple[Any, ...]]:
        return self._reader.read(lambda conn: conn.rows(getattr(self._sql, name).sql, params))

    def _rows_now(self, name: str, /, **params: Any) -> list[tuple[Any, ...]]:
        return self._rows(name, now=self._now(), **params)

    def where(self) -> Step:
        return Step(self._sql.where_am_i, {})

    def elsewhere(self, answer: Sequence[Sequence[Any]]) -> str | None:
        file = next(str(row[2] or "") for row in answer if row[1] == "main")
        if not file:
            return "a database in memory"
        try:
            return None if os.path.samefile(file, self._db.path) else file
        except OSError:  # one of them is not there, or not any more
            return None if os.path.realpath(file) == os.path.realpath(self._db.path) else file

    def connect(self) -> Any:
        self._db.use_driver(self._db.driver)
        conn = self._db.open()
        conn.rows(f"pragma busy_timeout = {round(PATIENCE * 1000)}")
        return conn.raw

    # -- producing ---------------------------------------------------------------------------------------------

    def enqueue(self, jobs: Iterable[NewJob]) -> list[Receipt]:
        jobs = list(jobs)  # made before the lock is taken, not while others wait for it
        with self._writing() as (conn, now):
            if any(job.dedupe_key is not None for job in jobs):
                return run_plan(self._plan(jobs, now), lambda step: conn.rows(step.query.sql, step.params))
            plain, lined = jobs, [job for job in jobs if job.line is not None]
            if lined:
                plain = [job for job in jobs if job.line is None]
                conn.many(self._sql.mark_lines.sql, [{"queue": queue} for queue in {job.queue for job in lined}])
                conn.many(self._sql.insert_lined_job.sql, (rows.lined_params(job, now) for job in lined))
            conn.many(self._sql.insert_job.text("qmark"), (rows.job_params(job, now) for job in plain))
            return [Enqueued(job.id) for job in jobs]

    def enqueue_plan(self, jobs: Sequence[NewJob]) -> Plan:
        return self._plan(jobs, self._now())

    def _plan(self, jobs: Sequence[NewJob], now: int) -> Plan:
        receipts: list[Receipt] = []
        for job in jobs:
            if job.line is None:
                insert = Step(self._sql.insert_job, dict(zip(rows.JOB_PARAMS, rows.job_params(job, now), strict=False)))
            else:
                yield Step(self._sql.mark_lines, {"queue": job.queue})
                insert = Step(self._sql.insert_lined_job, rows.lined_params(job, now))
            key = {"key": job.dedupe_key, "id": job.id.bytes, "now": now}
            if job.dedupe_key is None or (yield Step(self._sql.take_key, key)):
                yield insert
                receipts.append(Enqueued(job.id))
                continue
            found = yield Step(self._sql.key_owner, key)
            known, owner = found[0]
            if known:
                receipts.append(Enqueued(job.id))
                continue
            if job.on_conflict == "replace":
                yield Step(self._sql.replace_payload, {"id": owner, "payload": job.payload.decode()})
            elif job.on_conflict == "push":
                yield Step(self._sql.push_run_at, {"id": owner, "run_at": rows.run_at(job, now)})
            receipts.append(Deduped(rows.as_uuid(owner)))
        return receipts

    # -- claiming and ending -----------------------------------------------------------------------------------

    def claim(
        self,
        who: Incarnation,
        queue: str,
        n: int,
        low_water: LowWater | None = None,  # noqa: ARG002
        most_bytes: int = MOST_BYTES,
    ) -> list[Claim]:
        # Every claim is a whole scan: see the query. It need not wait for the disk: undone, it makes the job pending.
        with self._writing(durable=False) as (conn, now):
            return self._claim(conn, who, queue, n, now, most_bytes)

    def _claim(
        self, conn: Connection, who: Incarnation, queue: str, n: int, now: int, most_bytes: int = MOST_BYTES
    ) -> list[Claim]:
        token = who.mint()
        params = {"token": token, "pod": who.pod.id, "queue": queue, "now": now, "priority": operating.BEFORE_ALL}
        found: list[tuple[Any, ...]] = []
        while len(found) < n:
            params["n"] = n - len(found)
            params["n"], most_bytes = operating.fitting(conn, self._sql, params, most_bytes)
            claimed = conn.rows(self._sql.claim.sql, params)
            found += claimed
            if len(claimed) == params["n"] or most_bytes <= 0:
                break
            # All of that priority that are due; the next one. Asked for only now, because mostly there is enough.
            level = claimed or conn.rows(self._sql.next_claimable.sql, params)
            if not level:
                break
            params["priority"] = level[0][0]
        return rows.claims(found, token, queue)

    def finalize(
        self,
        endings: Sequence[Ending],
        *,
        max_crashes: int = MAX_CRASHES,
        fates: Fates | None = None,
        lock_wait: float | None = None,  # noqa: ARG002 (the file has one lock, which all wait for)
    ) -> list[Ending]:
        if not endings:
            return []
        became: Fates = []
        with self._writing() as (conn, now):
            stale = self._finalize(conn, endings, now, max_crashes, became)
        if fates is not None:
            fates += became
        return stale

    def _finalize(
        self, conn: Connection, endings: Sequence[Ending], now: int, max_crashes: int, fates: Fates
    ) -> list[Ending]:
        batch = Endings(conn, self._sql, now, max_crashes)
        stale = batch.finalize(endings)
        fates += batch.fates
        if any(ending.children for ending in endings):
            plan = self._plan(accepted_children(endings, stale), now)
            run_plan(plan, lambda step: conn.rows(step.query.sql, step.params))
        return stale

    def try_writing(self, size: int = 0) -> None:
        try_writing(self._writing, self._sql, size)

    def claims_of(self, pod: int) -> list[Claim]:
        return [_bare_claim(*row) for row in self._rows("claims_of_pod", pod=pod, limit=-1)]

    def exchange(
        self, who: Incarnation, endings: Sequence[Ending], wants: Sequence[Want], *, max_crashes: int = MAX_CRASHES
    ) -> tuple[list[Ending], list[Claim]]:
        with self._writing() as (conn, now):
            stale = self._finalize(conn, endings, now, max_crashes, [])
            found = [self._claim(conn, who, want.queue, want.n, now) for want in wants]
            return stale, [claim for claims in found for claim in claims]

    def complete_in(self, conn: Any, ending: Ending) -> bool:
        if type(ending.outcome) is not Done:
            raise UsageError(
                f"only a job that is Done can end in a transaction of the caller's, not {ending.outcome!r}"
            )
        guest = Borrowed(conn)
        if not guest.in_transaction():
            raise UsageError("the connection has no transaction open; begin one with: begin immediate")
        return not self._finalize(guest, [ending], self._now(), MAX_CRASHES, [])

    def progress(self, notes: Sequence[Note]) -> None:
        if notes := tidy_notes(notes):
            with self._writing() as (conn, now):
                operating.progress(conn, self._sql, notes, now)

    def next_due(self, queues: Sequence[str], low_waters: Mapping[str, LowWater] | None = None) -> float | None:  # noqa: ARG002
        # No marks, for the same reason as in `claim`.
        return self._reader.read(lambda conn: operating.next_due(conn, self._sql, queues, self._now()))

    # -- pods --------------------------------------------------------------------------------------------------

    def register(
        self, name: str, queues: Sequence[str], host: str, pid: int, capacity: int = 1, label: str | None = None
    ) -> Incarnation:
        params = {"name": name, "host": host, "pid": pid, "queues": rows.as_list(queues) or "[]", "capacity": capacity}
        with self._writing() as (conn, now):
            number = conn.rows(self._sql.register_pod.sql, {**params, "label": label, "now": now})[0][0]
        at = rows.as_datetime(now)
        return Incarnation(Pod(number, name, host, pid, tuple(queues), at, at, capacity, label))

    def beat(self, who: Incarnation) -> bool:
        with self._writing() as (conn, now):
            return conn.change(self._sql.beat.sql, {"pod": who.pod.id, "now": now}) == 1

    def pulse(self, who: Incarnation) -> tuple[bool, list[tuple[UUID, int]]]:
        alive = self.beat(who)
        return alive, self.cancel_requests(who) if alive else []

    def serve(self, who: Incarnation, queues: Sequence[str], capacity: int = 1) -> None:
        params = {"pod": who.pod.id, "queues": rows.as_list(queues) or "[]", "capacity": capacity}
        with self._writing() as (conn, _):
            conn.change(self._sql.serve_queues.sql, params)

    def deregister(self, who: Incarnation) -> int:
        with self._writing() as (conn, _):
            conn.rows(self._sql.deregister_pod.sql, {"pod": who.pod.id})
        return self.release(who.pod.id)

    def pods(self) -> list[Pod]:
        return [rows.as_pod(row) for row in self._rows("pods")]

    def release(self, pod: int, message: str | None = None, *, crashed: bool = False) -> int:
        return self._take_back(pod, Released(message, crashed))

    def _take_back(self, pod: int, outcome: Released | Failed, delay: float = 0.0, fates: Fates | None = None) -> int:
        """End every claim of a pod the same way, a batch at a time."""
        total = 0
        while True:
            with self._writing() as (conn, now):
                found = conn.rows(self._sql.claims_of_pod.sql, {"pod": pod, "limit": _TAKEN_BACK_AT_ONCE})
                endings = [Ending(_bare_claim(*row), outcome, delay) for row in found]
                batch = Endings(conn, self._sql, now, MAX_CRASHES)
                batch.finalize(endings)
            if fates is not None:
                fates += batch.fates
            total += len(found)
            if len(found) < _TAKEN_BACK_AT_ONCE:
                return total

    def reap(self, stale: float = 60.0, delay: float = 0.0, *, fates: Fates | None = None) -> Reaped:
        """A pod's row goes before its claims: if this is cut short, the next reaper finds them without an owner."""
        with self._writing() as (conn, now):
            gone = conn.rows(self._sql.remove_stale_pods.sql, {"before": now - rows.after(0, stale)})
            orphans = conn.rows(self._sql.orphan_owners.sql)
        jobs = sum(self._take_back(pod, Failed("reaped after stale heartbeat"), delay, fates) for (pod,) in orphans)
        return Reaped(sorted(pod for (pod,) in gone), jobs)

    # -- operating ---------------------------------------------------------------------------------------------

    def cancel(self, ids: Collection[UUID]) -> dict[UUID, Cancellation]:
        with self._writing() as (conn, now):
            return operating.cancel(conn, self._sql, ids, now)

    def delete(self, ids: Collection[UUID]) -> dict[UUID, Deletion]:
        with self._writing() as (conn, now):
            return operating.delete(conn, self._sql, ids, now)

    def retry(self, ids: Collection[UUID]) -> set[UUID]:
        with self._writing() as (conn, now):
            return operating.revive(conn, self._sql, ids, now, reset=True)

    def requeue(self, ids: Collection[UUID]) -> set[UUID]:
        with self._writing() as (conn, now):
            return operating.revive(conn, self._sql, ids, now, reset=False)

    def cancel_requests(self, who: Incarnation) -> list[tuple[UUID, int]]:
        return [(rows.as_uuid(id_), token) for id_, token in self._rows("cancel_requests", pod=who.pod.id)]

    def get(self, ids: Collection[UUID]) -> dict[UUID, Job]:
        def work(conn: Connection) -> list[tuple[Any, ...]]:
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
        with self._writing() as (conn, now):
            hold_term(conn, self._sql, term)
            return operating.prune(conn, self._sql, n, after, now)

    def listen(self) -> Listener:
        return SqliteListener(self._db) if self._listens else Deaf()


def _bare_claim(id_: bytes, token: int, keyed: int, queue: str) -> Claim:
    """Just enough of a claim to end it."""
    return Claim(0, None, rows.as_uuid(id_), token, queue, "", b"", 0, 0, 0, False, bool(keyed))
