"""The types of `@app.task(…)`, for type checkers alone: what becomes of a function that is made a task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from forge.app.running.context import Context
from forge.app.tasks import AsyncTask, SyncTask

__all__ = ["TaskDecorator", "Unannotated"]

P = ParamSpec("P")
R = TypeVar("R")


class Unannotated:
    """Nobody's type: a parameter that takes it is of type Any, or of no type. See `TaskDecorator`."""


class TaskDecorator(Protocol):
    """What `@app.task(…)` with options is.

    A function whose first parameter is the context is enqueued without it. One whose first parameter could be anything
    could take that, too: no checker can tell, so the first two let any arguments through.
    """

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Unannotated, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[..., R]: ...

    @overload
    def __call__(self, fn: Callable[Concatenate[Unannotated, P], R], /) -> SyncTask[..., R]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...

    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], R], /) -> SyncTask[P, R]: ...

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...
