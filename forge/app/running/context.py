"""`ctx`: what a handler is told about its job and what it can say while it runs. One is made per job, in the worker.

A context knows who runs its job only as a `Link`: a forked worker asks its master, and the inline runner the app.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, Unpack, cast, overload
from uuid import UUID

from forge.app.fields import EnqueueOptions
from forge.app.handle import JobHandle
from forge.app.registry import App
from forge.app.running.link import Link, PendingAnswer, RateLimit
from forge.app.running.results import encode_result
from forge.app.running.transaction import Transaction, open_transaction
from forge.app.tasks import Call, Enqueueable
from forge.codec import as_text
from forge.errors import UsageError
from forge.job import Cancelled, Claim, Deduped, Done, Ending, Failed, NewJob, Outcome, Receipt, Released
from forge.logs import current_job as _current

__all__ = ["Context", "JobLog", "Why", "current_job", "stopped"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

PROGRESS_EVERY = 0.1  # seconds between two words of progress that are passed on
PROGRESS_TEXT = 1000  # characters of a message


class Why(NamedTuple):
    """Why a handler should stop, and how its job ends then if it is not done."""

    text: str
    ends: Literal["cancelled", "failed", "released"] = "cancelled"


class JobLog(logging.LoggerAdapter[logging.Logger]):
    """`ctx.log`: a logger named for the kind, whose records carry the job's fields in whatever thread they are made."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**cast(dict[str, Any], self.extra), **(kwargs.get("extra") or {})}
        return msg, kwargs


class Context:
    """One run of one job, from the inside."""

    # What each job has is set fastest in slots.
    __slots__ = ("__dict__", "__weakref__", "_app", "_began", "_claim", "_link")

    # As they are at first, on the class: most jobs change none of them, and to set them for each costs 0.2 µs.
    _children: list[NewJob] | None = None
    _why: Why | None = None  # it should stop
    _written = False  # the job's end is in the database
    _loop: asyncio.AbstractEventLoop  # of an `async def` handler, set before
    _task: asyncio.Task[Any] | None = None
    _log: JobLog | None = None
    _said_at = -math.inf  # monotonic: the last word of progress

    def __init__(self, claim: Claim, app: App, link: Link, began: float | None = None) -> None:
        """`began`: when, monotonic, if not now."""
        self._claim, self._app, self._link = claim, app, link
        self._began = time.monotonic() if began is None else began

    def __repr__(self) -> str:
        return f"<Context {self.kind} {self.id}>"

    # -- what it is told ---------------------------------------------------------------------------------------

    @property
    def id(self) -> UUID:
        """The job's id."""
        return self._claim.id

    @property
    def kind(self) -> str:
        """What kind of job it is."""
        return self._claim.kind

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self._claim.queue

    @property
    def attempt(self) -> int:
        """1 at the first try."""
        return self._claim.attempt

    @property
    def max_attempts(self) -> int:
        """How many there may be."""
        return self._claim.max_attempts

    @property
    def timeout(self) -> int:
        """Seconds that the handler may take."""
        return self._claim.timeout

    @property
    def remaining(self) -> float:
        """Seconds left of them."""
        return self._began + self._claim.timeout - time.monotonic()

    @property
    def deadline(self) -> datetime:
        """When they are over, UTC."""
        return datetime.now(UTC) + timedelta(seconds=self.remaining)

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop: the job was cancelled, or its time is up, or the pod's. Only `def` handlers
        need to look; an `async def` one gets asyncio's CancelledError."""
        return self._why is not None

    @property
    def stopping(self) -> bool:
        """Whether the pod is about to stop: there is `shutdown_timeout` from then on to end the job. What is not done
        when that is nearly over is told to stop, as if cancelled, and runs again elsewhere with its attempt restored.
        """
        return self._link.stopping

    def raise_if_cancelled(self) -> None:
        """Stop here if the handler should."""
        if self._why is not None:
            raise stopped(self._why)

    @property
    def log(self) -> JobLog:
        """A logger whose records carry the job's id, kind, queue and attempt."""
        if self._log is None:
            c = self._claim
            fields = {"job_id": str(c.id), "kind": c.kind, "queue": c.queue, "attempt": c.attempt}
            self._log = JobLog(logging.getLogger(c.kind), fields)
        return self._log

    # -- what it can say ---------------------------------------------------------------------------------------

    def progress(self, percent: float, message: str | None = None) -> None:
        """Make known how far the job is, 0 to 100. Less than a tenth of a second after the last call, only 100 is
        passed on: a loop may call this as often as it likes."""
        if type(percent) not in (int, float) or not 0 <= percent <= 100:
            raise UsageError(f"percent must be a number from 0 to 100, not {percent!r}")
        now = time.monotonic()
        if now - self._said_at >= PROGRESS_EVERY or percent == 100:
            self._said_at = now
            said = None if message is None else as_text(message, PROGRESS_TEXT)
            self._link.progress(self._claim, percent, said)

    @property
    def rate_limit(self) -> RateLimit:
        """Budgets that all pods share."""
        return RateLimit(self._claim, self._link)

    @overload
    def enqueue(self, task: Enqueueable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...

    @overload
    def enqueue(self, kind: str, payload: Any, /, **options: Unpack[EnqueueOptions]) -> JobHandle[Any]: ...

    def enqueue(self, task: Any, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Store a job together with the end of this one, in one transaction: it exists if and only if this one is done.

        `ctx.enqueue(add, 2, 3)`, `ctx.enqueue(add.using(delay=5), 2, 3)` or `ctx.enqueue("kind", payload, delay=5)`.
        """
        return self._commit_with_job(task, self._made(task, args, kwargs))[0]

    @overload
    def enqueue_many(
        self, task: Enqueueable[P, R], calls: Iterable[Call[P] | tuple[Any, ...]], /
    ) -> list[JobHandle[R]]: ...

    @overload
    def enqueue_many(self, jobs: Iterable[NewJob], /) -> list[JobHandle[Any]]: ...

    def enqueue_many(self, task: Any, calls: Any = None, /) -> list[JobHandle[Any]]:
        """`enqueue` for many: of a task, `ctx.enqueue_many(add, [(1, 2), add.call(3, b=4)])`, or of jobs that `app.job`
        made."""
        return self._commit_with_job(task, self._made_many(task, calls))

    @overload
    def enqueue_now(self, task: Enqueueable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...

    @overload
    def enqueue_now(self, kind: str, payload: Any, /, **options: Unpack[EnqueueOptions]) -> JobHandle[Any]: ...

    def enqueue_now(self, task: Any, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Store a job at once, whatever becomes of this one. If this one runs again, so does the line that calls this:
        give it an `id` or a `dedupe_key` that stays the same."""
        return self._store_now(task, self._made(task, args, kwargs)).wait()[0]

    @overload
    async def aenqueue_now(self, task: Enqueueable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...

    @overload
    async def aenqueue_now(self, kind: str, payload: Any, /, **options: Unpack[EnqueueOptions]) -> JobHandle[Any]: ...

    async def aenqueue_now(self, task: Any, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """`enqueue_now` for asyncio."""
        return (await self._store_now(task, self._made(task, args, kwargs)).awaited())[0]

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction on forge's database that ends the job as done when the block ends: what `tx.execute`
        wrote, the jobs of `ctx.enqueue` so far and `tx.result` are committed with it, exactly once.

        Whatever the handler does afterwards, the job is done. If the job was taken away meanwhile, or the block raises,
        nothing is written.
        """
        if self._written:
            raise UsageError("the job has been ended by a transaction before; there can be one")
        with open_transaction(self._app.storage, self._complete) as transaction:
            yield transaction
        self._written = True

    # -- how ---------------------------------------------------------------------------------------------------

    def _made(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[NewJob]:
        if isinstance(task, str):
            return [self._app.job(task, *args, **kwargs)]
        return [_checked(task)._job(args, kwargs)]

    def _made_many(self, task: Any, calls: Any) -> list[NewJob]:
        return list(task) if calls is None else list(_checked(task)._many(calls))

    def _commit_with_job(self, task: Any, jobs: list[NewJob]) -> list[JobHandle[Any]]:
        if self._written:
            raise UsageError("the job is done already (its transaction has ended); use enqueue_now")
        app = self._producer(task)
        jobs = list(app._hooks.enqueued(jobs)) if app._hooks.before_enqueue else jobs
        if self._children is None:
            self._children = []
        self._children.extend(jobs)
        return [JobHandle(app, job.id) for job in jobs]

    def _store_now(self, task: Any, jobs: list[NewJob]) -> PendingAnswer[list[JobHandle[Any]]]:
        app = self._producer(task)
        jobs = list(app._hooks.enqueued(jobs)) if app._hooks.before_enqueue else jobs

        def handles(receipts: list[Receipt]) -> list[JobHandle[Any]]:
            return [JobHandle(app, receipt.id, isinstance(receipt, Deduped)) for receipt in receipts]

        return PendingAnswer(self._link.enqueue(self._claim, jobs), handles)

    def _producer(self, task: Any) -> App:
        return task._app if isinstance(task, Enqueueable) else self._app

    def _complete(self, transaction: Transaction) -> bool:
        """On the transaction's connection, before it commits."""
        words = "its transaction was rolled back, because its result cannot be stored"
        result = encode_result(self._claim, self._app.tasks.get(self.kind), transaction.result, words)
        ending = Ending(self._claim, Done(), result=result, children=tuple(self._children or ()))
        return self._app.storage.complete_in(transaction.conn, ending)

    # -- for who runs it ---------------------------------------------------------------------------------------

    def _stop(self, why: Why) -> None:
        """From another thread: tell the handler to stop."""
        self._why = why
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel, why.text)

    def _awaited_by(self, task: asyncio.Task[Any] | None) -> None:
        """It runs in this task; it may have been told to stop before that was known."""
        self._loop, self._task = asyncio.get_running_loop(), task
        if self._why is not None:
            raise asyncio.CancelledError(self._why.text)


def stopped(why: Why) -> Outcome:
    """How a job ends that was told to stop: a timeout is a failure, which may be tried again; a job of a pod that
    stops goes back as if never claimed."""
    match why.ends:
        case "failed":
            return Failed(why.text)
        case "released":
            return Released()
    return Cancelled(why.text)


def _checked(task: Any) -> Enqueueable[..., Any]:
    if not isinstance(task, Enqueueable):
        raise UsageError(f"enqueue takes a task or a kind first, not {type(task).__name__}")
    if task._conn is not None:
        raise UsageError("conn= is for enqueues in a transaction of yours; within ctx.transaction() use ctx.enqueue")
    return task


def current_job() -> Context:
    """The context of the job that runs here; `UsageError` outside of one.

    Known in whatever a handler calls, in tasks it creates and in `asyncio.to_thread`; not in threads it starts itself.
    """
    job = _current.get()
    if job is None:
        raise UsageError("no job runs here: current_job() is for code that a handler calls")
    return cast(Context, job)
