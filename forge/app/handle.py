"""A job seen from the program that enqueued it: where it stands, what came of it, and what can be done to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from datetime import timedelta
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar
from uuid import UUID

from forge.errors import JobIsDead, JobNotFound, JobWasCancelled, ResultTimeout, UsageError
from forge.job import ENDED, Job, Status
from forge.storage import Storage
from forge.storage.contract import Cancellation, Deletion

__all__ = ["HasStorage", "JobHandle", "in_thread"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")

FIRST_WAIT, LONGEST_WAIT, GROWTH = 0.002, 0.25, 1.5


class HasStorage(Protocol):
    """What a handle needs of its app."""

    @property
    def storage(self) -> Storage: ...


def in_thread(verb: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The async twin of a method that talks to the database: the same, in a thread."""

    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(verb, self, *args, **kwargs)

    twin.__doc__ = f"`{verb.__name__}` for asyncio."
    return twin


class JobHandle(Generic[R]):
    """One job by its id. Holds no state of it: every question is asked of the database."""

    __slots__ = ("_app", "deduped", "id")

    def __init__(self, app: HasStorage, id: UUID, deduped: bool = False) -> None:
        self._app = app
        self.id = id
        self.deduped = deduped  # the enqueue stored nothing: this older job has the dedupe key

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}{' deduped' if self.deduped else ''}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def job(self) -> Job:
        """The job's record as it is now."""
        found = self._app.storage.get([self.id]).get(self.id)
        if found is None:
            raise self._unknown()
        return found

    @property
    def status(self) -> Status:
        """Where the job stands now."""
        return self.job().status

    def result(self, timeout: float | None = None) -> R:
        """What the handler returned. Waits for it, up to `timeout` seconds (None: as long as it takes).

        Raises `ResultTimeout`, `JobIsDead` with the job's last error, `JobWasCancelled`, `JobNotFound`, and
        `UsageError` when the job is done but its result was not kept.
        """
        steps = self._watch(timeout)
        try:
            wait = next(steps)
            while True:
                time.sleep(wait)
                wait = steps.send(self.job())
        except StopIteration as end:
            return self._outcome(end.value)

    async def aresult(self, timeout: float | None = None) -> R:
        """`result` for asyncio."""
        steps = self._watch(timeout)
        try:
            wait = next(steps)
            while True:
                await asyncio.sleep(wait)
                wait = steps.send(await self.ajob())
        except StopIteration as end:
            return await asyncio.to_thread(self._outcome, end.value)

    def cancel(self) -> Cancellation:
        """Cancel it: "cancelled" at once if it had not started, "requested" if it runs, "ended" if it was over."""
        return self._known(self._app.storage.cancel([self.id]))

    def delete(self) -> Deletion:
        """Remove it, live or ended. A running one is "requested" to stop instead; delete it again once it has."""
        return self._known(self._app.storage.delete([self.id]))

    def retry(self) -> None:
        """Run it again from the start: pending, due now, attempts reset."""
        self._revived(self._app.storage.retry([self.id]))

    def requeue(self) -> None:
        """Run it now with its attempts kept: a dead job gets one more try, a scheduled one runs early."""
        self._revived(self._app.storage.requeue([self.id]))

    ajob = in_thread(job)
    acancel = in_thread(cancel)
    adelete = in_thread(delete)
    aretry = in_thread(retry)
    arequeue = in_thread(requeue)

    def _watch(self, timeout: float | None) -> Generator[float, Job, Job]:
        """Yields how long to wait and is sent the job as it then is; returns it once it has ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        wait = FIRST_WAIT
        job = yield 0.0
        while job.status not in ENDED:
            left = LONGEST_WAIT if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise ResultTimeout(f"job {self.id} ({job.kind}) is still {job.status} after {timeout:g} s")
            job = yield min(wait, left)
            wait = min(wait * GROWTH, LONGEST_WAIT)
        return job

    def _outcome(self, job: Job) -> R:
        if job.status is Status.DEAD:
            raise JobIsDead(f"job {job.id} ({job.kind}) is dead: {job.last_error or 'no error was recorded'}")
        if job.status is Status.CANCELLED:
            raise JobWasCancelled(f"job {job.id} ({job.kind}) was cancelled: {job.last_error or 'cancelled'}")
        if job.keep_result is None:
            raise UsageError(
                f"job {job.id} ({job.kind}) is done, but its result was not kept; enqueue with keep_result"
            )
        if job.result is None and self._expired(job, job.keep_result):
            raise UsageError(
                f"job {job.id} ({job.kind}) is done, but its result was kept for {job.keep_result} s only; "
                "enqueue with a longer keep_result"
            )
        result: R = job.result
        return result

    def _expired(self, job: Job, kept: int) -> bool:
        finished = job.finished_at
        return finished is not None and (finished + timedelta(seconds=kept)).timestamp() <= self._app.storage.now()

    def _known(self, answer: dict[UUID, T]) -> T:
        if self.id not in answer:
            raise self._unknown()
        return answer[self.id]

    def _revived(self, ids: set[UUID]) -> None:
        if self.id in ids:
            return
        job = self.job()
        if job.status is Status.IN_PROGRESS:
            raise UsageError(f"job {self.id} ({job.kind}) is running; cancel it first, or wait until it ends")
        raise UsageError(f"job {self.id} ({job.kind}) cannot run again: another has its dedupe key {job.dedupe_key!r}")

    def _unknown(self) -> JobNotFound:
        return JobNotFound(f"no job {self.id}; it may have been deleted, or not committed yet")
