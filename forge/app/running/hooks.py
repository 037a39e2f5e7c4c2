"""The middleware of one app as lists of functions, hook by hook, and how they are called.

A context is `Any` here: its class needs the registry, and the registry needs this. `Middleware` has the types.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from forge.job import NewJob, Outcome

__all__ = ["Hooks"]

_NOTHING = contextlib.nullcontext()


class Hooks:
    """The middleware of one app, hook by hook, in the order it was added."""

    def __init__(self) -> None:
        self.before_enqueue: list[Callable[[NewJob], NewJob]] = []
        self.around: list[Callable[[Any], AbstractContextManager[object]]] = []
        self.before: list[Callable[[Any], None]] = []
        self.after: list[Callable[[Any, Outcome], None]] = []
        self.inside = False  # something is around a handler, or before it

    def add(
        self,
        *,
        before_enqueue: Callable[[NewJob], NewJob] | None,
        around: Callable[[Any], AbstractContextManager[object]] | None,
        before: Callable[[Any], None] | None,
        after: Callable[[Any, Outcome], None] | None,
    ) -> None:
        """Have these called, too: inside of those that were added before, so that `after` comes before theirs."""
        if before_enqueue is not None:
            self.before_enqueue.append(before_enqueue)
        if around is not None:
            self.around.append(around)
        if before is not None:
            self.before.append(before)
        if after is not None:
            self.after.insert(0, after)
        self.inside = bool(self.around or self.before)

    def enqueued(self, jobs: Iterable[NewJob]) -> Iterator[NewJob]:
        """The jobs as they are to be stored: what the hooks before an enqueue make of them."""
        for job in jobs:
            for hook in self.before_enqueue:
                job = hook(job)  # noqa: PLW2901 (each hook sees what the one before it made)
            yield job

    def entered(self, ctx: Any) -> AbstractContextManager[None]:
        """To be entered around a handler: it enters what surrounds the job, then calls what comes before it."""
        return self._entered(ctx) if self.inside else _NOTHING

    @contextlib.contextmanager
    def _entered(self, ctx: Any) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for around in self.around:
                stack.enter_context(around(ctx))
            for before in self.before:
                before(ctx)
            yield
