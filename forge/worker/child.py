"""A worker: the process that runs handlers. It is forked from the zygote, so the modules are there already.

The main thread is the handlers' (see `forge.worker.seats`), so that one may do there what only a main thread can.
Whoever reads the master's lines (see `forge.worker.reading`) takes in jobs, orders and answers. What has not started
can be given back, and a handler told to stop, while handlers run. Replies are gathered while more work is waiting: a
no-op job costs a send per hundred, a lone one is answered at once, and none waits for the end of a long job after it.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from typing import Any, Literal, NoReturn
from uuid import UUID

import orjson
import setproctitle

from forge import fastpath
from forge.app import Context, Forge, Handler
from forge.app.lazy_storage import LazyStorage
from forge.app.registry import App
from forge.app.running.context import Why
from forge.config.model import QueueConfig
from forge.delays import by_default, called
from forge.descendants import left_running
from forge.fence import Deadlines
from forge.job import Cancelled, Claim, Ending, Failed, Released
from forge.job_messages import reply_frame
from forge.logs import current_job, write_stacks
from forge.protocol import MAX_LINE, MOST_UNANSWERED, ToWorker, frame_of, within_limit
from forge.retry import Backoff
from forge.worker import output
from forge.worker.asking import MasterLink
from forge.worker.inbox import Inbox
from forge.worker.losing import LOST, Losing
from forge.worker.outcomes import can_be_awaited, message_of
from forge.worker.reading import Reading
from forge.worker.recycling import Recycling
from forge.worker.runners import make_runner
from forge.worker.seats import Seat
from forge.worker.steps import whole
from forge.worker.threads import follow

__all__ = ["StartFailed", "Worker"]

GATHERED = MOST_UNANSWERED  # replies sent at once at most,
GATHER_SECONDS = 0.005  # and none waits longer than this for the next job to end,
TICK = 50  # or longer than these milliseconds if that takes long. A job that does shows in the process title.

KEEP_CONNECTIONS = 5.0  # seconds for which those that a handler's own enqueues were made on are kept
EARLY_KEPT = 100
LEFT_RUNNING = "a job that was stopped had left processes running"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_log = logging.getLogger("forge.worker")
_signal: Any = importlib.import_module("_signal")


class StartFailed(Exception):
    """A function of `on_worker_start` raised: there is no worker."""


class Worker:
    """One forked process, from its first line to its last."""

    def __init__(
        self,
        label: str,
        channel: socket.socket,
        handlers: Mapping[str, Handler],
        settings: QueueConfig | None = None,
        *,
        apps: Iterable[Forge] = (),
        give_up_after: float | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        """`apps` are those whose start and stop hooks are called; `deadlines` are those of the master's fence."""
        self._label = label
        self._channel = channel
        self._settings = settings or QueueConfig()
        self._apps = tuple(apps)
        self.handlers = handlers
        self.give_up_after = give_up_after
        self.link = MasterLink(self.say)
        self.early: dict[UUID, Why] = {}
        self.closed = False
        self._jobs = Inbox()
        self._lock = threading.Lock()  # of what is written to the channel
        self.replies: list[bytes] = []
        self._received = self._replied = 0
        self._sent_at = 0.0
        self._sender = 0  # the thread that is writing to the master
        self._held = self._on_signal
        self._titled: Context | None = None  # the job that the process title shows
        self._context = copy_context()  # with what start hooks set in it; each job runs in a copy of its own
        self._recycling = Recycling(self._settings)
        self._losing = Losing(deadlines)
        self._plain: dict[str, tuple[Handler, App, Callable[..., Any], bool, bool]] = {}
        self._ready = select.poll()
        self._ready.register(channel, select.POLLIN)
        kind = self._settings.worker
        self._capacity = 1 if kind == "process" else self._settings.concurrency
        self._runner, self._main = make_runner(
            kind, self._capacity, self, end=lambda: self._jobs.put([None]), sending=self._is_sending
        )
        self._rest = b""  # of a line that has not come in whole
        self._reading = Reading(
            self._hear,
            self._tick,
            asked=lambda: self.link.waited_for,
            waiting=lambda: bool(self._jobs),
            shared=kind == "process",
        )

    # -- its life, in the main thread --------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the master says drain or is gone. `StartFailed` if it could not begin."""
        LazyStorage.keep_for(KEEP_CONNECTIONS)
        self._catch_signals()
        follow(self._runner.running)
        self._title()
        self._reading.start()
        self._start_hooks()
        self._plain = _plain(self.handlers)
        self._send(frame_of({"hello": os.getpid(), "capacity": self._capacity}))
        self._context.run(self._runner.serve)
        self._stop_hooks()
        self.flush()
        self._runner.close()

    def _catch_signals(self) -> None:
        """The terminal's Ctrl-C is the master's to interpret. A handler of ours and not "ignore", which programs that a
        handler starts would inherit."""
        self.hold_signals()
        os.register_at_fork(after_in_child=self._in_child)

    def hold_signals(self) -> None:
        """In the main thread, between jobs: whatever hooks and handlers have made of our signals. It takes 0.6 µs, by
        what is behind `signal` (which makes enums of the answers: 10)."""
        for number in SIGNALS:
            if _signal.getsignal(number) is not self._held:
                signal.signal(number, self._held)
        _signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _on_signal(self, number: int, _: object) -> None:
        if number == signal.SIGTERM:
            self._main.on_signal()

    def _in_child(self) -> None:
        """In a process that a handler has forked: signals mean what they always do, and the channel is not its own. It
        would keep it open after our death."""
        self._channel.close()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    def _start_hooks(self) -> None:
        for app in self._apps:
            for hook in app._starting:
                try:
                    self._call(hook)
                except BaseException as e:
                    raise StartFailed(self._hook_failed(hook, e)) from e

    def _stop_hooks(self) -> None:
        for app in reversed(self._apps):
            for hook in app._stopping:
                try:
                    self._call(hook)
                except BaseException as e:  # noqa: BLE001 (it leaves anyway)
                    _log.exception("%s failed", _named(hook))
                    self._hook_failed(hook, e)

    def _hook_failed(self, hook: Callable[[], Any], error: BaseException) -> str:
        """Tell whoever has started this worker, in one line; the answer is that line."""
        why = " ".join(f"{_named(hook)} failed: {message_of(error)}".split())
        with contextlib.suppress(OSError):  # it is gone
            self._send(frame_of({"say": "failed", "why": why}))
        return why

    def _call(self, hook: Callable[[], Any]) -> None:
        answer = self._context.run(hook)
        if can_be_awaited(answer):
            self._runner.run(whole(answer), self._context)

    # -- for who runs jobs, in any thread ----------------------------------------------------------------------

    def burst(self, seat: Seat) -> None:
        """Run there what can be run the fast way. Not where after each job it is asked whether it was the last one."""
        while not self._recycling.wanted:
            self.hold_signals()
            until, room = self._sent_at + GATHER_SECONDS, GATHERED - len(self.replies)
            done = fastpath.burst(
                self._jobs, self._plain, self, seat, Context, current_job, time.monotonic, until, room
            )
            if self._titled is not None:
                self._title()
            if not done:
                return
            with self._lock:
                self._replied += done
            if len(self.replies) >= GATHERED or time.monotonic() >= until:
                self.flush()

    def next(self) -> Claim | None:
        """The next job; None: there will be no more."""
        try:
            return self._jobs.popleft()
        except IndexError:
            self.flush()  # nothing to do: nobody should wait for what is done
        while self._reading.by_main():
            if self._jobs:
                return self._jobs.popleft()
        return self._jobs.get()

    def take(self) -> Claim | None:
        """The next job that is there already."""
        return self._jobs.popleft() if self._jobs else None

    def give_back(self, claim: Claim) -> None:
        """It was not started."""
        self._reply(Ending(claim, Released()), 0.0, 0.0)

    def reply(self, ending: Ending, began: float, ctx: Context | None) -> None:
        """A job has ended."""
        if ctx is not None and ctx is self._titled:
            self._title()
        now = time.monotonic()
        self._reply(ending, now - began, now)
        if self._recycling.wanted:
            with self._lock:
                why = None if self.closed else self._recycling.after_job()
            if why is not None:
                self._leave(why)
        if ctx is not None and not self.closed and (ctx._why is not None or ctx.remaining <= 0) and left_running():
            self._leave(LEFT_RUNNING)  # with which they go: the job was stopped, and so shall be what it started

    def _reply(self, ending: Ending, seconds: float, now: float) -> None:
        try:
            line = reply_frame(ending, seconds)
            words = f"the reply has {len(line):,} bytes with result, jobs and traceback; the limit is {MAX_LINE:,}"
        except Exception as e:  # noqa: BLE001 (whatever is in it: this job fails, the others of this worker go on)
            line, words = b"", f"the reply cannot be written: {message_of(e)}"
        if not 0 < len(line) <= MAX_LINE:
            line = reply_frame(Ending(ending.claim, Failed(words), by_default(ending.claim.attempt)), seconds)
        with self._lock:
            self._replied += 1
            self.replies.append(line)
            full = len(self.replies) >= GATHERED or now - self._sent_at >= GATHER_SECONDS
        if full:
            self.flush()

    def flush(self) -> None:
        """Send what has been replied."""
        output.settle(self._runner.running)
        if self.replies:
            self._send(b"")

    def say(self, line: bytes) -> None:
        """Send a line at once, from a handler."""
        self._send(line)
        self._reading.needed()
        if self._main.waiting:  # it was not interrupted in the middle of the line
            os.kill(os.getpid(), signal.SIGTERM)

    def _send(self, line: bytes) -> None:
        with self._lock:
            self._sender = threading.get_ident()
            try:
                # `burst` adds to this list without the lock, and may have it in hand just now: it stays the same list.
                count = len(self.replies)
                data = b"".join(self.replies[:count]) + line
                del self.replies[:count]
                self._sent_at = time.monotonic()
                self._channel.sendall(data)
            finally:
                self._sender = 0

    def _is_sending(self) -> bool:
        return self._sender == threading.get_ident()

    def _leave(self, why: str) -> None:
        """Start no more, and wait to be told to go."""
        self.closed = True
        self._send(frame_of({"say": "leaving", "why": why}))
        self._recall()

    def _title(self, ctx: Context | None = None) -> None:
        self._titled = ctx
        setproctitle.setproctitle(f"forge: worker {self._label}{f' {ctx.kind}' if ctx else ''}")

    # -- for who reads -----------------------------------------------------------------------------------------

    def _hear(self) -> bool:
        """Wait for what the master has to say, and take it in. Whether it was jobs."""
        received = self._received
        try:
            data = self._receive()
            found, rest = fastpath.jobs_in(self._rest + data if self._rest else data)
            self._rest = within_limit(rest)
            claims: list[Claim | None] = []
            for each in found:
                if isinstance(each, Claim):
                    claims.append(each)
                else:
                    self._take_in(claims)  # an order is about what came before it
                    self._obey(orjson.loads(each))
            self._take_in(claims)
        except OSError:
            _vanish()
        except BaseException:  # noqa: BLE001 (a worker that cannot hear is of no use)
            _log.exception("the reader failed")
            _vanish()
        if self._received == received:
            return False
        self._runner.jobs_came()
        return True

    def _receive(self) -> bytes:
        """What has come; until then, what is to be done in time."""
        while (patience := self._patience()) is not None and not self._ready.poll(patience):
            self._tick()
        data = self._channel.recv(1 << 18)
        if not data:
            _vanish()
        return data

    def _patience(self) -> int | None:
        """Milliseconds until something is to be done even if nothing comes."""
        idle = self._received == self._replied
        if not self.replies and (idle or (self._titled is not None and not self._jobs)):
            return None if idle else self._losing.patience()
        return TICK

    def _tick(self) -> None:
        """Do what is due by the clock: stop what may no longer run, send replies that have waited, and show in the
        process title a job that takes long."""
        if (step := self._losing.step()) is not None:
            self._lose(step)
        self.flush()
        if self._titled is None:
            longest = min(self._runner.running(), key=lambda ctx: ctx._began, default=None)
            if longest is not None and time.monotonic() - longest._began >= TICK / 1000:
                self._title(longest)
                if longest not in self._runner.running():  # it has ended meanwhile, and had no title to take away
                    self._title()

    def _obey(self, message: ToWorker) -> None:
        if "answer" in message:
            self.link.answered(message)
            return
        match message["do"]:
            case "recall":
                self._recall()
            case "drain":
                self.closed = True
                self._recall()
                self._runner.finish()
            case "stopping":
                self.link.pod_stops()
            case "cancel":
                self._cancel(UUID(message["id"]), Why(message["why"], message["ends"]))
            case "interrupt":
                if (ctx := self._find(UUID(message["id"]))) is not None:
                    self._interrupt(ctx)
            case "stacks":
                write_stacks(f"worker {self._label}")

    def _lose(self, step: Literal["tell", "interrupt"]) -> None:
        """The pod has lost its database: what runs is to stop, and what has not started does not. Handlers come first:
        a master that is stopped may not take another line, and what waits for that waits until the end."""
        for ctx in list(self._runner.running()):
            if ctx._why is None:
                ctx._stop(LOST)
            elif step == "interrupt" and ctx._why is LOST:
                self._interrupt(ctx)
        self._recall()

    def _take_in(self, claims: list[Claim | None]) -> None:
        """Add the jobs to the inbox, and clear `claims`."""
        self._received += len(claims)
        self._jobs.put(claims)
        claims.clear()
        if self.closed:
            self._recall()

    def _recall(self) -> None:
        """Give back what has not started. In whatever thread."""
        for claim in self._unstarted():
            self.give_back(claim)
        self.flush()

    def _unstarted(self) -> list[Claim]:
        """Taken away from who would have started it."""
        taken = list[Claim | None]()
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._jobs.popleft())
        self._jobs.put([claim for claim in taken if claim is None])
        return [claim for claim in taken if claim is not None]

    def _cancel(self, id: UUID, why: Why) -> None:
        ctx = self._find(id)
        if ctx is None and self._cancel_unstarted(id, why):
            return
        if ctx is None:
            # It has ended, or is on its way to its seat: then the seat finds this, or this finds it in the seat.
            if len(self.early) >= EARLY_KEPT:
                self.early.clear()
            self.early[id] = why
            ctx = self._find(id)
        if ctx is not None:
            self.early.pop(id, None)
            if why.ends == "failed":
                self._tell_delay(ctx)
            ctx._stop(why)

    def _tell_delay(self, ctx: Context) -> None:
        """Should this process have to be killed for the job, nobody else could ask its task's own backoff. In a thread
        of its own: it is user code, and who reads must not wait for it."""
        handler = self.handlers.get(ctx.kind)
        if handler is None or isinstance(handler.backoff, Backoff):
            return
        backoff = handler.backoff

        def tell() -> None:
            with contextlib.suppress(Exception):  # then there is nothing to tell; if the handler ends, that is said
                if (seconds := called(backoff, ctx.attempt)) is not None:
                    self._send(frame_of({"say": "delay", "id": ctx.id.hex, "seconds": seconds}))

        threading.Thread(target=tell, name="backoff", daemon=True).start()

    def _cancel_unstarted(self, id: UUID, why: Why) -> bool:
        unstarted = self._unstarted()
        found = next((claim for claim in unstarted if claim.id == id), None)
        self._jobs.put([claim for claim in unstarted if claim is not found])
        self._runner.jobs_came()
        if found is None:
            return False
        # What has not begun has used up no time.
        self._reply(Ending(found, Cancelled(why.text) if why.ends == "cancelled" else Released()), 0.0, 0.0)
        self.flush()
        return True

    def _find(self, id: UUID) -> Context | None:
        return next((ctx for ctx in self._runner.running() if ctx.id == id), None)

    def _interrupt(self, ctx: Context) -> None:
        if ctx._task is not None:
            ctx._stop(ctx._why or Why("interrupted"))
        else:
            self._runner.interrupt(ctx)


def _vanish() -> NoReturn:
    """The master is gone; so is this process, handler or not, with everything that handlers have started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _plain(handlers: Mapping[str, Handler]) -> dict[str, tuple[Handler, App, Callable[..., Any], bool, bool]]:
    """Those that `fastpath.burst` may call: nothing is around them, and nobody awaits them."""
    return {
        kind: (handler, handler.app, handler.fn, handler.takes_ctx, handler.ctx_first)
        for kind, handler in handlers.items()
        if not (handler.is_async or handler.app._hooks.inside or handler.app._hooks.after)
    }


def _named(hook: Callable[[], Any]) -> str:
    return f"{getattr(hook, '__module__', '?')}.{getattr(hook, '__qualname__', repr(hook))}"
