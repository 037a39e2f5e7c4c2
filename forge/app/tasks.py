"""Tasks: functions that can be enqueued with the arguments a call would take, checked by type checkers and at run time.

A task knows its app only as something that stores jobs.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, cast
from uuid import UUID

from forge.app.fields import EnqueueOptions, Fields, check_fields, check_id, check_key, check_options
from forge.app.handle import JobHandle
from forge.app.line_rules import LINE_OPTIONS, LineRule, rule_for
from forge.app.registry import App, Handler, HandlerOptions
from forge.app.signature import Dedupe, Signature
from forge.codec import MAX_DEPTH, encode_payload
from forge.errors import InvalidJob, UsageError
from forge.fastpath import task_jobs, uuid7, uuid7_many
from forge.job import NewJob
from forge.logs import current_job

__all__ = ["AsyncTask", "BoundTask", "Call", "Enqueueable", "SyncTask", "Task", "TaskOptions", "fields_for"]

P = ParamSpec("P")
R = TypeVar("R")

RUN = 1_000  # jobs of a bulk made at once: the database works on the ones before meanwhile


class TaskOptions(HandlerOptions, total=False):
    """Options of `@app.task`."""

    name: str | None  # the kind, if not module.function
    dedupe: Dedupe
    cron: str | None  # when it is enqueued by the clock, without arguments
    timezone: str | None  # of cron; else UTC


class Call(Generic[P]):
    """Arguments for one job of `enqueue_many`, made by `task.call(…)`."""

    __slots__ = ("args", "kwargs")

    def __init__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        self.args: tuple[Any, ...] = args
        self.kwargs: dict[str, Any] = kwargs


class Enqueueable(Generic[P, R]):
    """The ways to enqueue, shared by a task and a task with options."""

    _app: App
    _handler: Handler
    _signature: Signature
    _fields: Fields
    _rule: LineRule | None = None  # where each job has a line of its own
    _id: UUID | None = None
    _conn: Any = None

    @property
    def kind(self) -> str:
        """The name under which a worker finds the function."""
        return self._handler.kind

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job that will call the function with these arguments."""
        return self._app._submit([self._job(args, kwargs)], self._conn)[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`enqueue` for asyncio."""
        return (await self._app._asubmit([self._job(args, kwargs)], self._conn))[0]

    def enqueue_many(self, calls: Iterable[Call[P] | tuple[Any, ...]]) -> list[JobHandle[R]]:
        """Store many jobs, all or none: each a tuple of positional arguments, or `task.call(…)` for typed ones."""
        with collector_paused():
            return self._app._submit(self._many(calls), self._conn)

    async def aenqueue_many(self, calls: Iterable[Call[P] | tuple[Any, ...]]) -> list[JobHandle[R]]:
        """`enqueue_many` for asyncio."""
        return await self._app._asubmit(list(self._many(calls)), self._conn)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[P]:
        """One item for `enqueue_many`."""
        return Call(*args, **kwargs)

    def _many(self, calls: Iterable[Call[P] | tuple[Any, ...]]) -> Iterator[NewJob]:
        """Checked one by one as storage takes them: it works on what is made while the rest is in the making."""
        items = list(calls)
        if self._id is not None and len(items) > 1:
            raise InvalidJob(f"id names one job, not {len(items)}; leave it out")
        ids = uuid7_many(len(items)) if self._id is None else [self._id]
        shape: tuple[type, ...] | None = None  # of the call before: most are alike, and a run of those is made at once
        i = 0
        while i < len(items):
            if shape is not None:
                alike = self._alike(items, i, shape, ids)
                yield from alike
                i += len(alike)
                if i == len(items) or alike:
                    continue
            item = items[i]
            try:
                args, kwargs = (item, {}) if isinstance(item, tuple) else (item.args, item.kwargs)
                job = self._job(args, kwargs, ids[i])
            except (InvalidJob, AttributeError) as error:
                raise _at(i, item, error) from None
            yield job
            i += 1
            if type(item) is tuple and not self._signature.dedupes and self._rule is None:
                shape = tuple(map(type, item))

    def _alike(self, items: list[Any], start: int, shape: tuple[type, ...], ids: list[UUID]) -> list[NewJob]:
        """The jobs of the calls from `start` on that are of this shape, which has been bound before."""
        kind, limit = self._handler.kind, self._app.max_payload
        return task_jobs(items, start, start + RUN, shape, ids, kind, tuple(self._fields), MAX_DEPTH, limit)

    def _job(self, args: tuple[Any, ...], kwargs: dict[str, Any], id: UUID | None = None) -> NewJob:
        """One job of one call: 3 to 4 µs, half of it for the JSON."""
        args, kwargs = self._signature.bind(args, kwargs)
        payload = encode_payload({"args": args, "kwargs": kwargs}, limit=self._app.max_payload)
        rest = self._fields
        if self._signature.dedupes and rest.dedupe_key is None:
            rest = self._keyed(args, kwargs)
        if self._rule is not None:
            rest = rest._replace(line=self._rule.line(self._signature.arguments(args, kwargs)))
        return NewJob(id or self._id or uuid7(), self._handler.kind, payload, *rest)

    def _keyed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fields:
        """The fields with the key that the task's `dedupe=` makes of the arguments, checked like a given one."""
        key = self._signature.dedupe_key(args, kwargs)
        if key is None:
            return self._fields._replace(unique_for=None)
        return self._fields._replace(dedupe_key=check_key(key))


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """A bulk makes hundreds of thousands of objects that stay and form no cycle; walking them over and over took a
    third of its time (13 µs a job instead of 9)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Task(Enqueueable[P, R]):
    """A function that can be enqueued. `R` is what the job's result will be."""

    __name__: str  # this and the like are the function's own

    def __init__(self, app: App, handler: Handler, dedupe: Dedupe = None) -> None:
        functools.update_wrapper(cast(Any, self), handler.fn)
        self._app = app
        self._handler = handler
        self._signature = Signature(handler.kind, handler.fn, dedupe, ctx_first=handler.ctx_first)
        self._fields, self._rule = fields_for(app, handler.kind, handler, {})

    @property
    def fn(self) -> Callable[..., Any]:
        """The function itself."""
        return self._handler.fn

    def using(self, *, conn: Any = None, **options: Unpack[EnqueueOptions]) -> BoundTask[P, R]:
        """The task with options for its next enqueues; `conn` stores them in that connection's transaction."""
        return BoundTask(self, conn, options)

    def _called_with(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a plain call, with the context of the job in which it is made if the function wants one."""
        if not self._handler.ctx_first:
            return args
        ctx = current_job.get()
        if ctx is None:
            raise UsageError(
                f"{self.kind} takes the context of a job, and none runs here; call {self.__name__}.fn(ctx, …)"
            )
        return (ctx, *args)

    def __repr__(self) -> str:
        return f"<Task {self.kind}>"


class SyncTask(Task[P, R]):
    """A task made of a `def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now; nothing is enqueued."""
        result: R = self._handler.fn(*self._called_with(args), **kwargs)
        return result


class AsyncTask(Task[P, R]):
    """A task made of an `async def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function here and now; nothing is enqueued."""
        coroutine: Coroutine[Any, Any, R] = self._handler.fn(*self._called_with(args), **kwargs)
        return coroutine


class BoundTask(Enqueueable[P, R]):
    """A task with options, made by `task.using(…)`. Can be kept and used many times."""

    def __init__(self, task: Task[P, R], conn: Any, options: EnqueueOptions) -> None:
        self._app = task._app
        self._handler = task._handler
        self._signature = task._signature
        self._conn = conn
        id = options.pop("id", None)
        self._id = None if id is None else check_id(id)
        keyed = task._signature.dedupes
        self._fields, self._rule = fields_for(self._app, task.kind, task._handler, options, keyed=keyed)


def fields_for(
    app: App, kind: str, handler: Handler | None, options: EnqueueOptions, *, keyed: bool = False
) -> tuple[Fields, LineRule | None]:
    """An enqueue's options over the handler's over forge's. None means: not said. The rule is there if the line, which
    the fields then lack, depends on the arguments."""
    check_options(options, EnqueueOptions, kind)
    said: dict[str, Any] = {
        name: value for name, value in options.items() if value is not None and name not in LINE_OPTIONS
    }
    declared = None if handler is None else handler._rule
    rule = rule_for(kind, declared, options, lambda: None if handler is None else handler._signature)
    if handler is not None:
        said = {
            "queue": handler.queue,
            "priority": handler.priority,
            "max_attempts": handler.max_attempts,
            "timeout": handler.timeout,
            "keep_result": handler.keep_result,
            **said,
        }
    if said.get("queue") is None:
        said["queue"] = app._route(kind)
    line = None if rule is None else rule.static
    return check_fields(**said, keyed=keyed, line=line), None if line else rule


def _at(i: int, item: object, error: Exception) -> Exception:
    """The refusal of one item of many, saying which."""
    if isinstance(error, AttributeError):
        if isinstance(item, (Call, tuple)):
            return error  # of a function of the user's
        error = InvalidJob(f"must be a tuple of arguments or task.call(…), not {type(item).__name__}")
    return InvalidJob(f"item {i}: {error}")
