"""Hooks around jobs: the one screen of them, and how an app's are put together.

A hook that nobody overrides is never called, so an app without middleware pays nothing for it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from forge.errors import ConfigError
from forge.job import NewJob, Outcome

if TYPE_CHECKING:
    from forge.app.context import Context

__all__ = ["Hooks", "Middleware"]


class Middleware:
    """Subclass it, override what you need, and `app.add_middleware(Mine())`. The hooks are plain functions, for `async
    def` handlers too: those run on the event loop, so be quick."""

    def before_enqueue(self, job: NewJob) -> NewJob:
        """The job that is stored instead of `job`, in the program that enqueues; raise to refuse it."""
        return job

    def around_job(self, ctx: Context) -> AbstractContextManager[object]:  # noqa: ARG002 (for who overrides it)
        """Entered before the handler runs, left when it has returned or raised; the first one added is outermost."""
        return contextlib.nullcontext()

    def before_job(self, ctx: Context) -> None:
        """Called before the handler; what it raises is the end of the job, as if the handler had raised it."""

    def after_job(self, ctx: Context, outcome: Outcome) -> None:
        """Called with how the job ended, whatever that is; what it raises is logged and changes nothing."""


_NOTHING = contextlib.nullcontext()
_LAZY = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


class Hooks:
    """The middleware of one app, hook by hook, in the order it was added."""

    def __init__(self) -> None:
        self.before_enqueue: list[Callable[[NewJob], NewJob]] = []
        self.around: list[Callable[[Context], AbstractContextManager[object]]] = []
        self.before: list[Callable[[Context], None]] = []
        self.after: list[Callable[[Context, Outcome], None]] = []
        self.inside = False  # something is around a handler, or before it

    def add(self, middleware: Middleware) -> None:
        """Take the hooks that its class overrides."""
        if not isinstance(middleware, Middleware):
            raise ConfigError(f"middleware must be an object of a subclass of forge.Middleware, not {middleware!r}")
        kind = type(middleware)
        for hook in (kind.before_enqueue, kind.before_job, kind.after_job):
            if any(lazy(hook) for lazy in _LAZY):
                raise ConfigError(f"{kind.__name__}.{hook.__name__} must be a plain function: a call runs none of it")
        if kind.before_enqueue is not Middleware.before_enqueue:
            self.before_enqueue.append(middleware.before_enqueue)
        if kind.around_job is not Middleware.around_job:
            self.around.append(middleware.around_job)
        if kind.before_job is not Middleware.before_job:
            self.before.append(middleware.before_job)
        if kind.after_job is not Middleware.after_job:
            self.after.insert(0, middleware.after_job)
        self.inside = bool(self.around or self.before)

    def enqueued(self, jobs: Iterable[NewJob]) -> Iterator[NewJob]:
        """The jobs as they are to be stored."""
        for job in jobs:
            for hook in self.before_enqueue:
                job = hook(job)  # noqa: PLW2901 (each hook sees what the one before it made)
            yield job

    def entered(self, ctx: Context) -> AbstractContextManager[None]:
        """Around a handler: whatever surrounds it, then what comes before it."""
        return self._entered(ctx) if self.inside else _NOTHING

    @contextlib.contextmanager
    def _entered(self, ctx: Context) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for around in self.around:
                stack.enter_context(around(ctx))
            for before in self.before:
                before(ctx)
            yield
