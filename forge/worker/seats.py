"""Seats: where one `def` handler at a time runs.

That is the main thread, where a signal can interrupt it, or another, where an asynchronous exception can. Either way
only the job that is meant is interrupted, never the one after it: a seat says which job it has, and gives that up
before it goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol
from uuid import UUID

from forge.app.registry import Handler
from forge.app.running.context import Context, Why
from forge.app.running.link import Link
from forge.errors import Interrupted
from forge.job import Claim, Ending
from forge.worker.outcomes import can_be_awaited
from forge.worker.steps import perform, raised, resume, unknown_kind

__all__ = ["LoopSeat", "MainSeat", "Seat", "ThreadSeat", "WorkerPort", "heed", "to_its_end"]


class WorkerPort(Protocol):
    """What a runner needs of its worker."""

    handlers: Mapping[str, Handler]
    give_up_after: float | None  # seconds, for jobs of a kind nobody knows
    early: dict[UUID, Why]  # why jobs should stop that were on their way to their seat when the word came
    closed: bool  # start no more
    replies: list[bytes]  # that have not been sent

    @property
    def link(self) -> Link:
        """What contexts ask the master through."""
        ...

    def burst(self, seat: Seat) -> None:
        """Run there what can be run the fast way."""
        ...

    def next(self) -> Claim | None:
        """The next job; None: there will be no more."""
        ...

    def take(self) -> Claim | None:
        """The next job that is there already."""
        ...

    def give_back(self, claim: Claim) -> None:
        """Give a job back to the master that was not started."""
        ...

    def reply(self, ending: Ending, began: float, ctx: Context | None) -> None:
        """Tell the master how a job ended. `began` is monotonic; `ctx` is None if no handler ran."""
        ...

    def flush(self) -> None:
        """Send the replies that wait."""
        ...

    def hold_signals(self) -> None:
        """In the main thread: make our signals mean what they should."""
        ...


class Seat:
    """Where one job at a time runs, in the thread that calls `work`."""

    def __init__(self, port: WorkerPort) -> None:
        self._port = port
        self.ctx: Context | None = None  # the job that runs, and may be interrupted
        self._loop: asyncio.Runner | None = None  # kept from job to job, for `async def` handlers

    def work(self) -> None:
        """One job after another, until there will be no more."""
        port = self._port
        while (claim := port.next()) is not None:
            if port.closed:
                port.give_back(claim)
            else:
                self.one(claim)

    def one(self, claim: Claim) -> None:
        """Run a job to its ending, and reply."""
        port, began = self._port, time.monotonic()
        handler = port.handlers.get(claim.kind)
        if handler is None:
            port.reply(unknown_kind(claim, port.give_up_after), began, None)
            return
        ctx = Context(claim, handler.app, port.link, began)
        port.reply(self._seated(ctx, handler, lambda: perform(ctx, handler, self.run)), began, ctx)

    def ended(self, ctx: Context, handler: Handler, began: float, returned: Any, error: BaseException | None) -> None:
        """`fastpath.burst` has called this handler here, and there is more to do than to say that the job is done."""

        def end() -> Ending:
            return resume(ctx, handler, returned, error, self.run)

        going_on = error is None and can_be_awaited(returned)
        self._port.reply(self._seated(ctx, handler, end) if going_on else end(), began, ctx)

    def _seated(self, ctx: Context, handler: Handler, work: Callable[[], Ending]) -> Ending:
        """The ending of a job that may be interrupted until then."""
        ending: Ending | None = None
        try:
            try:
                self.ctx = ctx
                if self._port.early:
                    heed(self._port, ctx)
                ending = work()
            finally:
                self.settle()
        except Interrupted as late:  # in the last moment, when the handler had ended
            self.settle()
            ending = ending or raised(ctx, handler, late)
        return ending

    def run(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context | None = None) -> Any:
        """Run a coroutine on the seat's own loop, in this context or in a copy of the one here."""
        if self._loop is None or self._loop.get_loop().is_closed():  # `def` handlers can find it, and close it
            self._loop = asyncio.Runner()
        return to_its_end(self._loop.get_loop(), coroutine, context or contextvars.copy_context())

    def close(self) -> None:
        """End the loop, and what it still has to do."""
        if self._loop is not None and not self._loop.get_loop().is_closed():
            self._loop.close()

    def settle(self) -> None:
        """From here on the job cannot be interrupted any more."""
        self.ctx = None

    def interrupt(self, ctx: Context) -> None:
        """From another thread: raise in the handler, if it is this job that runs."""
        raise NotImplementedError


class MainSeat(Seat):
    """The main thread: SIGTERM, from the process to itself, whose handler raises."""

    def __init__(self, port: WorkerPort, sending: Callable[[], bool]) -> None:
        """`sending`: whether the main thread is in the middle of writing to the master, where nothing may be raised."""
        super().__init__(port)
        self._sending = sending
        self._meant: Context | None = None

    def one(self, claim: Claim) -> None:
        """And then, the fast way, as many as can be run so."""
        self._port.hold_signals()
        super().one(claim)
        self._port.burst(self)

    def interrupt(self, ctx: Context) -> None:
        self._meant = ctx
        os.kill(os.getpid(), signal.SIGTERM)

    @property
    def waiting(self) -> bool:
        """Whether the signal came at a time when nothing could be raised."""
        return self._meant is not None

    def on_signal(self) -> None:
        """In the main thread, between two of its instructions."""
        meant = self._meant
        if meant is None or self._sending():
            return
        self._meant = None
        if meant is self.ctx:
            raise Interrupted(meant._why.text if meant._why is not None else "told to stop, and went on")


class ThreadSeat(Seat):
    """Any other thread: CPython raises in it when it next runs Python code."""

    def __init__(self, port: WorkerPort) -> None:
        super().__init__(port)
        self._lock = threading.Lock()
        self._thread = 0
        self._pending = False

    def work(self) -> None:
        try:
            super().work()
        finally:
            self.close()

    def one(self, claim: Claim) -> None:
        self._thread = threading.get_ident()
        super().one(claim)

    def interrupt(self, ctx: Context) -> None:
        with self._lock:
            if self.ctx is ctx and not self._pending:
                self._pending = True
                _raise_in(self._thread, Interrupted)

    def settle(self) -> None:
        with self._lock:
            self.ctx = None
            if self._pending:
                self._pending = False
                _raise_in(self._thread, None)  # it may not have come to that


class LoopSeat(ThreadSeat):
    """A thread beside an event loop: what a handler leaves to be awaited, is awaited there."""

    def __init__(self, port: WorkerPort, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(port)
        self._main_loop = loop

    def run(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context | None = None) -> Any:
        future = (context or contextvars.copy_context()).run(
            asyncio.run_coroutine_threadsafe, coroutine, self._main_loop
        )
        try:
            return future.result()
        except BaseException:
            future.cancel()  # if it was this thread that was interrupted
            raise


def to_its_end(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any],
    context: contextvars.Context,
    *,
    shared: bool = False,
) -> Any:
    """Run a coroutine on this loop. Another task or callback that raises SystemExit would take it along: it goes on,
    and whoever awaits that task hears of it all the same. If the loop is `shared`, it goes on if somebody stops it too.
    """
    task = loop.create_task(coroutine, context=context)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt):
            if task.done():
                raise
        except RuntimeError:  # stopped
            if task.done() or not shared or loop.is_closed():
                raise


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    what = ctypes.py_object() if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), what)


def heed(port: WorkerPort, ctx: Context) -> None:
    """A word to stop that came while the job was on its way here."""
    why = port.early.pop(ctx.id, None)
    if why is not None:
        ctx._stop(why)
