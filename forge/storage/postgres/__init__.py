"""PostgreSQL behind the storage contract. The SQL is in sql/postgres/queries.sql, with an essay at each hard statement."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.conninfo import conninfo_to_dict

from forge import codec, fastpath
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
    Incarnation,
    Listener,
    LowWater,
    Plan,
    Pruned,
    Reaped,
    SchemaState,
    Step,
    Storage,
    Want,
    check_settings,
    run_plan,
    scan,
)
from forge.storage.postgres import schema as schema_of
from forge.storage.postgres.connection import Connection, Database, Int8Array, Rows, UuidArray, pipeline
from forge.storage.postgres.endings import Batch
from forge.storage.postgres.listener import PostgresListener
from forge.storage.statements import check_schema_name, load_queries

__all__ = ["PostgresStorage"]

_EPOCH_2000 = 946_684_800_000_000  # µs between 1970 and PostgreSQL's own epoch
_COPY_HEAD = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_COPY_TAIL = b"\xff\xff"
_COPY_CHUNK = 5_000  # rows encoded between two writes: a megabyte or so
_COPY_FROM = 20  # jobs; below, one INSERT is a round trip less
_START = (-32_768, datetime(1, 1, 1, tzinfo=UTC), UUID(int=0))
_LAST_ID = UUID(int=(1 << 128) - 1)
# A claim whose answer was lost can still commit while its backend works on: look for it this long, once a second.
_DOUBT_SECONDS = 60.0


class PostgresStorage(Storage):
    """See `Storage`. One pool; the listener has a connection of its own."""

    dialect = "postgres"

    def __init__(self, url: str, *, schema: str = "forge", pool_size: int = 4) -> None:
        self._queries = load_queries("postgres", check_schema_name(schema))
        self._db = Database(url, schema, pool_size)
        parts = conninfo_to_dict(self._db.conninfo)
        self.url = f"postgresql://{parts.get('host', 'localhost')}/{parts.get('dbname', '')}"
        self._doubts: dict[int, tuple[float, float]] = {}  # token: (until, next look), monotonic

    # -- the database ------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._db.close()

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

    def _do(self, name: str, /, **params: Any) -> int:
        return self._db.run(Step(getattr(self._queries, name), params))[0].rowcount

    # -- producing ---------------------------------------------------------------------------------------------

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        if len(jobs) >= _COPY_FROM and not any(job.dedupe_key for job in jobs):
            try:
                return self._copy(jobs)
            except psycopg.errors.UniqueViolation:
                pass  # some are known already: sent again after a lost answer
        several = any(job.on_conflict != "keep" for job in jobs)

        def work(conn: Connection) -> list[Receipt]:
            with ExitStack() as stack:
                if several:
                    stack.enter_context(conn.transaction())
                return run_plan(self.enqueue_plan(jobs), lambda step: pipeline(conn, [step])[0].fetchall())

        return self._db.attempt(work)

    def enqueue_plan(self, jobs: Sequence[NewJob]) -> Plan:
        owner: dict[UUID, UUID] = {}
        waiting = list(jobs)
        while waiting:
            rows = yield Step(self._queries.enqueue, _columns(waiting))
            owner |= {waiting[row[0] - 1].id: _uuid(row[1]) for row in rows if row[1] is not None}
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

    def _copy(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """Bulk: one COPY in binary, all or nothing."""
        timed = any(job.run_at is not None or job.delay for job in jobs)
        statement = (self._queries.copy_jobs_timed if timed else self._queries.copy_jobs).sql
        notify = Step(self._queries.notify, {"queues": list({job.queue for job in jobs})})

        def work(conn: Connection) -> None:
            now = pipeline(conn, [Step(self._queries.clock, {})])[0].fetchall()[0][0] if timed else 0.0
            with conn.transaction(), conn.cursor() as cursor:
                with cursor.copy(statement) as copy:  # type: ignore[arg-type]
                    copy.write(_COPY_HEAD)
                    for i in range(0, len(jobs), _COPY_CHUNK):
                        chunk = jobs[i : i + _COPY_CHUNK]
                        copy.write(fastpath.copy_rows(chunk, [_micros(job, now) for job in chunk] if timed else None))
                    copy.write(_COPY_TAIL)
                if self._ended_before(conn, jobs):
                    raise psycopg.errors.UniqueViolation("a job of this bulk has ended already")
                pipeline(conn, [notify])

        try:
            self._db.attempt(work)
        except Exception as e:
            if isinstance(e.__cause__, psycopg.errors.UniqueViolation):
                raise e.__cause__ from None
            raise
        return [Enqueued(job.id) for job in jobs]

    def _ended_before(self, conn: Connection, jobs: Sequence[NewJob]) -> bool:
        ids = sorted((job.id for job in jobs), key=lambda id_: id_.int)
        span = Step(self._queries.ended_between, {"first": ids[0], "last": ids[-1]})
        exact = Step(self._queries.ended_already, {"ids": _ids(ids)})
        return all(pipeline(conn, [step])[0].fetchall()[0][0] for step in (span, exact))

    # -- claiming and ending -----------------------------------------------------------------------------------

    def claim(self, who: Incarnation, queue: str, n: int, low_water: LowWater | None = None) -> list[Claim]:
        self._settle_doubts(who)

        def once(n: int, mark: tuple[int, Any, UUID] | None) -> list[Claim]:
            def work(conn: Connection) -> list[Claim]:
                # A token of its own for each try: the lost one may yet commit, and must be told apart.
                with _Doubt(who) as token:
                    steps = [Step(self._queries.plan_by_index_unsynced, {}), self._claim_step(token, queue, n, mark)]
                    return _claims(pipeline(conn, steps)[-1], token, queue)

            return self._db.attempt(work)

        return scan(low_water, n, once)

    def finalize(self, endings: Sequence[Ending], *, max_crashes: int = MAX_CRASHES) -> list[Ending]:
        if not endings:
            return []
        return self._end(endings, max_crashes, lambda conn, steps: (pipeline(conn, steps), None))[0]

    def exchange(
        self, who: Incarnation, endings: Sequence[Ending], wants: Sequence[Want], *, max_crashes: int = MAX_CRASHES
    ) -> tuple[list[Ending], list[Claim]]:
        self._settle_doubts(who)
        wants = [want for want in wants if want.n > 0]

        def run(conn: Connection, steps: Sequence[Step]) -> tuple[list[Rows], list[Claim]]:
            began = time.monotonic()
            marks = [want.low_water.begin(began) for want in wants]
            found: list[Claim] = []
            with ExitStack() as stack:
                tokens = [stack.enter_context(_Doubt(who)) for _ in wants]
                claim_steps = [
                    self._claim_step(t, w.queue, w.n, m) for t, w, m in zip(tokens, wants, marks, strict=True)
                ]
                cursors = pipeline(conn, [*steps, *claim_steps])
                taken = cursors[len(steps) :]
                for token, want, mark, cursor in zip(tokens, wants, marks, taken, strict=True):
                    claims = _claims(cursor, token, want.queue)
                    want.low_water.note(claims, mark is None, began, time.monotonic())
                    if len(claims) < want.n and mark is not None:
                        want.low_water.forget()
                    found += claims
            return cursors, found

        return self._end(endings, max_crashes, run)

    def _end(
        self, endings: Sequence[Ending], max_crashes: int, run: Callable[[Connection, Sequence[Step]], tuple[list[Rows], Any]]
    ) -> tuple[list[Ending], Any]:
        """Finalize with whatever else `run` puts into the same transaction."""
        tries = 0
        batch = Batch(self._queries, endings, max_crashes)
        steps = [Step(self._queries.plan_by_index, {}), *batch.steps()]

        def work(conn: Connection) -> tuple[list[Rows], Any]:
            nonlocal tries
            tries += 1
            return run(conn, steps)

        cursors, extra = self._db.attempt(work)
        batch.read(cursors[1:])
        if tries > 1 and batch.stale:
            batch.stale = self._still_stale(batch.stale)
        return batch.stale, extra

    def _still_stale(self, stale: Sequence[Ending]) -> list[Ending]:
        """After a lost answer: an ending that is in history under its own token had succeeded the first time."""
        ids, tokens = [e.claim.id for e in stale], [e.claim.token for e in stale]
        rows = self._rows("finalized_before", ids=_ids(ids), claims=Int8Array(fastpath.int8_array(tokens)))
        before = {row[0] for row in rows}
        return [e for e in stale if e.claim.id not in before]

    def _claim_step(self, token: int, queue: str, n: int, mark: tuple[int, Any, UUID] | None) -> Step:
        priority, run_at, last = mark or _START
        params = {"claim": token, "queue": queue, "n": n, "mark_priority": priority, "mark_run_at": run_at, "mark_id": last}
        return Step(self._queries.claim, params)

    def _settle_doubts(self, who: Incarnation) -> None:
        """Give back what claims with a lost answer had claimed: nobody runs those jobs, yet their owner is alive."""
        now = time.monotonic()
        for token in who.doubtful - self._doubts.keys():
            self._doubts[token] = (now + _DOUBT_SECONDS, now)
        for token, (until, look) in list(self._doubts.items()):
            if now < look:
                continue
            claims = _claims(self._db.run(Step(self._queries.claimed, {"claim": token}))[0], token, "")
            self.finalize([Ending(claim, Released()) for claim in claims])
            self._doubts[token] = (until, now + 1.0)
            if now >= until:
                del self._doubts[token]
                who.doubtful.discard(token)

    # -- pods --------------------------------------------------------------------------------------------------

    def register(self, name: str, queues: Sequence[str], host: str, pid: int) -> Incarnation:
        number, started, beat = self._one("register_pod", name=name, host=host, pid=pid, queues=list(queues))
        return Incarnation(Pod(number, name, host, pid, tuple(queues), started, beat))

    def beat(self, who: Incarnation) -> bool:
        return self._do("beat", pod=who.pod.id) == 1

    def deregister(self, who: Incarnation) -> int:
        released = self.release(who.pod.id)
        self._do("deregister_pod", pod=who.pod.id)
        return released

    def pods(self) -> list[Pod]:
        return [Pod(row[0], row[1], row[2], row[3], tuple(row[4]), row[5], row[6]) for row in self._rows("pods")]

    def release(self, pod: int, message: str | None = None, *, crashed: bool = False) -> int:
        return self._take_back(pod, Released(message, crashed))

    def _take_back(self, pod: int, outcome: Released | Failed, delay: float = 0.0) -> int:
        """End every claim of a pod the same way, a batch at a time."""
        total = 0
        while True:
            rows = self._rows("claims_of_pod", pod=pod, limit=1000)
            endings = [Ending(_bare_claim(*row), outcome, delay) for row in rows]
            stale = self.finalize(endings)
            total += len(endings) - len(stale)
            if len(rows) < 1000:
                return total

    def reap(self, stale: float = 60.0, delay: float = 0.0) -> Reaped:
        """Each pod goes in a transaction with its row locked: a beat came first, or finds nothing."""
        gone = [row[0] for row in self._rows("remove_stale_pods", stale=stale)]
        orphans = {row[0] for row in self._rows("orphan_owners")}
        jobs = sum(self._take_back(pod, Failed("reaped after stale heartbeat"), delay) for pod in sorted(orphans))
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
        packed = _ids(sorted(ids, key=lambda i: i.int))
        steps = [
            Step(self._queries.plan_by_index, {}),
            Step(getattr(self._queries, name), {"ids": packed, **params}),
            Step(self._queries.settle_keys, {"ids": packed}),
        ]
        return {row[0]: row[1] for row in self._db.run(*steps)[1].fetchall()}

    def cancel_requests(self, who: Incarnation) -> list[tuple[UUID, int]]:
        return [(row[0], row[1]) for row in self._rows("cancel_requests", pod=who.pod.id)]

    def get(self, ids: Collection[UUID]) -> dict[UUID, Job]:
        return {row[0]: _job(row) for row in self._rows("get", ids=_ids(list(ids)))}

    def find(self, where: JobFilter, limit: int = 50, cursor: str | None = None) -> Page:
        params = {
            "before": UUID(cursor) if cursor else _LAST_ID,
            "statuses": [str(s) for s in where.statuses] or None,
            "queues": list(where.queues) or None,
            "kinds": list(where.kinds) or None,
            "tag": where.tag,
            "limit": limit + 1,
        }
        rows: list[tuple[Any, ...]] = []
        if not where.statuses or where.statuses & ACTIVE:
            rows += self._rows("list_live", **params)
        if not where.statuses or where.statuses & ENDED:
            happy = not where.statuses or Status.DONE in where.statuses
            rows += self._rows("list_ended" if happy else "list_unhappy", **params)
        # A job that ended between the two reads is in both: the later one counts.
        newest = {row[0]: row for row in rows}
        found = sorted(newest.values(), key=lambda row: row[0].int, reverse=True)
        jobs = [_job(row) for row in found[:limit]]
        return Page(jobs, jobs[-1].id.hex if len(found) > limit else None)

    def counts(self) -> dict[str, Counts]:
        return {row[0]: Counts(*row[1:]) for row in self._rows("counts")}

    def ended_counts(self) -> dict[str, dict[Status, int]]:
        found: dict[str, dict[Status, int]] = {}
        for queue, status, count in self._rows("ended_counts"):
            found.setdefault(queue, {})[Status(status)] = count
        return found

    def queues(self) -> dict[str, QueueSettings]:
        return {row[0]: QueueSettings(*row) for row in self._rows("queues")}

    def set_queue(self, name: str, **settings: Any) -> QueueSettings:
        return QueueSettings(*self._one("set_queue", name=name, **check_settings(name, settings)))

    def set_wake(self, queue: str, wake: bool) -> None:
        self._do("set_wake", queue=queue, wake=wake)

    def prune(self, n: int = 1000, after: str | None = None) -> Pruned:
        least = self._one("shortest_retention")[0]
        since = datetime.fromisoformat(after) if after else _START[1]
        walked, deleted, last = self._one("prune", n=n, after=since, least=least)
        if walked < n:
            self._do("prune_keys", n=n)
        return Pruned(walked, deleted, last.isoformat() if walked >= n else None)

    def listen(self) -> Listener:
        return PostgresListener(self._db)


class _Doubt:
    """A token that stays doubtful if the statements that use it end in an exception."""

    def __init__(self, who: Incarnation) -> None:
        self._who = who

    def __enter__(self) -> int:
        self._token = self._who.mint()
        return self._token

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._who.doubtful.add(self._token)


def _ids(ids: Sequence[UUID]) -> UuidArray:
    return UuidArray(fastpath.uuid_array(ids))


def _uuid(value: Any) -> UUID:
    """asyncpg and some dialects answer with their own subclass or with text."""
    return value if type(value) is UUID else UUID(str(value))


def _claims(cursor: Rows, token: int, queue: str) -> list[Claim]:
    """Rows as claims, in claim order (an UPDATE answers in the order of row addresses)."""
    found = [_make_claim((*row[:3], token, queue, *row[3:])) for row in cursor.fetchall()]
    found.sort(key=_claim_order)
    return found


_make_claim = Claim._make


def _claim_order(claim: Claim) -> tuple[Any, ...]:
    return claim[0], claim[1], claim[2].int


def _bare_claim(id_: UUID, token: int, keyed: bool, queue: str) -> Claim:
    """Just enough of a claim to end it."""
    return Claim(0, None, id_, token, queue, "", b"", 0, 0, 0, False, keyed)


def _micros(job: NewJob, now: float) -> int:
    at = job.run_at.timestamp() if job.run_at else now + job.delay
    return round(at * 1_000_000) - _EPOCH_2000


def _columns(jobs: Sequence[NewJob]) -> dict[str, list[Any]]:
    """Jobs as the arrays of `enqueue`, in types that every driver can send."""
    return {
        "ids": [str(job.id) for job in jobs],
        "queues": [job.queue for job in jobs],
        "kinds": [job.kind for job in jobs],
        "payloads": [job.payload.decode() for job in jobs],
        "priorities": [job.priority for job in jobs],
        "run_ats": [job.run_at.timestamp() if job.run_at else None for job in jobs],
        "delays": [float(job.delay) for job in jobs],
        "max_attempts": [job.max_attempts for job in jobs],
        "timeouts": [job.timeout for job in jobs],
        "dedupe_keys": [job.dedupe_key for job in jobs],
        "unique_fors": [job.unique_for for job in jobs],
        "keep_results": [job.keep_result for job in jobs],
        "tags": [_array_literal(job.tags) if job.tags else None for job in jobs],
    }


def _array_literal(items: Iterable[str]) -> str:
    """A text[] as text: arrays of arrays must be rectangular, tags are not."""
    quoted = ('"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"' for item in items)
    return "{" + ",".join(quoted) + "}"


def _job(row: Sequence[Any]) -> Job:
    (id_, queue, kind, status, payload, priority, attempts, max_attempts, crashes, timeout, run_at, enqueued_at, claimed_at,
     dedupe_key, unique_for, keep_result, tags, errors, cancelled_at, pod, now, finished_at, result) = row  # fmt: skip
    expired = keep_result is not None and finished_at is not None and (now - finished_at).total_seconds() > keep_result
    return Job(
        id=id_, queue=queue, kind=kind, status=Status(status), payload=codec.decode(payload), priority=priority,
        attempts=attempts, max_attempts=max_attempts, crashes=crashes, timeout=timeout, run_at=_utc(run_at),
        enqueued_at=_utc(enqueued_at), claimed_at=claimed_at and _utc(claimed_at), finished_at=finished_at and _utc(finished_at),
        dedupe_key=dedupe_key, unique_for=unique_for, keep_result=keep_result, tags=tuple(tags or ()),
        errors=tuple(codec.decode(errors)) if errors else (), result=codec.decode(result) if result and not expired else None,
        cancel_requested_at=cancelled_at and _utc(cancelled_at), pod=pod,
    )  # fmt: skip


def _utc(value: datetime) -> datetime:
    return value.astimezone(UTC)
