"""The three kinds of worker: one job at a time in the main thread, several in threads, or many on an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol

from forge.app.running.context import Context
from forge.job import Claim
from forge.worker.seats import LoopSeat, MainSeat, ThreadSeat, WorkerPort, heed, to_its_end
from forge.worker.steps import aperform

__all__ = ["JobRunner", "make_runner"]


class JobRunner(Protocol):
    """One way to run jobs."""

    def serve(self) -> None:
        """In the main thread: run jobs until there will be no more."""
        ...

    def jobs_came(self) -> None:
        """From the reading thread: there are jobs in the inbox."""
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
