"""What a worker needs of a context, beside what its handler sees: one typed interface, and a check at load that
`Context` has it.

The names have an underscore because handlers have no business with them. `forge.worker` uses no other private name of a
context.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from forge.app.running.context import Context, Why
from forge.job import Claim, NewJob

__all__ = ["JobState"]


class JobState(Protocol):
    """A job that runs, as its worker sees it: what it reads of it, and how it stops it."""

    _claim: Claim  # the job
    _began: float  # monotonic: when it was begun
    _children: list[NewJob] | None  # jobs to be stored together with its end
    _written: bool  # its transaction has stored its end already
    _why: Why | None  # why it was told to stop, and what it ends as then
    _task: asyncio.Task[Any] | None  # the one that awaits its handler, if it is awaited

    @property
    def timeout(self) -> int:
        """Seconds that the handler may take."""
        ...

    @property
    def remaining(self) -> float:
        """Seconds left of them."""
        ...

    def _stop(self, why: Why) -> None:
        """From another thread: tell the handler to stop."""
        ...

    def _awaited_by(self, task: asyncio.Task[Any] | None) -> None:
        """The handler is about to be awaited in this task. Raises CancelledError if it was told to stop before."""
        ...


# `fastpath.burst` allocates a context without calling its class: it sets these four and nothing else. What it then
# reads, or somebody else does, is as the class has it until the handler changes it.
_SET_BY_BURST = {"_app", "_began", "_claim", "_link"}
_AT_FIRST = {"_children": None, "_task": None, "_why": None, "_written": False}

if (
    set(Context.__slots__) != {"__dict__", "__weakref__", *_SET_BY_BURST}
    or {name: getattr(Context, name, ...) for name in _AT_FIRST} != _AT_FIRST
):
    raise ImportError(
        "the fields of Context have moved; set them in _native/burst.pxi and _reference/burst.py, and name them in "
        "worker/job_state.py"
    )
