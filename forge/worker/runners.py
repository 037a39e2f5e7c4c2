"""The three kinds of worker: one job at a time in the main thread, several in threads, or many on an event loop.

A seat is where one `def` handler at a time runs: the main thread, where a signal can interrupt it, or another, where an
asynchronous exception can. Either way only the job that is meant is interrupted, never the one after it: a seat says
which job it has, and gives that up before it goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol
from uuid import UUID

from forge.app.context import Context, Why
from forge.app.link import Link
from forge.app.registry import Handler
from forge.errors import Interrupted
from forge.job import Claim, Ending
from forge.worker.outcomes import can_be_awaited
from forge.worker.steps import aperform, perform, raised, resume, unknown_kind

__all__ = ["JobRunner", "WorkerPort", "make_runner"]


class WorkerPort(Protocol):
    """What a runner needs of its worker."""

    handlers: Mapping[str, Handler]
    give_up_after: float | None  # seconds, for jobs of a kind nobody knows
    early: dict[UUID, Why]  # why jobs should stop that were on their way to their seat when the word came
    closed: bool  # start no more
    replies: list[bytes]  # that have not been sent

    @property
    def link(self) -> Link:
        """What contexts ask."""
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
        """It was not started."""
        ...

    def reply(self, ending: Ending, began: float, ctx: Context | None) -> None:
        """It has ended."""
        ...

    def flush(self) -> None:
        """Send what has been replied."""
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
        """Run a job and reply."""
        port, began = self._port, time.monotonic()
        handler = port.handlers.get(claim.kind)
        if handler is None:
            port.reply(unknown_kind(claim, port.give_up_after), began, None)
            return
        ctx = Context(claim, handler.app, port.link, began)
        port.reply(self._seated(ctx, handler, lambda: perform(ctx, handler, self.run)), began, ctx)

    def ended(self, ctx: Context, handler: Handler, began: float, returned: Any, error: BaseException | None) -> None:
        """A job that was run the fast way has not ended as nearly all do."""

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


class JobRunner(Protocol):
    """One way to run jobs."""

    def serve(self) -> None:
        """In the main thread: run jobs until there will be no more."""
        ...

    def jobs_came(self) -> None:
        """From the reading thread."""
        ...

    def finish(self) -> None:
        """From the reading thread: there will be no more."""
        ...

    def running(self) -> Iterator[Context]:
        """The jobs that run now; may be asked by any thread."""
        ...

    def interrupt(self, ctx: Context) -> None:
        """From the reading thread: raise in the handler of this job, if it still runs."""
        ...

    def run(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context) -> Any:
        """In the main thread, while it does not serve: run a coroutine, where `async def` handlers run if possible."""
        ...

    def close(self) -> None:
        """In the main thread, at the end."""
        ...


class SeatRunner:
    """Jobs in seats: the main one, or one in each of several threads."""

    def __init__(self, main: MainSeat, threads: list[ThreadSeat], end: Callable[[], None]) -> None:
        """`end` makes one `WorkerPort.next` answer None."""
        self._main, self._threads, self._end = main, threads, end

    def serve(self) -> None:
        if not self._threads:
            self._main.work()
        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(seat.work,), name=f"job-{n}")
            for n, seat in enumerate(self._threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def jobs_came(self) -> None:
        """Who waits for one has been woken by its coming."""

    def finish(self) -> None:
        for _ in range(len(self._threads) or 1):
            self._end()

    def running(self) -> Iterator[Context]:
        for seat in (self._main, *self._threads):
            if (ctx := seat.ctx) is not None:
                yield ctx

    def interrupt(self, ctx: Context) -> None:
        for seat in (self._main, *self._threads):
            if seat.ctx is ctx:
                seat.interrupt(ctx)

    def run(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context) -> Any:
        return self._main.run(coroutine, context)

    def close(self) -> None:
        self._main.close()


class AsyncRunner:
    """Jobs as tasks of one event loop in the main thread; `def` handlers in threads."""

    def __init__(self, port: WorkerPort, capacity: int) -> None:
        self._port, self._capacity = port, capacity
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._finished = asyncio.Event()
        self._awaited: dict[Context, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pool: ThreadPoolExecutor | None = None
        self._free: list[LoopSeat] = []
        self._seats: list[LoopSeat] = []
        self._flushing = False
        self._context = contextvars.Context()  # that each job has a copy of

    def serve(self) -> None:
        self._context = contextvars.copy_context()
        to_its_end(self._loop, self._serve(), contextvars.copy_context(), shared=True)

    async def _serve(self) -> None:
        await self._finished.wait()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def jobs_came(self) -> None:
        self._loop.call_soon_threadsafe(self._start)

    def finish(self) -> None:
        self._loop.call_soon_threadsafe(self._finished.set)

    def _start(self) -> None:
        """Start what has come, as far as there is room."""
        while len(self._tasks) < self._capacity and (claim := self._port.take()) is not None:
            if self._port.closed:
                self._port.give_back(claim)
                continue
            task = self._loop.create_task(self._one(claim), context=self._context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._start()
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)  # with whatever else ends in this turn of the loop

    def _flush(self) -> None:
        self._flushing = False
        self._port.flush()

    async def _one(self, claim: Claim) -> None:
        handler = self._port.handlers.get(claim.kind)
        if handler is None or not handler.is_async:
            await self._in_thread(claim)
            return
        began = time.monotonic()
        ctx = Context(claim, handler.app, self._port.link)
        self._awaited[ctx] = None
        try:
            heed(self._port, ctx)
            ending = await aperform(ctx, handler)
        finally:
            del self._awaited[ctx]
        self._port.reply(ending, began, ctx)

    async def _in_thread(self, claim: Claim) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._capacity, "job")
        if not self._free:
            seat = LoopSeat(self._port, self._loop)
            self._seats.append(seat)
        else:
            seat = self._free.pop()
        await self._loop.run_in_executor(self._pool, contextvars.copy_context().run, seat.one, claim)
        self._free.append(seat)

    def running(self) -> Iterator[Context]:
        yield from list(self._awaited)
        for seat in list(self._seats):
            if (ctx := seat.ctx) is not None:
                yield ctx

    def interrupt(self, ctx: Context) -> None:
        for seat in list(self._seats):
            seat.interrupt(ctx)

    def run(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context) -> Any:
        return to_its_end(self._loop, coroutine, context)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._runner.close()


def make_runner(
    kind: Literal["process", "threads", "async"],
    capacity: int,
    port: WorkerPort,
    *,
    end: Callable[[], None],
    sending: Callable[[], bool],
) -> tuple[JobRunner, MainSeat]:
    """The runner of a kind, and the seat in the main thread, which may be empty."""
    main = MainSeat(port, sending)
    if kind == "async":
        return AsyncRunner(port, capacity), main
    return SeatRunner(main, [ThreadSeat(port) for _ in range(capacity)] if kind == "threads" else [], end), main
