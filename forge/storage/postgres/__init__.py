"""PostgreSQL behind the storage contract. The SQL is in sql/postgres/queries.sql, an essay beside each hard one."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg.conninfo import conninfo_to_dict

from forge.job import (
    ACTIVE,
    ENDED,
    Claim,
    Counts,
    Deduped,
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
    check_settings,
    run_plan,
)
from forge.storage.listener import Deaf, Listener
from forge.storage.low_water import MOST_BYTES
from forge.storage.migrations import SchemaState
from forge.storage.notes import tidy_notes
from forge.storage.postgres import guest, refusals
from forge.storage.postgres import schema as schema_of
from forge.storage.postgres.budgets import PostgresBudgets
from forge.storage.postgres.bulk import Bulk
from forge.storage.postgres.claims import Claims
from forge.storage.postgres.connection import LONG, TIMEOUT, Connection, Database, Rows, bare, pipeline
from forge.storage.postgres.leases import PostgresLeases, led
from forge.storage.postgres.lines import PostgresLines
from forge.storage.postgres.listener import PostgresListener
from forge.storage.postgres.metrics import PostgresMetrics
from forge.storage.postgres.rows import as_job, columns, encoded, fields, packed_ids, text_array, uuid_of
from forge.storage.postgres.schedules import PostgresSchedules
from forge.storage.postgres.shares import PostgresShares
from forge.storage.statements import check_schema_name, load_queries

__all__ = ["PostgresStorage"]

_UNFINISHED = 30.0  # seconds after which a pod that somebody was about to remove is removed by somebody else
# Seconds between looks for claims of pods that nobody knows of, from the first reaping on. There are none unless
# somebody has deleted a pod's row by hand; and it reads the whole table.
_SWEEP_EVERY = 3600.0
_AHEAD = 1.0  # seconds that ids may be ahead of the clock: they count on when many are made at once
CLAIMING = 2  # connections of a program that claims: one claims while the other ends
_LAST_ID = UUID(int=2**128 - 1)


class Role(NamedTuple):
    """What one of a pod's storages is for. A pod has a connection for each purpose that must not wait for another's,
    and one that listens: five in all."""

    connections: int
    by_index: bool  # sessions whose planner goes by index, once and for all
    timeout: float  # seconds that a statement may take


ROLES = {
    # One claims while the other ends; what handlers ask for and what schedules fire goes between.
    "work": Role(2, True, TIMEOUT),
    # Beats and the lease: both are tiny, and neither waits for a lock for more than a moment.
    "heart": Role(1, True, 3.0),
    # The rest, one after another: statements of all kinds, some of which take long.
    "services": Role(1, False, 10.0),
}


class PostgresStorage(Storage):
    """See `Storage`. One pool for programs, one for those of them that claim, and a connection for the lease, all made
    when needed; the storages of a pod have one pool for all, as their `role` says. Listeners have their own."""

    leases: PostgresLeases

    dialect = "postgres"

    def __init__(
        self,
        url: str,
        *,
        schema: str = "forge",
        pool_size: int = 4,
        listen_url: str | None = None,
        listen: bool = True,
        timeout: float | None = None,
        patience: float | None = None,
        keep: float | None = None,
        role: str | None = None,
    ) -> None:
        self._queries = load_queries("postgres", check_schema_name(schema))
        self._here: tuple[Any, ...] = ()  # which database and server this is; empty: not asked yet
        by_index = Step(self._queries.plan_by_index, {"local": False})

        def database(size: int, settle: Step | None = None, timeout: float | None = timeout) -> Database:
            return Database(url, schema, size, settle, timeout=timeout, patience=patience, keep=keep)

        if role is None:
            self._db, claiming, leasing = database(pool_size), database(CLAIMING, by_index), database(1)
        else:
            size, settled, usual = ROLES[role]
            self._db = database(size, by_index if settled else None, usual if timeout is None else timeout)
            claiming = leasing = self._db
        self._databases = {self._db, claiming, leasing}
        self._ears = Database(listen_url or url, schema, 1) if listen else None
        self._claims = Claims(claiming, self._queries, self.enqueue_plan)
        self.shares = PostgresShares(self._db, self._claims.ask, self._queries)
        self.lines = PostgresLines(self._claims, self._queries)
        self.budgets = PostgresBudgets(self._db, self._queries)
        self.leases = PostgresLeases(leasing, self._queries)
        self._sweep_at = 0.0  # monotonic
        self.schedules = PostgresSchedules(self._db, self._queries, self.enqueue_plan)
        self.metrics = PostgresMetrics(self._db, self._queries, lambda: sum(db.size for db in self._databases))
        parts = conninfo_to_dict(self._db.conninfo)
        self.url = f"postgresql://{parts.get('host', 'localhost')}/{parts.get('dbname', '')}"

    # -- the database ------------------------------------------------------------------------------------------

    def close(self) -> None:
        for database in self._databases:
            database.close()

    def schema_state(self) -> SchemaState:
        return schema_of.state(self._db)

    def migrate(self) -> list[tuple[int, str]]:
        return schema_of.migrate(self._db)

    def check_schema(self) -> None:
        schema_of.check(self._db)

    def now(self) -> float:
        return float(self._one("clock")[0])

    def _rows(self, name: str, /, **params: Any) -> list[tuple[Any, ...]]:
        return self._db.run(Step(getattr(self._queries, name), params))[0].fetchall()

    def _one(self, name: str, /, **params: Any) -> tuple[Any, ...]:
        return self._rows(name, **params)[0]

    def _long(self, name: str, /, **params: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement that may have to read all there is."""
        settings = Step(self._queries.take_your_time, {}), Step(self._queries.plan_by_scan, {})
        return self._db.run(*settings, Step(getattr(self._queries, name), params), limit=LONG)[2].fetchall()

    def _do(self, name: str, /, **params: Any) -> int:
        return self._db.run(Step(getattr(self._queries, name), params))[0].rowcount

    def _by_index(self, name: str, /, **params: Any) -> Rows:
        """A statement whose plan must not depend on statistics, nor on when it was made."""
        settle = Step(self._queries.plan_by_index, {"local": True})
        return self._db.run(settle, Step(getattr(self._queries, name), params))[1]

    def where(self) -> Step:
        step = Step(self._queries.where_am_i, {})
        if not self._here:
            self._here = self._db.run(step)[0].fetchall()[0][:2]
        return step

    def elsewhere(self, answer: Sequence[Sequence[Any]]) -> str | None:
        database, server, name, host, port = answer[0]
        if (database, server) == self._here:
            return None
        # Asked again: the server may have been started anew, or another one have taken its place.
        self._here = here = self._db.run(self.where())[0].fetchall()[0][:2]
        if (database, server) == here:
            return None
        which = "" if server == here[1] else f" of another server ({host}:{port})" if host else " of another server"
        return f"database {name}{which}"

    def connect(self) -> Any:
        try:
            return psycopg.connect(self._db.conninfo)
        except psycopg.OperationalError as e:
            raise self._db.unreachable(e) from None

    # -- producing ---------------------------------------------------------------------------------------------

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
        settle = Step(self._queries.plan_by_index, {"local": True})

        def work(conn: Connection) -> list[Receipt]:
            def execute(step: Step) -> list[tuple[Any, ...]]:
                return pipeline(conn, (settle, step))[1].fetchall()

            if not several:
                return run_plan(self.enqueue_plan(jobs), execute)
            with conn.transaction():
                return run_plan(self.enqueue_plan(jobs), execute)

        return self._db.attempt(work)

    def enqueue_plan(self, jobs: Sequence[NewJob]) -> Plan:
        if len(jobs) == 1 and jobs[0].dedupe_key is None and jobs[0].line is None:
            yield Step(self._queries.enqueue_one, fields(jobs[0]))
            return [Enqueued(jobs[0].id)]
        owner: dict[UUID, UUID] = {}
        waiting = list(jobs)
        while waiting:
            rows = yield Step(self._queries.enqueue, columns(waiting))
            owner |= {waiting[row[0] - 1].id: uuid_of(row[1]) for row in rows if row[1] is not None}
            # No owner yet: a racing producer took the key after our statement began. Now we can see it.
            waiting = [job for job in waiting if job.id not in owner]
        for job in jobs:
            if owner[job.id] != job.id and job.on_conflict != "keep":
                yield self._conflict(job, owner[job.id])
        return [Enqueued(job.id) if owner[job.id] == job.id else Deduped(owner[job.id]) for job in jobs]

    def _conflict(self, job: NewJob, owner: UUID) -> Step:
        if job.on_conflict == "replace":
            return Step(self._queries.replace_payload, {"id": str(owner), "payload": job.payload.decode()})
        at = job.run_at.timestamp() if job.run_at else None
        return Step(self._queries.push_run_at, {"id": str(owner), "run_at": at, "delay": job.delay})

    # -- claiming and ending -----------------------------------------------------------------------------------

    def claim(
        self,
        who: Incarnation,
        queue: str,
        n: int,
        low_water: LowWater | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> list[Claim]:
        return self._claims.claim(who, queue, n, low_water, most_bytes)

    def offer(self, who: Incarnation, token: int, queue: str, channel: str, beat_within: float) -> bool:
        return self._claims.offer(who, token, queue, channel, beat_within)

    def withdraw(self, who: Incarnation, tokens: Sequence[int]) -> None:
        self._claims.withdraw(who, tokens)

    def finalize(
        self,
        endings: Sequence[Ending],
        *,
        max_crashes: int = MAX_CRASHES,
        fates: Fates | None = None,
        lock_wait: float | None = None,
    ) -> list[Ending]:
        return self._claims.finalize(endings, max_crashes, fates, lock_wait)

    def locked(self, endings: Sequence[Ending]) -> list[Ending]:
        found = refusals.locked(self._claims.db, self._queries, [e.claim.id for e in endings])
        return [e for e in endings if e.claim.id in found]

    def lock_holder(self, claim: Claim) -> str | None:
        return refusals.lock_holder(self._claims.db, self._queries, claim)

    def try_writing(self, size: int = 0) -> None:
        refusals.try_writing(self._claims.db, self._queries, size)

    def claims_of(self, pod: int) -> list[Claim]:
        return self._claims.search("claims_of_pods", pods=[pod], orphans=False)

    def exchange(
        self, who: Incarnation, endings: Sequence[Ending], wants: Sequence[Want], *, max_crashes: int = MAX_CRASHES
    ) -> tuple[list[Ending], list[Claim]]:
        return self._claims.exchange(who, endings, wants, max_crashes)

    def complete_in(self, conn: Any, ending: Ending) -> bool:
        return guest.complete(conn, self._queries, ending, self.enqueue_plan)

    def progress(self, notes: Sequence[Note]) -> None:
        if notes := tidy_notes(notes):
            ids, tokens, percents, messages = zip(*notes, strict=True)
            params = {
                "ids": packed_ids(ids),
                "claims": list(tokens),
                "percents": list(percents),
                "messages": list(messages),
            }
            self._by_index("progress", **params)

    def next_due(self, queues: Sequence[str], low_waters: Mapping[str, LowWater] | None = None) -> float | None:
        return self._claims.next_due(queues, low_waters or {})

    # -- pods --------------------------------------------------------------------------------------------------

    def register(
        self, name: str, queues: Sequence[str], host: str, pid: int, capacity: int = 1, label: str | None = None
    ) -> Incarnation:
        given = {
            "name": name,
            "host": host,
            "pid": pid,
            "queues": text_array(queues),
            "capacity": capacity,
            "label": label,
        }
        # On a connection that beats: who was taken for dead needs no other for this.
        number, started, beat = self._claims.ask(Step(self._queries.register_pod, given))[0]
        who = Incarnation(Pod(number, name, host, pid, tuple(queues), started, beat, capacity, label))
        self._claims.register(who)
        return who

    def beat(self, who: Incarnation) -> bool:
        return self._claims.ask(Step(self._queries.beat, {"pod": who.pod.id})) != []

    def pulse(self, who: Incarnation) -> tuple[bool, list[tuple[UUID, int]]]:
        found = self._claims.ask(Step(self._queries.pulse, {"pod": who.pod.id}))
        return found[0][0] is not None, [(id_, token) for _, id_, token in found if id_ is not None]

    def serve(self, who: Incarnation, queues: Sequence[str], capacity: int = 1) -> None:
        self._do("serve_queues", pod=who.pod.id, queues=list(queues), capacity=capacity)

    def deregister(self, who: Incarnation) -> int:
        pod = who.pod.id
        self._do("mark_pod", pod=pod)
        released = 0 if self._claims.holds_none(who) else self.release(pod)
        self._do("remove_pods", pods=[pod])
        return released

    def pods(self) -> list[Pod]:
        return [Pod(row[0], row[1], row[2], row[3], tuple(row[4]), *row[5:]) for row in self._rows("pods")]

    def release(self, pod: int, message: str | None = None, *, crashed: bool = False) -> int:
        return self._take_back([pod], Released(message, crashed))

    def _take_back(
        self,
        pods: Sequence[int],
        outcome: Released | Failed,
        delay: float = 0.0,
        all: bool = False,
        fates: Fates | None = None,
    ) -> int:
        """End every claim of these pods the same way, and with `all` those of pods that nobody knows of."""
        claims = self._claims.search("claims_of_pods", pods=list(pods), orphans=all)
        endings = [Ending(claim, outcome, delay) for claim in claims]
        stale = [self.finalize(endings[at : at + 1000], fates=fates) for at in range(0, len(endings), 1000)]
        return len(endings) - sum(map(len, stale))

    def reap(self, stale: float = 60.0, delay: float = 0.0, *, fates: Fates | None = None) -> Reaped:
        gone = [row[0] for row in self._rows("mark_stale_pods", stale=stale, unfinished=_UNFINISHED)]
        sweep = time.monotonic() >= self._sweep_at
        if not gone and not sweep:
            return Reaped([], 0)
        jobs = self._take_back(gone, Failed("reaped after stale heartbeat"), delay, all=sweep, fates=fates)
        if sweep:
            self._sweep_at = time.monotonic() + _SWEEP_EVERY
        self._do("remove_pods", pods=gone)
        return Reaped(gone, jobs)

    # -- operating ---------------------------------------------------------------------------------------------

    def cancel(self, ids: Collection[UUID]) -> dict[UUID, Cancellation]:
        return self._change("cancel", ids)

    def delete(self, ids: Collection[UUID]) -> dict[UUID, Deletion]:
        return self._change("delete", ids)

    def retry(self, ids: Collection[UUID]) -> set[UUID]:
        return set(self._change("revive", ids, reset=True))

    def requeue(self, ids: Collection[UUID]) -> set[UUID]:
        return set(self._change("revive", ids, reset=False))

    def _change(self, name: str, ids: Collection[UUID], **params: Any) -> dict[UUID, Any]:
        """An operator's verb on jobs by id; the keys of those it ended are given back in the same transaction."""
        packed = packed_ids(sorted(ids, key=lambda i: i.int))
        settings = Step(self._queries.take_your_time, {}), Step(self._queries.plan_by_index, {"local": True})
        change = Step(getattr(self._queries, name), {"ids": packed, **params})
        settle = Step(self._queries.settle_keys, {"ids": packed})
        return {row[0]: row[1] for row in self._db.run(*settings, change, settle, limit=LONG)[2].fetchall()}

    def cancel_requests(self, who: Incarnation) -> list[tuple[UUID, int]]:
        rows = self._claims.ask(Step(self._queries.cancel_requests, {"pod": who.pod.id}))
        return [(row[0], row[1]) for row in rows]

    def get(self, ids: Collection[UUID]) -> dict[UUID, Job]:
        return {row[0]: as_job(row) for row in self._by_index("get", ids=packed_ids(list(ids))).fetchall()}

    def find(self, where: JobFilter, limit: int = 50, cursor: str | None = None) -> Page:
        params = {
            "before": UUID(cursor) if cursor else _LAST_ID,
            "statuses": [str(s) for s in where.statuses] or None,
            "queues": list(where.queues) or None,
            "kinds": list(where.kinds) or None,
            "tag": where.tag,
            "limit": limit + 1,
        }
        found = self._long(_listing(where.statuses), **params)
        jobs = [as_job(row) for row in found[:limit]]
        return Page(jobs, jobs[-1].id.hex if len(found) > limit else None)

    def counts(self) -> dict[str, Counts]:
        return {row[0]: Counts(*row[1:]) for row in self._long("counts")}

    def ended_counts(self) -> dict[str, dict[Status, int]]:
        found: dict[str, dict[Status, int]] = {}
        for queue, status, count in self._long("ended_counts"):
            found.setdefault(queue, {})[Status(status)] = count
        return found

    def queues(self) -> dict[str, QueueSettings]:
        return {row[0]: QueueSettings(*row) for row in self._rows("queues")}

    def set_queue(self, name: str, **settings: Any) -> QueueSettings:
        found = QueueSettings(*self._one("set_queue", name=name, **check_settings(name, settings)))
        if settings.get("paused") is False:
            self._rows("notify", queues=[name])
        return found

    def set_wake(self, queue: str, wake: bool) -> None:
        self._do("set_wake", queue=queue, wake=wake)

    def prune(self, n: int = 1000, after: str | None = None, *, term: int | None = None) -> Pruned:
        """An id begins with the time it was made at, and no job ends before: ids younger than the shortest retention
        are not looked at (if a producer's clock was ahead, its jobs go as much later). Ids from tomorrow on have no
        such time (a clock was wrong, or they are of another version): all of these are."""

        def leading(name: str, **params: Any) -> list[tuple[Any, ...]]:
            step = Step(getattr(self._queries, name), params)
            cursor = led(self._db, self._queries, term, lambda conn: pipeline(conn, [step])[0])
            return cursor.fetchall() if cursor.description else []

        least, now = self._one("shortest_retention")
        young, odd = _id_of_time(now - least + _AHEAD), _id_of_time(now + 86_400)
        at = UUID(after) if after else UUID(int=0)
        walked = deleted = 0
        floor: str | None = None
        for last in (young, _LAST_ID):
            if last == _LAST_ID:
                at = max(at, odd)
            if at <= last:
                looked, gone, upto, kept = leading("prune", n=n - walked, first=at, last=last)[0]
                walked, deleted = walked + looked, deleted + gone
                following = UUID(int=min(upto.int + 1, _LAST_ID.int)) if upto else at
                if last == young and looked:
                    floor = str(kept or following)
                if walked >= n and upto < _LAST_ID:
                    return Pruned(walked, deleted, str(following), floor)
        leading("prune_keys", n=n)
        return Pruned(walked, deleted, None, floor)

    def listen(self) -> Listener:
        return PostgresListener(self._ears) if self._ears else Deaf()


def _id_of_time(seconds: float) -> UUID:
    """Below every id that was made then or later."""
    return UUID(int=max(0, int(seconds * 1000)) << 80)


def _listing(statuses: Collection[Status]) -> str:
    """The query that looks no further than it must."""
    live, ended = ACTIVE.intersection(statuses), ENDED.intersection(statuses)
    if bool(live) == bool(ended):  # both, or no filter at all
        return "list_all"
    if live:
        return "list_live"
    return "list_ended" if Status.DONE in ended else "list_unhappy"
