"""Hooks around jobs: the one screen of them, and how an app's are put together.

A hook that nobody overrides is never called, so an app without middleware pays nothing for it.
"""

from __future__ import annotations

import contextlib
import inspect
from contextlib import AbstractContextManager

from forge.app.running.context import Context
from forge.app.running.hooks import Hooks
from forge.errors import ConfigError
from forge.job import NewJob, Outcome

__all__ = ["Middleware", "add_middleware"]


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


_LAZY = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def add_middleware(hooks: Hooks, middleware: Middleware) -> None:
    """Have the hooks called that the middleware's class overrides."""
    if not isinstance(middleware, Middleware):
        raise ConfigError(f"middleware must be an object of a subclass of forge.Middleware, not {middleware!r}")
    kind = type(middleware)
    for hook in (kind.before_enqueue, kind.before_job, kind.after_job):
        if any(lazy(hook) for lazy in _LAZY):
            raise ConfigError(f"{kind.__name__}.{hook.__name__} must be a plain function: a call runs none of it")
    hooks.add(
        before_enqueue=None if kind.before_enqueue is Middleware.before_enqueue else middleware.before_enqueue,
        around=None if kind.around_job is Middleware.around_job else middleware.around_job,
        before=None if kind.before_job is Middleware.before_job else middleware.before_job,
        after=None if kind.after_job is Middleware.after_job else middleware.after_job,
    )
