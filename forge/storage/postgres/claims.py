"""Claiming and ending on PostgreSQL, on connections whose planner goes by index; and what a lost answer means."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol, TypeVar
from uuid import UUID

from psycopg import errors
from psycopg.pq.abc import PGresult

from forge import fastpath
from forge.job import Claim, Ending, Released
from forge.storage.contract import MAX_CRASHES, Fates, Incarnation, RowsLocked, Step, Want
from forge.storage.postgres.database import RETRY_DELAYS, PostgresConnection, PostgresDatabase, hot, pipeline
from forge.storage.postgres.endings import PostgresEndings
from forge.storage.postgres.enqueue import enqueue_plan
from forge.storage.postgres.facet import PostgresFacet
from forge.storage.postgres.refusals import impatience
from forge.storage.postgres.rows import as_claims, bare_claim, marks_params, micros_since_2000, packed_ids, text_array
from forge.storage.postgres.wire import Int8Array, rows_of
from forge.storage.shared.endings import accepted_children
from forge.storage.shared.low_water import MOST_BYTES, LowWater, Marks, full, scan
from forge.storage.shared.plans import run_plan
from forge.storage.shared.statements import Queries

__all__ = ["PostgresClaims"]

_LONG_AGO = (-(10**17), UUID(int=0))  # before all that run
# A claim whose answer was lost can still commit while its backend works on: look for it after so many seconds. Seldom:
# it reads the whole table.
_LOOK_AFTER = (0.0, 1.0, 5.0, 20.0, 60.0)
PAGES_AT_ONCE = 16_384  # of the table, read by one statement: 128 MB
_MOST_OFFERS = 65_536  # bytes of the table of offers; it has a page or two
# Follow-up jobs in one statement: those with keys are matched one with another.
_CHILDREN_AT_ONCE = 200


class Claimed(Protocol):
    """What a claim has come to."""

    @property
    def claims(self) -> list[Claim]: ...


C = TypeVar("C", bound=Claimed)


class PostgresClaims(PostgresFacet):
    """Claiming and ending alone, on connections whose planner is set once and for all, if they are for nothing else."""

    def __init__(self, db: PostgresDatabase, queries: Queries) -> None:
        super().__init__(db, queries)
        self._held: dict[int, int] = {}  # claims made here less those that ended here, by pod that was registered here
        self._counting = threading.Lock()

    @property
    def db(self) -> PostgresDatabase:
        """Its connections."""
        return self._db

    def register(self, who: Incarnation) -> None:
        """A pod whose claims are all made here."""
        with self._counting:
            self._held[who.pod.id] = 0

    def holds_none(self, who: Incarnation) -> bool:
        """Whether it is certain that all claims of a pod have ended: then nobody need look for some."""
        return self._held.get(who.pod.id) == 0 and not who.doubtful

    def _count(self, ended: Mapping[int, int], stale: Sequence[Ending]) -> None:
        with self._counting:
            for pod in self._held:
                self._held[pod] += sum(e.claim.token >> 32 == pod for e in stale) - ended.get(pod, 0)

    def _counted(self, who: Incarnation, claims: list[Claim]) -> list[Claim]:
        self._count_in(who, len(claims))
        return claims

    def _count_in(self, who: Incarnation, n: int) -> None:
        with self._counting:
            if who.pod.id in self._held:
                self._held[who.pod.id] += n

    def claim(self, who: Incarnation, queue: str, n: int, low_water: LowWater | None, most_bytes: int) -> list[Claim]:
        """See `Storage.claim`."""
        self._settle_doubts(who)

        def once(n: int, most_bytes: int, marks: Marks | None) -> list[Claim]:
            def work(conn: PostgresConnection) -> list[Claim]:
                # A token of its own for each try: the lost one may yet commit, and must be told apart.
                with _Doubt(who) as token:
                    step = self._claim_step(token, queue, n, most_bytes, marks, unsynced=True)
                    return self._counted(who, as_claims(self._hot(conn, [step])[0], token, queue))

            return self._db.attempt(work)

        def look(marks: Marks, margin: float) -> dict[int, int]:
            # The usual priority is looked at in any case: a pod that has claimed nothing yet has no marks.
            where = marks_params({queue: {0: _LONG_AGO, **marks}})
            rows = self.ask(Step(self._queries.waiting, {"queue": queue, "margin": margin, **where}))
            return {priority: micros_since_2000(first) for priority, first in rows}

        return scan(low_water, n, most_bytes, once, look)

    def next_due(self, queues: Sequence[str], low_waters: Mapping[str, LowWater]) -> float | None:
        """See `Storage.next_due`."""
        now = time.monotonic()
        marks = {queue: low_waters[queue].look(now) for queue in queues if queue in low_waters}
        step = Step(self._queries.next_due, {"queues": text_array(queues), **marks_params(marks)})
        found: float | None = self.ask(step)[0][0]
        return found

    def offer(self, who: Incarnation, token: int, queue: str, channel: str, beat_within: float) -> bool:
        """See `Storage.offer`."""
        params = {"claim": token, "queue": queue, "channel": channel, "beat_within": beat_within}
        self._count_in(who, 1)  # as if it were taken, also if nobody says: who leaves must be certain
        made = bool(self.ask(Step(self._queries.offer, {**params, "most_bytes": _MOST_OFFERS}), retries=()))
        self._count_in(who, made - 1)
        return made

    def withdraw(self, who: Incarnation, tokens: Sequence[int]) -> None:
        """See `Storage.withdraw`."""
        rows = self.ask(Step(self._queries.withdraw, {"claims": Int8Array(fastpath.int8_array(tokens))}))
        stood = {token for (token,) in rows}
        self._count_in(who, -len(stood))
        self.doubt(who, [token for token in tokens if token not in stood])

    @staticmethod
    def doubt(who: Incarnation, tokens: Sequence[int]) -> None:
        """Claims that may have been made: to be looked for, and given back."""
        now = time.monotonic()
        who.doubtful |= {token: [now + after for after in _LOOK_AFTER] for token in tokens}

    def claim_by(
        self, who: Incarnation, steps: Callable[[int], Sequence[Step]], read: Callable[[PGresult, int], C]
    ) -> C:
        """Claim by other statements: `steps` makes them for a token, `read` finds in the last one's answer what they
        have claimed."""
        self._settle_doubts(who)

        def work(conn: PostgresConnection) -> C:
            with _Doubt(who) as token:
                try:
                    result = self._hot(conn, steps(token))[-1]
                except errors.UniqueViolation as e:
                    refused: errors.UniqueViolation | None = e  # nothing was claimed: nothing is in doubt
                else:
                    refused = None
            if refused is not None:
                raise errors.SerializationFailure("somebody was first") from refused
            found = read(result, token)
            self._counted(who, found.claims)
            return found

        return self._db.attempt(work)

    def finalize(
        self,
        endings: Sequence[Ending],
        max_crashes: int = MAX_CRASHES,
        fates: Fates | None = None,
        lock_wait: float | None = None,
    ) -> list[Ending]:
        """See `Storage.finalize`."""
        if not endings:
            return []

        def run(conn: PostgresConnection, tried: _Try) -> None:
            first = [] if lock_wait is None else impatience(conn, self._queries, lock_wait)
            try:
                self._run(conn, tried, (), first)
            except errors.LockNotAvailable as e:
                if lock_wait is None:
                    raise
                raise RowsLocked("somebody else has locked what is to be written") from e

        return self._end(endings, max_crashes, run, fates)[0]

    def exchange(
        self, who: Incarnation, endings: Sequence[Ending], wants: Sequence[Want], max_crashes: int
    ) -> tuple[list[Ending], list[Claim]]:
        """See `Storage.exchange`."""
        self._settle_doubts(who)
        wants = [want for want in wants if want.n > 0]

        def run(conn: PostgresConnection, batch: _Try) -> list[Claim]:
            began = time.monotonic()
            marks = [want.low_water.begin(began) for want in wants]
            found: list[Claim] = []
            with ExitStack() as stack:
                tokens = [stack.enter_context(_Doubt(who)) for _ in wants]
                steps = [
                    self._claim_step(t, w.queue, w.n, MOST_BYTES, m)
                    for t, w, m in zip(tokens, wants, marks, strict=True)
                ]
                results = self._run(conn, batch, steps)
                for token, want, mark, result in zip(tokens, wants, marks, results, strict=True):
                    claims = self._counted(who, as_claims(result, token, want.queue))
                    now = time.monotonic()
                    whole = full(claims, want.n, MOST_BYTES)
                    want.low_water.note(claims, mark, whole, began, now)
                    if not whole and want.low_water.again(mark, now) == (None,):
                        want.low_water.forget()
                    found += claims
            return found

        return self._end(endings, max_crashes, run)

    def _end(
        self,
        endings: Sequence[Ending],
        max_crashes: int,
        run: Callable[[PostgresConnection, _Try], Any],
        fates: Fates | None = None,
    ) -> tuple[list[Ending], Any]:
        """Finalize with whatever else `run` puts into the same transaction."""
        tried: list[_Try] = []

        def work(conn: PostgresConnection) -> Any:
            # Anew for each try: what the last one read as stale it may not have committed.
            tried.append(_Try(PostgresEndings(self._queries, endings, max_crashes), endings))
            return run(conn, tried[-1])

        found = self._db.attempt(work)
        stale = tried[-1].batch.stale
        if fates is not None:
            fates += tried[-1].batch.fates
        if len(tried) > 1 and stale:
            stale = self._not_finalized(stale)
        self._count(tried[-1].batch.count(endings), stale)
        return stale, found

    def _run(
        self, conn: PostgresConnection, tried: _Try, more: Sequence[Step], first: Sequence[Step] = ()
    ) -> list[PGresult]:
        """A batch of endings in one transaction, with statements before it and after; what the latter answered."""
        steps = tried.batch.steps()
        if not tried.with_children:
            results = self._hot(conn, [*first, *steps, *more])[len(first) :]
            tried.batch.read(results)
            return results[len(steps) :]
        with conn.transaction():
            results = self._hot(conn, [*first, *steps, *more])[len(first) :]
            tried.batch.read(results)
            children = accepted_children(tried.endings, tried.batch.stale)
            for at in range(0, len(children), _CHILDREN_AT_ONCE):
                plan = enqueue_plan(self._queries, children[at : at + _CHILDREN_AT_ONCE])
                run_plan(plan, lambda step: pipeline(conn, [step])[0].fetchall())
        return results[len(steps) :]

    def _not_finalized(self, stale: Sequence[Ending]) -> list[Ending]:
        """After a lost answer: an ending that is in history under its own token had succeeded the first time, and its
        children were stored with it."""
        ids, tokens = [e.claim.id for e in stale], [e.claim.token for e in stale]
        params = {"ids": packed_ids(ids), "claims": Int8Array(fastpath.int8_array(tokens))}
        ended = set(self.ask(Step(self._queries.finalized, params)))
        return [e for e in stale if (e.claim.id, e.claim.token) not in ended]

    def ask(self, step: Step, retries: Sequence[float] = RETRY_DELAYS) -> list[tuple[Any, ...]]:
        """The rows of a statement whose plan must not depend on statistics, nor on when it was made. Parameters are in
        the wire's formats."""
        return self._db.attempt(lambda conn: rows_of(self._hot(conn, [step])[0]), retries)

    def _hot(self, conn: PostgresConnection, steps: Sequence[Step]) -> list[PGresult]:
        """Statements whose plans must not depend on statistics. A session that is for them alone is set so once and for
        all; otherwise, and behind a pooler, each transaction is."""
        if self._db.is_settled and conn.prepare_threshold is not None:
            return hot(conn, steps)
        return hot(conn, [Step(self._queries.plan_by_index, {"local": True}), *steps])[1:]

    def _claim_step(
        self, token: int, queue: str, n: int, most_bytes: int, marks: Marks | None, unsynced: bool = False
    ) -> Step:
        most = {"n": n, "most_bytes": most_bytes}
        where = marks_params({queue: marks or {}})
        return Step(self._queries.claim, {"claim": token, "queue": queue, "unsynced": unsynced, **most, **where})

    def _settle_doubts(self, who: Incarnation) -> None:
        """Give back what claims with a lost answer had claimed: nobody runs those jobs, yet their owner is alive."""
        if not who.doubtful:
            return
        now = time.monotonic()
        due = [token for token, looks in who.doubtful.items() if looks[0] <= now]
        if due:
            found = self._counted(who, self.search("claimed", claims=due))  # their ends are counted too
            self.finalize([Ending(claim, Released()) for claim in found])
            for token in due:
                looks = [look for look in who.doubtful[token] if look > now]
                if looks:
                    who.doubtful[token] = looks
                else:
                    del who.doubtful[token]

    def search(self, name: str, **params: Any) -> list[Claim]:
        """Claims found by a statement that reads all jobs, piece by piece, with just enough of each to end it. A job
        that is claimed or ends meanwhile may be among them, or not."""
        query = getattr(self._queries, name)

        def work(conn: PostgresConnection) -> list[Claim]:
            pages = pipeline(conn, [Step(self._queries.job_pages, {})])[0].fetchall()[0][0]
            found: list[Claim] = []
            for first in range(0, pages, PAGES_AT_ONCE):
                piece = {"first": f"({first},0)", "end": f"({first + PAGES_AT_ONCE},0)"}
                found += [bare_claim(*row) for row in pipeline(conn, [Step(query, {**params, **piece})])[0].fetchall()]
            return found

        return self._db.attempt(work, snapshot=True)


class _Try:
    """One try at a batch of endings."""

    def __init__(self, batch: PostgresEndings, endings: Sequence[Ending]) -> None:
        self.batch = batch
        self.endings = endings
        self.with_children = any(ending.children for ending in endings)


class _Doubt:
    """A token that stays doubtful if the statements that use it end in an exception."""

    def __init__(self, who: Incarnation) -> None:
        self._who = who

    def __enter__(self) -> int:
        self._token = self._who.mint()
        return self._token

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            PostgresClaims.doubt(self._who, [self._token])
