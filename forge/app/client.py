"""The app: `Forge()`. Tasks and handlers register with it; jobs are enqueued, found and operated on through it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast, overload
from uuid import UUID

from forge.app.connections import Guest
from forge.app.decorator import TaskDecorator, Unannotated
from forge.app.fields import EnqueueOptions, check_id
from forge.app.handle import JobHandle, in_thread
from forge.app.lazy_storage import LazyStorage
from forge.app.registry import (
    Handler,
    HandlerOptions,
    Registry,
    Router,
    kind_of,
    make_handler,
    make_router,
    refuse_generator,
)
from forge.app.running.context import Context
from forge.app.running.hooks import Hooks
from forge.app.running.middleware import Middleware, add_middleware
from forge.app.schedules import ScheduleOptions, Schedules
from forge.app.signature import takes_first
from forge.app.tasks import AsyncTask, SyncTask, Task, TaskOptions, fields_for
from forge.codec import check_name, encode_payload
from forge.errors import ConfigError, UsageError
from forge.fastpath import uuid7
from forge.job import LARGEST_PAYLOAD, Deduped, Job, JobFilter, NewJob, Receipt, Status
from forge.storage import Storage
from forge.storage.contract import Cancellation, Deletion

__all__ = ["Forge"]

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

Ids = UUID | str | JobHandle[Any] | Iterable[UUID | str | JobHandle[Any]]
Names = str | Iterable[str]

PAGE = 200  # jobs fetched at a time by `jobs`


class Forge:
    """An app: its tasks, and the database they are enqueued to. Made at import; connects at the first use.

    `database` is a URL (`postgresql://…`, `sqlite:///path`); None asks FORGE_DATABASE_URL, DATABASE_URL, the nearest
    forge.toml, and takes ./forge.db. `router` sends kinds to queues: by prefix, `{"gh_": "gh"}`, or by a function.
    """

    def __init__(
        self,
        database: str | None = None,
        *,
        schema: str | None = None,
        router: Router | None = None,
        max_payload: int | None = None,
    ) -> None:
        if max_payload is not None and (type(max_payload) is not int or not 1 <= max_payload <= LARGEST_PAYLOAD):
            raise ConfigError(
                f"max_payload must be a whole number of bytes from 1 to {LARGEST_PAYLOAD}, not {max_payload!r}"
            )
        self._lazy_storage = LazyStorage(database, schema)
        self._max_payload = max_payload
        self._registry = Registry()
        self._hooks = Hooks()
        self._starting: list[Callable[[], Any]] = []
        self._stopping: list[Callable[[], Any]] = []
        self._route = make_router(router)
        self.schedules = Schedules(self)  # of the database, at run time

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def storage(self) -> Storage:
        """The database behind the app, opened if need be."""
        return self._lazy_storage.open()

    @property
    def max_payload(self) -> int:
        """Bytes of JSON a payload may have: as given, else as forge.toml says, else 1 MiB."""
        return self._lazy_storage.config.max_payload if self._max_payload is None else self._max_payload

    @property
    def tasks(self) -> Mapping[str, Handler]:
        """Every task and handler by kind."""
        return self._registry

    def close(self) -> None:
        """Give back the connections. The app can still be used: it connects again."""
        self._lazy_storage.close()

    # -- registering -------------------------------------------------------------------------------------------

    # Each first of two overlaps the second on purpose: an async def is also a def that returns a coroutine. What the
    # first four are for stands with `TaskDecorator`.
    @overload
    def task(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Unannotated, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[..., R]: ...

    @overload
    def task(self, fn: Callable[Concatenate[Unannotated, P], R], /) -> SyncTask[..., R]: ...

    @overload
    def task(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...

    @overload
    def task(self, fn: Callable[Concatenate[Context, P], R], /) -> SyncTask[P, R]: ...

    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]

    @overload
    def task(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...

    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...

    def task(self, fn: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Make a function a task: `@app.task`, or `@app.task(queue=…, max_attempts=…, …)`.

        A plain call still calls it; `.enqueue(…)` takes the same arguments and stores a job. Its kind is
        `module.function`, unless `name=` says otherwise. Results are kept for 7 days, unless `keep_result=` does. A
        first parameter annotated as `Context` is the context of the running job; who enqueues does not pass it.
        `cron="0 3 * * *"` has it enqueued by the clock, in `timezone=`; for more, see `schedule`.
        """
        if fn is None:
            return lambda fn: self._task(fn, options)
        return self._task(fn, {})

    def _task(self, fn: Callable[..., Any], options: TaskOptions) -> Task[..., Any]:
        said: dict[str, Any] = {"keep_result": True, **options}
        kind, dedupe = kind_of(fn, said.pop("name", None)), said.pop("dedupe", None)
        cron, timezone = said.pop("cron", None), said.pop("timezone", None)
        if timezone is not None and cron is None:
            raise ConfigError(f"{kind}: timezone is that of cron=…, which is not given")
        wants = takes_first(fn, Context)
        handler = make_handler(self, kind, fn, cast(HandlerOptions, said), takes_ctx=False, ctx_first=wants)
        task: Task[..., Any] = (AsyncTask if handler.is_async else SyncTask)(self, handler, dedupe)
        self._registry.add(handler)
        if cron is not None:
            self.schedules._declare(kind, cron, task, {"timezone": timezone or "UTC"})
        return task

    def handler(self, kind: str, **options: Unpack[HandlerOptions]) -> Callable[[F], F]:
        """Register a function `(ctx, payload)` for a kind; it stays a plain function."""

        def register(fn: F) -> F:
            self._registry.add(make_handler(self, kind, fn, options, takes_ctx=True))
            return fn

        return register

    def schedule(
        self, name: str, expression: str, task: Task[..., Any] | str, **options: Unpack[ScheduleOptions]
    ) -> None:
        """Have a task, or any kind, enqueued by the clock: `app.schedule("nightly", "0 3 * * *", report, args=["eu"])`.

        The expression is cron's of 5 fields, or 6 with seconds first, in UTC or `timezone=`. It is stored when a
        forge-master runs that has this module among its `modules`.
        """
        self.schedules._declare(name, expression, task, options)

    def on_worker_start(self, fn: F) -> F:
        """Have a function called in every worker process before its first job: for connections of your own. It may be
        an `async def`. If it raises, the worker does not start."""
        refuse_generator(fn, "on_worker_start")
        self._starting.append(fn)
        return fn

    def on_worker_stop(self, fn: F) -> F:
        """Have a function called in every worker process that leaves in good order, after its last job."""
        refuse_generator(fn, "on_worker_stop")
        self._stopping.insert(0, fn)
        return fn

    def add_middleware(self, middleware: Middleware) -> None:
        """Have its hooks called around every job of this app; see `Middleware`."""
        add_middleware(self._hooks, middleware)

    # -- enqueueing --------------------------------------------------------------------------------------------

    def job(self, kind: str, payload: Any, **options: Unpack[EnqueueOptions]) -> NewJob:
        """A job checked and encoded, for `enqueue_many`. Nothing is stored."""
        id = options.pop("id", None)
        fields, rule = fields_for(self, check_name(kind, "kind"), self._registry.get(kind), options)
        data = encode_payload(payload, limit=self.max_payload)
        if rule is not None:
            fields = fields._replace(line=rule.of_payload(payload))
        return NewJob(uuid7() if id is None else check_id(id), kind, data, *fields)

    def enqueue(
        self, kind: str, payload: Any, *, conn: Any = None, **options: Unpack[EnqueueOptions]
    ) -> JobHandle[Any]:
        """Store a job of any kind, also one whose handler this program does not know.

        With `conn` it is stored in that connection's transaction: it exists if and only if the transaction commits.
        """
        return self._submit([self.job(kind, payload, **options)], conn)[0]

    async def aenqueue(
        self, kind: str, payload: Any, *, conn: Any = None, **options: Unpack[EnqueueOptions]
    ) -> JobHandle[Any]:
        """`enqueue` for asyncio; `conn` may be an async connection."""
        return (await self._asubmit([self.job(kind, payload, **options)], conn))[0]

    def enqueue_many(self, jobs: Iterable[NewJob], *, conn: Any = None) -> list[JobHandle[Any]]:
        """Store many jobs made by `job`, all or none."""
        return self._submit(list(jobs), conn)

    async def aenqueue_many(self, jobs: Iterable[NewJob], *, conn: Any = None) -> list[JobHandle[Any]]:
        """`enqueue_many` for asyncio."""
        return await self._asubmit(list(jobs), conn)

    def _submit(self, jobs: Iterable[NewJob], conn: Any = None) -> list[JobHandle[Any]]:
        """Store jobs that are already checked, or are as they are made: what every sync enqueue ends in."""
        if self._hooks.before_enqueue:
            jobs = list(self._hooks.enqueued(jobs))
        if conn is None:
            return self._handles(self.storage.enqueue(jobs))
        return self._handles(Guest(conn, self._lazy_storage).enqueue(list(jobs)))

    async def _asubmit(self, jobs: Sequence[NewJob], conn: Any = None) -> list[JobHandle[Any]]:
        """What every async enqueue ends in."""
        if not jobs:
            return []
        if conn is None:
            return await asyncio.to_thread(self._submit, jobs)
        if self._hooks.before_enqueue:
            jobs = list(self._hooks.enqueued(jobs))
        return self._handles(await Guest(conn, self._lazy_storage).aenqueue(jobs))

    def _handles(self, receipts: Sequence[Receipt]) -> list[JobHandle[Any]]:
        return [JobHandle(self, receipt.id, isinstance(receipt, Deduped)) for receipt in receipts]

    # -- finding and operating ---------------------------------------------------------------------------------

    def get(self, id: UUID | str) -> JobHandle[Any]:
        """The job with this id; `JobNotFound` if there is none."""
        handle: JobHandle[Any] = JobHandle(self, _id(id))
        handle.job()
        return handle

    def jobs(
        self,
        *,
        status: Status | str | Iterable[Status | str] = (),
        queue: Names = (),
        kind: Names = (),
        tag: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Job]:
        """Jobs, newest first, fetched page by page as they are asked for. Each filter takes one value or several."""
        for page in self._pages(_filter(status, queue, kind, tag), limit):
            yield from page

    async def ajobs(
        self,
        *,
        status: Status | str | Iterable[Status | str] = (),
        queue: Names = (),
        kind: Names = (),
        tag: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Job]:
        """`jobs` for asyncio."""
        pages = self._pages(_filter(status, queue, kind, tag), limit)
        while page := await asyncio.to_thread(next, pages, None):
            for job in page:
                yield job

    def _pages(self, where: JobFilter, limit: int | None) -> Iterator[list[Job]]:
        left = limit if limit is not None else PAGE
        cursor = None
        while left > 0:
            jobs, cursor = self.storage.find(where, min(left, PAGE), cursor)
            if jobs:
                yield jobs
            if cursor is None:
                return
            left -= 0 if limit is None else len(jobs)

    def cancel(self, ids: Ids) -> dict[UUID, Cancellation]:
        """Cancel jobs: what happened to each; unknown ids are not in the answer."""
        return self.storage.cancel(_ids(ids))

    def delete(self, ids: Ids) -> dict[UUID, Deletion]:
        """Remove jobs, live or ended; running ones are asked to stop instead. Unknown ids are not in the answer."""
        return self.storage.delete(_ids(ids))

    def retry(self, ids: Ids) -> set[UUID]:
        """Run jobs again from the start, attempts reset. Answers which: none that runs or whose key is taken."""
        return self.storage.retry(_ids(ids))

    def requeue(self, ids: Ids) -> set[UUID]:
        """Run jobs now with their attempts kept. Answers which."""
        return self.storage.requeue(_ids(ids))

    aget = in_thread(get)
    acancel = in_thread(cancel)
    adelete = in_thread(delete)
    aretry = in_thread(retry)
    arequeue = in_thread(requeue)


def _id(value: UUID | str | JobHandle[Any]) -> UUID:
    return value.id if isinstance(value, JobHandle) else check_id(value)


def _ids(values: Ids) -> list[UUID]:
    if isinstance(values, (UUID, str, JobHandle)):
        return [_id(values)]
    return [_id(value) for value in values]


def _names(value: Names) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _filter(status: Status | str | Iterable[Status | str], queue: Names, kind: Names, tag: str | None) -> JobFilter:
    try:
        statuses = frozenset(Status(s) for s in _names(status))
    except ValueError as error:
        raise UsageError(f"status: {error}; use {', '.join(Status)}") from None
    return JobFilter(statuses, _names(queue), _names(kind), tag)
