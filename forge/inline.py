"""Runs claimed jobs in this very process, one after another: the reference for what it means to run a job.

`execute` is one job, from claim to ending, and never raises; `drain` is a whole worker's life in one loop. What runs a
handler elsewhere (a forked worker) takes the same steps. A `def` handler's timeout cannot be enforced from inside its
own thread and is not; an `async def` handler's is. Storage is the app's: nothing here opens one.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from forge.app.registry import App, Handler
from forge.app.running.context import Context
from forge.job import Claim, Ending, NewJob, Receipt, Written
from forge.storage import Storage
from forge.storage.contract import Incarnation, LowWater, Want
from forge.storage.contract.lines import Turns
from forge.worker.builtin import BUILTIN
from forge.worker.steps import perform, unknown_kind

__all__ = ["Context", "HasTasks", "InlineLink", "Summary", "drain", "execute"]

T = TypeVar("T")


class InlineLink:
    """The link of contexts without a master: what a context asks is done at once, with the app's own storage."""

    stopping = False

    def __init__(self, app: App) -> None:
        self._app = app

    def enqueue(self, claim: Claim, jobs: list[NewJob]) -> Future[list[Receipt]]:  # noqa: ARG002 (see `Link`)
        return _now(lambda: self._app.storage.enqueue(jobs))

    def acquire(self, claim: Claim, scope: str, tokens: int) -> Future[float | None]:  # noqa: ARG002 (always granted)
        return _now(lambda: None)

    def drain(self, scope: str) -> Future[None]:  # noqa: ARG002 (the same)
        return _now(lambda: None)

    def progress(self, claim: Claim, percent: float, message: str | None) -> None:
        """Stored at once: a handler that runs for a while can be watched."""
        self._app.storage.progress([(claim.id, claim.token, percent, message)])


def _now(work: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()
    try:
        future.set_result(work())
    except Exception as e:  # noqa: BLE001 (raised again where the answer is read)
        future.set_exception(e)
    return future


def execute(claim: Claim, handlers: Mapping[str, Handler]) -> Ending:
    """Run one job to its ending. Whatever the handler does, even exit, the answer is an ending and not an exception."""
    handler = handlers.get(claim.kind)
    if handler is None:
        return unknown_kind(claim)
    return perform(Context(claim, handler.app, InlineLink(handler.app)), handler, asyncio.run)


@dataclass(slots=True)
class Summary:
    """What a run of `drain` did."""

    ran: int = 0
    stale: int = 0  # endings that came too late to count: somebody else had taken the job
    outcomes: Counter[str] = field(default_factory=Counter)  # by the outcome's name, lower case

    def add(self, ending: Ending, stale: int) -> None:
        """Count one ending."""
        self.ran += 1
        self.stale += stale
        self.outcomes[type(ending.outcome).__name__.lower()] += 1


class HasTasks(Protocol):
    """What a loop needs of an app."""

    @property
    def storage(self) -> Storage: ...
    @property
    def tasks(self) -> Mapping[str, Handler]: ...


def _in_lines(storage: Storage, who: Incarnation, turns: Mapping[str, Turns]) -> list[Claim]:
    """The next job of a line, if there is one: one at a time, so that no place is held for nothing."""
    for queue in sorted(storage.lines.queues() & turns.keys()):
        turns[queue].start_over()
        while True:
            taken = storage.lines.claim(who, queue, 1, turns[queue])
            if taken.claims or not taken.more:
                break
        if taken.claims:
            return taken.claims
    return []


def drain(
    app: HasTasks,
    queues: Sequence[str] | None = None,
    *,
    until_empty: bool = True,
    on_job: Callable[[Ending], None] | None = None,
) -> Summary:
    """Run what is due until nothing is, or one job with `until_empty=False`.

    `queues` defaults to all that have jobs or handlers; they take turns, plain jobs before those in lines. Budgets are
    not heeded: there is no master that has any. A job's ending is written in the transaction that claims the next one.
    Ctrl-C ends the job that runs as failed, and then the loop.
    """
    storage, handlers, done = app.storage, {**BUILTIN, **app.tasks}, Summary()
    names = (
        sorted({*storage.counts(), *(h.queue or "default" for h in app.tasks.values())}) if queues is None else queues
    )
    wants = [Want(name, 1, LowWater()) for name in names]
    turns = {name: Turns() for name in names}
    who = storage.register("inline", names, socket.gethostname(), os.getpid(), capacity=0)
    try:
        _, claims = storage.exchange(who, [], wants)
        while claims or (claims := _in_lines(storage, who, turns)):
            ending = execute(claims.pop(0), handlers)
            endings = [] if isinstance(ending.outcome, Written) else [ending]
            stale, more = storage.exchange(who, endings, wants if until_empty and not claims else [])
            done.add(ending, len(stale))
            if on_job:
                on_job(ending)
            cause = ending.outcome.__cause__
            if cause is not None and issubclass(type(cause), KeyboardInterrupt):
                raise cause
            claims = claims + more
            if not until_empty:
                break
    finally:
        storage.deregister(who)  # which gives back what was claimed and not run
    return done
