"""The master's loop: one thread, which never waits for the database, a worker or the disk.

Each turn (`Master._until`) takes in what threads, sockets and signals have brought, gives jobs to workers, sends
endings off to be written, and asks for new jobs; now and then it looks at the clock. Signal handlers only post news.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import logging
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from forge import early, logs
from forge.config import Config
from forge.errors import ConfigError, DatabaseError, ExitCode, ForgeError
from forge.master.books import Books
from forge.master.database_threads import DatabaseThread
from forge.master.finalizer import Finalizer
from forge.master.news import (
    Beat,
    CancelsFound,
    ChannelChanged,
    ErrandDone,
    JobsPushed,
    ListenerReady,
    LookDue,
    News,
    Outage,
    SharesFound,
    SignalCame,
    Trouble,
    Woken,
)
from forge.master.pod.fencing import Fencing
from forge.master.pod.log import Sometimes, change_logs, counted, log
from forge.master.pod.meter import Meter
from forge.master.pod.pod_services import PodServices
from forge.master.pod.presence import Presence
from forge.master.pod.systemd import Systemd
from forge.master.pod_state import PodState
from forge.master.programs.commands import Hidden
from forge.master.programs.programs import Programs
from forge.master.queues.claimer import Claimer
from forge.master.queues.local_queue import LocalQueue
from forge.master.queues.local_queues import LocalQueues
from forge.master.queues.offers import Offers
from forge.master.queues.pod_budgets import PodBudgets
from forge.master.queues.pod_share import PodShare
from forge.master.queues.wake_switch import WakeSwitch
from forge.master.workers.replies import Replies
from forge.master.workers.requests import Requests
from forge.master.workers.stop_job import notice
from forge.master.workers.suspects import ZygoteDeaths
from forge.master.workers.workers import Workers
from forge.master.workers.zygote_process import ZygoteProcess
from forge.master.workers.zygotes import Zygotes
from forge.storage import Storage

__all__ = ["Master", "log"]

TICK = 0.2  # seconds between looks at the clock while jobs run
TICK_AHEAD = 0.05  # seconds between them while jobs wait in workers behind others
TICK_IDLE = 1.0  # seconds between them while there is nothing to do
WRITE_WITHIN = 2.0  # seconds for the last results when the time to stop is over already

SLOW_START = 10.0  # seconds after which it is said who is not ready


class Master:
    """One pod. `run` starts it, serves, and returns when it has stopped."""

    def __init__(
        self,
        storage: Storage,
        heart: Storage,
        cluster: Storage,
        config: Config,
        zygote: ZygoteProcess,
        *,
        read_config: Callable[[], Config] | None = None,
        systemd: Systemd | None = None,
        hidden: Hidden | None = None,
    ) -> None:
        """`heart` is a storage for the heartbeat alone, `cluster` one for the services, with a timeout. The zygote is
        ready. `read_config` is called on SIGHUP; `hidden` are variables that programs are to find as they were."""
        self.storage = storage
        self.state = state = PodState(config)
        self._read_config = read_config or (lambda: config)
        self._systemd = systemd or Systemd({})
        self._selector = selectors.DefaultSelector()
        self._news: collections.deque[News] = collections.deque()
        self._bell, self._ringer = socket.socketpair()
        self._ready = False  # all workers have been, once
        self._exit_code = ExitCode.OK  # if nothing goes wrong at the end
        self._tick_at = 0.0  # monotonic: look at the clock then
        self._sometimes = Sometimes(60.0)
        self._deaths = ZygoteDeaths()
        self._meter = meter = Meter()
        self.queues = queues = LocalQueues()
        self.presence = presence = Presence(storage, heart, state, zygote.fence, self._post, meter)
        self._side_thread = side_thread = DatabaseThread("side", self._post, patient=False)
        self._finalizer = finalizer = Finalizer(
            storage, self._post, presence, self._due_again, self._endings_written, meter
        )
        self._budgets = budgets = PodBudgets(storage, self._post, presence, config.limits, self._tokens_came)
        self._requests = Requests(storage, side_thread, budgets)
        self._wake_switch = WakeSwitch(storage, side_thread)
        self._share = PodShare(storage, state, queues, presence, side_thread, self._hurry)
        self.zygotes = zygotes = Zygotes(zygote, config, self._selector, self._heard, self._settled)
        replies = Replies(queues, state, zygotes, finalizer, self._requests, meter)
        self.workers = Workers(queues, state, zygotes, replies, self._selector, finalizer.end, finalizer.chains.apart)
        self.programs = programs = Programs(
            self._selector, finalizer.end, queues.free_places, log, hidden, self._deaths, meter.ran
        )
        programs.configure(config, zygote)
        self._services = PodServices((storage, heart, cluster), state, presence, zygotes, meter, self.workers)
        self._claimer = Claimer(
            storage,
            self._post,
            state=state,
            presence=presence,
            zygotes=zygotes,
            queues=queues,
            programs=programs,
            finalizer=finalizer,
            budgets=budgets,
            meter=meter,
        )
        self._offers = Offers(storage, presence, self._claimer)
        self.fencing = Fencing(zygote.fence, state, self.workers, programs)
        self._books = Books(storage, presence, queues, programs, self._claimer, self._offers, finalizer)
        self._make_queues()

    @property
    def config(self) -> Config:
        """The settings in force; a reload replaces them."""
        return self.state.config

    # -- its life ----------------------------------------------------------------------------------------------

    def run(self) -> ExitCode:
        """Start, serve until told to stop, and leave nothing running."""
        began = time.monotonic()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ, self._on_bell)
        for number in early.SIGNALS:
            signal.signal(number, lambda n, _: self._post(SignalCame(n)))
        for noted in early.take():  # while it started
            self._post(SignalCame(noted))
        self._share.apply(self.presence.start(list(self.queues)))
        for thread in (self._claimer, self._side_thread, self._finalizer):
            thread.start()
        gc.collect()  # while the handlers' modules are being imported: 30 ms
        gc.freeze()  # what is there now stays: collections need not look at it
        # Jobs in hand are no cycles. At Python's own 700 a fifth of a busy master's time went into looking for some.
        gc.set_threshold(50_000, 20, 20)
        self._become_ready(began)
        self._until(lambda: self.state.stopping)
        return self._drain() or self._exit_code

    def _become_ready(self, began: float) -> None:
        """Serve until every worker is ready, and say so. Returns early if the pod is told to stop; and if a queue's
        workers cannot start the pod stops, which it does only at its start. The services for the cluster begin before
        all are ready: a queue whose workers start slowly must not keep cron waiting."""
        self._until(lambda: self._settled_at_start or time.monotonic() - began > SLOW_START)
        self._services.start()
        if not self._settled_at_start:
            log(f"not ready after {SLOW_START:.0f} s: {self.workers.missing()}", level=logging.WARNING)
            self._systemd.status(f"starting: {self.workers.missing()}")
        self._until(lambda: self._settled_at_start)
        if not self.state.stopping and (why := self._unable()):
            self._exit_code = ExitCode.START
            log(f"{why}; stopping", level=logging.ERROR)
            # Of other queues there may be jobs that run; else there is nobody to wait for.
            working = any(slot.in_hand for slot in self.workers.slots()) or self.programs.in_hand
            self.state.stop(time.monotonic() + (self.config.shutdown_timeout if working else 0.0))
        elif not self.state.stopping:
            self._ready = True
            log(f"{counted(self.workers.ready, 'worker')} ready in {time.monotonic() - began:.2f} s")
            self._tell_ready()
            log(f"ctrl-c drains ({self.config.shutdown_timeout:.0f} s); twice stops now")

    @property
    def _settled_at_start(self) -> bool:
        return self.state.stopping or self.workers.all_ready or self._unable() is not None

    def _unable(self) -> str | None:
        """Why it is no use to go on with the start, or None. While a reload is under way it is None: that may mend
        it."""
        return None if self.zygotes.unsettled else self.workers.unable()

    def _tell_ready(self) -> None:
        """Tell systemd that the pod serves, also at the end of a reload; but not before all workers have been ready
        once."""
        if self._ready:
            self._systemd.ready(self._summary())

    def _until(self, over: Callable[[], bool]) -> None:
        """The loop: serve until `over` says so. Each turn waits for something to happen, takes it in, gives jobs to
        workers, claims, and sends endings off."""
        while not over():
            for key, _ in self._selector.select(self._patience()):
                key.data()
            while self._news:
                self._take_in(self._news.popleft())
            self.fencing.look()
            now = time.monotonic()
            if now >= self.workers.outputs.due:
                self.workers.outputs.tick(now)
            self._systemd.alive(now)
            if now >= self._tick_at or now >= self._budgets.due or self.workers.urgent:
                self._tick(now)
            serving = self._serving
            self._run_programs(now, serving)
            for queue in self.queues.staffed:
                if serving:
                    given = queue.dispatch(now)
                    self._finalizer.release(queue.take_returned())
                    if given or queue.waiting:
                        self.state.note_held(True)
                        self._tick_at = min(self._tick_at, now + (TICK_AHEAD if queue.watched else TICK))
                    if not self._finalizer.behind:
                        self._claimer.claim(queue, now)
                for slot in queue.all_slots():
                    self.workers.watch_writes(slot)
                if serving:
                    self._offers.look(queue, self.config.heartbeat, now)
            self.zygotes.flush()
            self._finalizer.flush(self.config.max_crashes)

    def _run_programs(self, now: float, serving: bool) -> None:
        """Give jobs to programs. Called before workers are given jobs, so that a job for a program that has waited for
        a place takes the next one."""
        self.programs.tick(now, serving)
        if self.programs.kinds and self.programs.in_hand:
            self.state.note_held(True)

    def _heard(self, zygote: ZygoteProcess, message: dict[str, Any]) -> None:
        self.fencing.look()
        if not self.programs.heard(zygote, message):
            self.workers.heard(zygote, message)

    @property
    def _serving(self) -> bool:
        return not self.state.stopping and self.fencing.open

    def _patience(self) -> float:
        now = time.monotonic()
        at = [self._tick_at, self._systemd.due, self.programs.due(), self._budgets.due, self._finalizer.due]
        at += [self.fencing.due(now), self.workers.outputs.due]
        if self._serving and not self._finalizer.behind:  # else the news that they are written ends the wait
            at += [look for queue in self.queues.staffed if (look := queue.next_look()) is not None]
        return max(min(at) - now, 0.0)

    def _tick(self, now: float) -> None:
        """Do what is due by the clock: bury dead workers, fill slots, enforce timeouts, retry lost questions. Sets when
        to look again."""
        self.presence.look_out(now)
        self.queues.look(self.programs.places.taken)
        self._share.tick(now, self.programs.places.running)
        self.workers.tick(now)
        self.zygotes.tick(now)
        self._requests.tick(now)
        self._wake_switch.tick(self.queues.values(), self.presence.who.pod.id, now)
        at = [now + TICK_IDLE, self.workers.next_at(now)]
        for queue in self.queues.staffed:
            shared = queue.name in self.presence.shared  # other pods have workers for it too
            queue.recall(now, shared)
            self._finalizer.release(queue.left_over(now, shared))
            if queue.waiting and not any(slot.channel for slot in queue.slots):
                self._finalizer.release(queue.take_out())  # nobody here can take them for a while
            if queue.suspects.waiting and not any(slot.channel for slot in queue.suspects.slots):
                self._finalizer.release(queue.suspects.take_out())  # there is no worker for them either
            if queue.closing and not any(queue.all_slots()) and not queue.claiming:
                del self.queues[queue.name]
            at += [
                self.workers.enforce(slot, now, self.config.cancel_grace) for slot in queue.all_slots() if slot.in_hand
            ]
            if queue.watched:
                at.append(now + TICK_AHEAD)
        if self.zygotes.unsettled:
            at.append(now + TICK)
        self._share.note(self.programs.in_hand)
        self._offers.reconsider(self.queues.staffed, now)
        self._books.tick(now)
        self._tick_at = min(at)

    # -- news --------------------------------------------------------------------------------------------------

    def _give_back(self, queue: LocalQueue) -> None:
        self._finalizer.release([*queue.take_out(), *queue.suspects.take_out()])

    def _due_again(self, name: str, seconds: float) -> None:
        if name in self.queues:
            self.queues[name].due_in(seconds, time.monotonic())

    def _tokens_came(self, scope: str) -> None:
        self._claimer.tokens_came(scope)

    def _endings_written(self) -> None:
        self._claimer.places_came()

    def _take_in(self, news: News) -> None:
        match news:
            case ErrandDone():
                news.thread.take_in(news)
            case JobsPushed():
                self._offers.came(news.claims)
            case Woken():
                self._woken(news.words)
            case Beat():
                self._beaten(news)
            case LookDue():
                self._claimer.look(self.state.idle)
            case SharesFound():
                self._shares_came(news.workers)
            case CancelsFound():
                self._cancel(news.jobs)
            case SignalCame():
                self._signalled(news.number)
            case Outage():
                self.presence.outage(news.error, writing=news.writing)
            case Trouble():
                if self._sometimes(news.error, time.monotonic()):
                    log(news.error, level=logging.ERROR)
            case ChannelChanged():
                self._offers.listening(news.channel)
            case ListenerReady(fd, read):
                self._selector.register(fd, selectors.EVENT_READ, lambda: read() or self._selector.unregister(fd))

    def _woken(self, words: set[str]) -> None:
        if "leader:" in words:
            self._services.nobody_leads()
        if "schedule:" in words or "*" in words:
            self._services.schedules_changed()
        for word in words:
            if word.startswith("drain:"):
                self._budgets.drained(word.removeprefix("drain:"))
        self.presence.woken(words, time.monotonic())
        woken = [queue for name, queue in self.queues.items() if "*" in words or name in words]
        for queue in woken:
            queue.wake()
            if f"back:{queue.name}" in words:
                queue.jobs_came_back()
        self._share.woken(woken)

    def _shares_came(self, workers: dict[str, int]) -> None:
        if not self.state.stopping:
            self._share.told(workers)

    def _beaten(self, beat: Beat) -> None:
        if not self.presence.beaten(beat):
            self._lost(beat)
        elif not self.state.stopping and self._ready:
            self._systemd.status(self._summary())
        self._cancel(beat.cancels)
        self._shares_came(beat.shares)

    def _cancel(self, jobs: Sequence[tuple[UUID, int]]) -> None:
        """Stop those of these jobs that are here. What becomes of each is in its row: any outcome but done is
        `cancelled`."""
        if jobs:
            wanted, now = set(jobs), time.monotonic()
            self.programs.cancel(wanted)
            for queue in self.queues.values():
                self._finalizer.release(queue.cancel(wanted, now))
            self._tick_at = now

    def _lost(self, beat: Beat) -> None:
        """The pod was reaped, and the jobs in hand are another pod's now: kill what runs them, and go on as a new
        pod."""
        log("this pod had been taken for dead; starting over as a new one", level=logging.ERROR)
        self._finalizer.forget()
        self._offers.forget()
        self.programs.lost()
        for queue in self.queues.values():
            queue.waiting.clear()
            queue.suspects.waiting.clear()
        self.workers.forget("the pod had been taken for dead")
        self._books.start_over()
        self.fencing.start_over(beat.began)

    # -- settings ----------------------------------------------------------------------------------------------

    def _make_queues(self, *, serving: bool = False) -> None:
        for queue in self.queues.arrange(self.config, self.programs.places, self._deaths, serving=serving):
            self._give_back(queue)
            self.programs.give_back(queue.name)

    def _reload(self) -> None:
        """Read the settings again, and have a new zygote import the code again; the rest follows when it is ready."""
        self._systemd.reloading()
        try:
            config = self._read_config()
            config.declared_queues()
            if (config.database, config.schema) != (self.config.database, self.config.schema):
                raise ConfigError("the database is another one, which takes a restart")
        except ForgeError as e:
            log(f"not reloaded: {e}; going on as before", level=logging.ERROR)
            self._tell_ready()
            return
        log("reloading")
        self.zygotes.start(config)

    def _settled(self, config: Config | None) -> None:
        """Told by the zygotes: a new one has taken over with these settings, or (None) it could not."""
        self._tick_at = 0.0
        if config is not None:
            old = self.config
            self.state.configure(config)
            change_logs(config)
            self.presence.change(config, self._side_thread)
            self._budgets.change(config.limits)
            self._make_queues(serving=True)
            self.programs.configure(config, self.zygotes.current)
            self._share.reload(old, config)
            self.workers.roll()
        self._tell_ready()

    def _summary(self) -> str:
        """`4 workers, 2 jobs running`, for systemctl status."""
        return self.workers.summary(self.programs.places.running.total())

    # -- signals and the end -----------------------------------------------------------------------------------

    def _signalled(self, number: int) -> None:
        match number:
            case signal.SIGTERM | signal.SIGINT | signal.SIGQUIT:
                self._stop(number)
            case _ if self.state.stopping:
                pass
            case signal.SIGHUP:
                self._reload()
            case signal.SIGTTIN | signal.SIGTTOU:
                self.workers.scale(1 if number == signal.SIGTTIN else -1)
            case signal.SIGUSR1:
                logs.reopen()
                log("log reopened")
            case signal.SIGUSR2:
                self.workers.tell_stacks()
        self._tick_at = 0.0

    def _stop(self, number: int) -> None:
        again, now = self.state.stopping, time.monotonic()
        if number == signal.SIGQUIT or (again and number == signal.SIGINT):
            self.state.stop(now)
        elif not again:
            self.state.stop(now + self.config.shutdown_timeout)
            in_hand = sum(len(slot.in_hand) for slot in self.workers.slots()) + self.programs.in_hand
            log(f"stopping: {in_hand} jobs in hand")

    def _drain(self) -> ExitCode:
        """Give back what has not started, wait for what has, give back what will not end."""
        assert self.state.stop_by is not None
        self._systemd.stopping()
        self.zygotes.give_up()
        self._services.stop()
        self.workers.stop(self.state.stop_by, notice(self.config.shutdown_timeout))
        self._hurry()
        self.programs.drain()
        self._share.leave()
        self._offers.close()
        for queue in self.queues.values():
            self._give_back(queue)
        self._until(self._drained)
        self.workers.kill_all()
        self.programs.close()
        self.workers.outputs.close_all()
        for slot in self.workers.slots():
            self._finalizer.release(slot.close(), "the master was stopped")
        by = max(self.state.stop_by, time.monotonic() + WRITE_WITHIN)
        self._until(lambda: not self._finalizer.unwritten or time.monotonic() >= by)
        self._services.join(WRITE_WITHIN)
        self.presence.stop()
        self.zygotes.close()
        return self._leave()

    def _drained(self) -> bool:
        assert self.state.stop_by is not None
        idle = not any(slot.channel for slot in self.workers.slots()) and not self._claimer.busy and self.programs.gone
        return idle or time.monotonic() >= self.state.stop_by

    def _leave(self) -> ExitCode:
        """Take the pod out of the database. Returns what the process exits with."""
        unwritten = self._finalizer.unwritten
        if unwritten:
            lost = f"{counted(unwritten, 'result')} could not be written: their jobs will run again"
            log(f"stopped; {lost}", level=logging.ERROR)
            return ExitCode.DATABASE
        try:
            self._wake_switch.restore()
            self._budgets.leave()
            back = self.storage.deregister(self.presence.who)
        except DatabaseError as e:
            log(f"stopped, without leaving properly: {e}", level=logging.ERROR)
            return ExitCode.DATABASE
        log(f"stopped; {back} jobs given back" if back else "stopped")
        return ExitCode.OK

    # -- the bell ----------------------------------------------------------------------------------------------

    def _post(self, news: News) -> None:
        """Tell the loop. From any thread or signal handler."""
        self._news.append(news)
        with contextlib.suppress(BlockingIOError):  # it is ringing already
            self._ringer.send(b"!")

    def _hurry(self) -> None:
        self._tick_at = 0.0

    def _on_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._bell.recv(4096)
