"""How claims end: all that are done in two statements, every other by its own row's state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import orjson

from forge import fastpath
from forge.job import Cancelled, Dead, Done, Ending, Failed, Outcome, Released, Snooze, Status, Throttled
from forge.storage.contract import Fates
from forge.storage.shared.endings import THROTTLE_GRACE_SECONDS, accepted_children, longest_hint, spares_queue
from forge.storage.shared.plans import run_plan
from forge.storage.shared.statements import Queries
from forge.storage.sqlite.drivers import SqliteConnection
from forge.storage.sqlite.enqueue import enqueue_plan
from forge.storage.sqlite.rows import add_error, after, as_list

__all__ = ["CANCELLED", "SqliteEndings", "end_job", "finalize"]

CANCELLED = "cancelled by user"
_REFUNDED = (Throttled, Snooze, Released)


def end_job(
    conn: SqliteConnection, sql: Queries, id_: bytes, status: Status, crashes: int, errors: str | None, now: int
) -> None:
    """Move a job to history and give back its key."""
    params = {"id": id_, "status": status.value, "crashes": crashes, "errors": errors, "now": now}
    conn.rows(sql.end_job.sql, params)
    conn.rows(sql.remove_job.sql, params)
    settle_keys(conn, sql, [id_])


def settle_keys(conn: SqliteConnection, sql: Queries, ids: Sequence[bytes]) -> None:
    """Free the keys of jobs that have just ended, or hold them for their unique_for."""
    conn.many(sql.free_key.sql, [{"id": id_} for id_ in ids])
    conn.many(sql.hold_key.sql, [{"id": id_} for id_ in ids])


def finalize(
    conn: SqliteConnection, sql: Queries, endings: Sequence[Ending], now: int, max_crashes: int, fates: Fates
) -> list[Ending]:
    """End claims in a transaction, and store their children; answers the stale ones. See `Storage.finalize`."""
    batch = SqliteEndings(conn, sql, now, max_crashes)
    stale = batch.finalize(endings)
    fates += batch.fates
    if any(ending.children for ending in endings):
        plan = enqueue_plan(sql, accepted_children(endings, stale), now)
        run_plan(plan, lambda step: conn.rows(step.query.sql, step.params))
    return stale


class SqliteEndings:
    """The endings of one transaction."""

    def __init__(self, conn: SqliteConnection, sql: Queries, now: int, max_crashes: int) -> None:
        self._conn = conn
        self._sql = sql
        self._now = now
        self._max_crashes = max_crashes
        self.fates: Fates = []  # of those that are not done

    def finalize(self, endings: Sequence[Ending]) -> list[Ending]:
        """End what is still its owner's and answer the rest."""
        if (packed := fastpath.plain_endings(endings, False)) is not None:
            return self._finish(endings, packed)
        stale: list[Ending] = []
        if len({e.claim.id.int for e in endings}) < len(endings):
            endings, stale = self._sort_out(endings)
        done = [e for e in endings if type(e.outcome) is Done]
        if done:
            stale += self._finish(done)
        if len(done) < len(endings):
            stale += self._other([e for e in endings if type(e.outcome) is not Done])
        return stale

    def _sort_out(self, endings: Sequence[Ending]) -> tuple[list[Ending], list[Ending]]:
        """(still its owner's, stale). The second ending of one claim is stale."""
        ours = {(id_, token) for id_, token in self._conn.rows(self._sql.ours.sql, _batch(endings))}
        good: list[Ending] = []
        stale: list[Ending] = []
        for ending in endings:
            claim = ending.claim.id.bytes, ending.claim.token
            (good if claim in ours else stale).append(ending)
            ours.discard(claim)
        return good, stale

    def _finish(self, done: Sequence[Ending], packed: fastpath.Plain | None = None) -> list[Ending]:
        """All are done; `packed` if they are plain."""
        batch = _batch(done) if packed is None else {"ids": packed[0], "tokens": packed[1].decode()}
        found = self._conn.rows(self._sql.rowids.sql, batch)
        stale: list[Ending] = []
        if len(found) < len(done):
            done, stale = self._sort_out(done)
        queues = {e.claim.queue for e in done} if packed is None or stale else packed[2]
        batch = {"rowids": orjson.dumps([row[0] for row in found]).decode(), "now": self._now}
        self._conn.rows(self._sql.finalize_done.sql, batch)
        self._conn.rows(self._sql.remove_batch.sql, batch)
        if packed is None:
            self._keep(done)
        if found and found[0][1]:
            grace = after(0, THROTTLE_GRACE_SECONDS)
            self._conn.rows(self._sql.warm_up.sql, {"queues": as_list(queues), "now": self._now, "grace": grace})
        return stale

    def _keep(self, done: Sequence[Ending]) -> None:
        """The results of jobs that have just been moved, and what becomes of their keys."""
        kept = [(e.result.decode(), e.claim.id.bytes) for e in done if e.result is not None]
        if kept:
            self._conn.many(self._sql.keep_result.text("qmark"), kept)
        if keyed := [e.claim.id.bytes for e in done if e.claim.keyed]:
            settle_keys(self._conn, self._sql, keyed)

    def _other(self, endings: Sequence[Ending]) -> list[Ending]:
        self._cool_down([e for e in endings if isinstance(e.outcome, Throttled)])
        return [e for e in endings if not self._end(e)]

    def _cool_down(self, throttled: Sequence[Ending]) -> None:
        groups: dict[tuple[str, bool], list[Ending]] = defaultdict(list)
        for ending in throttled:
            groups[ending.claim.queue, spares_queue(ending.outcome)].append(ending)
        for (queue, job_only), endings in groups.items():
            if not self._conn.rows(self._sql.ours.sql, _batch(endings)):
                continue
            hint = longest_hint(endings)
            params = {"queue": queue, "job_only": job_only, "hint": hint, "now": self._now}
            self._conn.rows(self._sql.ensure_queue.sql, params)
            self._conn.rows(self._sql.cool_down.sql, params)

    def _end(self, ending: Ending) -> bool:
        """End one claim; False if it is stale."""
        claim, outcome = ending.claim, ending.outcome
        id_ = claim.id.bytes
        found = self._conn.rows(self._sql.claimed_job.sql, {"id": id_, "token": claim.token})
        if not found:
            return False
        attempts, max_attempts, crashes, cancelled, errors, queue, run_at, enqueued_at = found[0]
        crashes += isinstance(outcome, Released) and outcome.crashed
        message = CANCELLED if cancelled else getattr(outcome, "message", None)
        if message is not None:
            errors = add_error(errors, self._now, attempts, message, ending.traceback)
        status = self._verdict(ending, attempts, max_attempts, crashes, bool(cancelled))
        if status is not Status.CANCELLED and self._too_old(outcome, enqueued_at):
            status = Status.DEAD
            self._conn.rows(self._sql.refund.sql, {"id": id_})
        if status in (Status.DEAD, Status.CANCELLED):
            end_job(self._conn, self._sql, id_, status, crashes, errors, self._now)
        else:
            attempts -= isinstance(outcome, _REFUNDED)
            params = {"id": id_, "status": status.value, "attempts": attempts, "crashes": crashes, "errors": errors}
            self._conn.rows(self._sql.give_back.sql, params | {"run_at": self._run_at(ending, queue, run_at, attempts)})
        self.fates.append((ending, status))
        return True

    def _verdict(self, ending: Ending, attempts: int, max_attempts: int, crashes: int, cancelled: bool) -> Status:
        outcome = ending.outcome
        if cancelled or isinstance(outcome, Cancelled):
            return Status.CANCELLED
        match outcome:
            case Dead():
                return Status.DEAD
            case Failed():
                return Status.DEAD if attempts >= max_attempts else Status.FAILED
            case Released(crashed=True) if crashes >= self._max_crashes:
                return Status.DEAD
            case Released(crashed=False) if ending.delay > 0:
                return Status.FAILED
            case Released() | Snooze() | Throttled():
                return Status.PENDING
        raise TypeError(f"not an outcome: {outcome!r}")

    def _too_old(self, outcome: Outcome, enqueued_at: int) -> bool:
        if not isinstance(outcome, Released) or outcome.give_up_after is None:
            return False
        return after(enqueued_at, outcome.give_up_after) <= self._now

    def _backoff(self, ending: Ending, queue: str, attempts: int) -> float:
        """Seconds until a retry: by the task, or by the queue where that has a curve and the task none."""
        if ending.delay >= 0:
            return ending.delay
        found = self._conn.rows(self._sql.backoff_of.sql, {"queue": queue, "attempts": attempts})
        return float(found[0][0]) if found else -ending.delay

    def _run_at(self, ending: Ending, queue: str, before: int, attempts: int) -> int:
        outcome = ending.outcome
        if isinstance(outcome, Released) and ending.delay == 0:
            return before  # it keeps its place
        if isinstance(outcome, Snooze):
            return after(self._now, outcome.seconds)
        if not isinstance(outcome, Throttled):
            return after(self._now, self._backoff(ending, queue, attempts))
        found = self._conn.rows(self._sql.throttle_of.sql, {"queue": queue})
        throttle, until = found[0] if found else ("queue", None)
        if throttle == "hint" and spares_queue(outcome):
            return after(self._now, outcome.retry_after or 0.0)
        return max(self._now, until or 0)


def _batch(endings: Sequence[Ending]) -> dict[str, Any]:
    """A batch of claims as the statements take it."""
    tokens = orjson.dumps([e.claim.token for e in endings]).decode()
    return {"tokens": tokens, "ids": b"".join([e.claim.id.int.to_bytes(16, "big") for e in endings])}
