"""The master's loop: one thread, which never waits for the database, a worker or the disk.

It reads aloud: news from threads and sockets is taken in; jobs that came are given to workers, endings that came are
sent off to be written, new jobs are asked for, overdue workers are killed, dead ones are replaced. Signal handlers only
queue.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import random
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from forge import fastpath, logs
from forge.job import Claim, Ending, Failed, Released
from forge.master.couriers import Beater, Courier, Ears
from forge.master.identity import is_dead, own_name
from forge.master.lanes import Lane
from forge.master.notify import Notifier
from forge.master.nursery import Nursery
from forge.master.slots import Slot
from forge.storage import Storage
from forge.storage.contract import Incarnation

__all__ = ["Master", "log"]

BEAT = 1.0
REAP, STALE = 15.0, 60.0
POLL = 0.5
TICK = 0.2  # seconds between looks at the clock while jobs run
EXIT_KNOWN_WITHIN = 0.25
YOUNG = 1.0  # a worker that dies younger than this makes its slot wait before the next


_LOGGER = logging.getLogger("forge.master")


def log(text: str, who: str = "master", level: int = logging.INFO) -> None:
    """One line, written as `forge.logs` was set up to."""
    _LOGGER.log(level, "%s", text, extra={"who": who})


class Master:
    """One pod. `run` is its whole life."""

    def __init__(
        self,
        storage: Storage,
        heart: Storage,
        queues: Mapping[str, int],
        nursery: Nursery,
        *,
        shutdown_timeout: float = 25.0,
        max_crashes: int = 3,
        notifier: Notifier | None = None,
    ) -> None:
        """`heart` is a storage for the heartbeat alone, which must not wait behind other work. The nursery is ready."""
        self.storage, self.heart = storage, heart
        self.lanes = {name: Lane(name, workers, POLL) for name, workers in queues.items()}
        self._nursery, self._notifier = nursery, notifier or Notifier({})
        self._shutdown_timeout, self._max_crashes = shutdown_timeout, max_crashes
        self._selector = selectors.DefaultSelector()
        self._news: collections.deque[tuple[Any, ...]] = collections.deque()
        self._bell, self._ringer = socket.socketpair()
        self._endings: list[Ending] = []
        self._stop_by: float | None = None  # monotonic; None: not stopping
        self._exits: dict[int, int] = {}  # how workers ended, by pid; told by the zygote
        self._gone: dict[Slot, float] = {}  # workers whose channel has closed, since when
        self._respawn_at: dict[Slot, float] = {}
        self._deaths: dict[Slot, int] = {}
        self._outage_told = 0.0
        self._reap_at = time.monotonic() + STALE

    # -- its life ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Start, serve until told to stop, leave nothing behind."""
        began = time.monotonic()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ, self._on_bell)
        self._catch_signals()
        self._selector.register(self._nursery.control, selectors.EVENT_READ, self._on_nursery)
        self._bury_predecessors()
        self._register()
        self._start_threads()
        for slot in self._slots():
            self._spawn(slot)
        self._until(lambda: all(slot.ready for slot in self._slots()) or self._stop_by is not None)
        total = sum(1 for _ in self._slots())
        log(f"{total} worker{'s' if total != 1 else ''} ready in {time.monotonic() - began:.2f} s")
        self._notifier.ready(self._summary())
        log(f"ctrl-c drains ({self._shutdown_timeout:.0f} s); twice stops now")
        self._until(lambda: self._stop_by is not None)
        self._drain()

    def _until(self, over: Callable[[], bool]) -> None:
        """The loop."""
        while not over():
            for key, _ in self._selector.select(self._patience()):
                key.data()
            self._take_news()
            now = time.monotonic()
            self._notifier.alive(now)
            self._bury(now)
            self._respawn(now)
            self._kill_overdue(now)
            for lane in self.lanes.values():
                lane.dispatch()
                self._watch_writes(lane)
                if self._stop_by is None:
                    self._claim(lane, now)
            self._finalize()

    def _patience(self) -> float:
        now = time.monotonic()
        nearest = min((lane.next_look() for lane in self.lanes.values() if not lane.claiming), default=now + 1.0)
        return min(max(min(nearest, self._notifier.due) - now, 0.005), TICK)

    # -- claiming, dispatching, finalizing ---------------------------------------------------------------------

    def _claim(self, lane: Lane, now: float) -> None:
        n = lane.wanted(now)
        if n < 1:
            return
        lane.claiming = True
        who, queue, water = self.who, lane.queue, lane.low_water
        self._claimer.send("claimed", lambda: self.storage.claim(who, queue, n, water), (lane, n))

    def _finalize(self) -> None:
        """Write what has ended: at once if the courier is free, else with whatever ends until it is."""
        if not self._endings or self._finalizer.busy:
            return
        endings, self._endings = self._endings, []
        crashes = self._max_crashes
        due = {e.claim.queue for e in endings if isinstance(e.outcome, Released) and not e.delay}
        self._finalizer.send("finalized", lambda: self.storage.finalize(endings, max_crashes=crashes), due)

    def _take_news(self) -> None:
        while self._news:
            kind, *parts = self._news.popleft()
            getattr(self, f"_news_{kind}")(*parts)

    def _news_claimed(self, tag: tuple[Lane, int], claims: list[Claim] | None, error: str | None) -> None:
        self._claimer.busy -= 1
        lane, asked = tag
        lane.claimed(claims or [], asked)
        if error is not None:
            self._news_outage(error)
        if self._stop_by is not None:
            self._give_back(lane)

    def _news_finalized(self, due: set[str], stale: list[Ending] | None, error: str | None) -> None:
        self._finalizer.busy -= 1
        if error is not None:
            log(f"results could not be written: {error}", level=logging.ERROR)
        self._news_woken(due)  # what was given back is to be had again
        for ending in stale or ():
            log(
                f"{ending.claim.kind} {ending.claim.id} had been taken away from here; its ending was dropped",
                level=logging.WARNING,
            )

    def _news_woken(self, queues: set[str]) -> None:
        for name, lane in self.lanes.items():
            if name in queues or "*" in queues:
                lane.wake()

    def _news_outage(self, error: str) -> None:
        now = time.monotonic()
        self._reap_at = now + STALE  # until then a silent pod may only have been cut off like this one
        if now - self._outage_told >= 10:
            self._outage_told = now
            log(f"{error}; going on when it is back", level=logging.ERROR)

    def _news_beat(self, alive: bool, cancels: list[tuple[Any, int]]) -> None:
        if not alive:
            self._lost()
            return
        if self._stop_by is None:
            self._notifier.status(self._summary())
        wanted = set(cancels)
        for slot in self._slots():
            for claim in list(slot.in_hand.values()):
                if (claim.id, claim.token) in wanted:
                    self._cancel(slot, claim)

    # -- workers -----------------------------------------------------------------------------------------------

    def _slots(self) -> Iterator[Slot]:
        for lane in self.lanes.values():
            yield from lane.slots

    def _summary(self) -> str:
        """`4 workers, 2 jobs running`, for systemctl status."""
        slots = list(self._slots())
        ready, running = sum(slot.ready for slot in slots), sum(slot.running() is not None for slot in slots)
        return f"{ready} worker{'s' if ready != 1 else ''}, {running} job{'s' if running != 1 else ''} running"

    def _spawn(self, slot: Slot) -> None:
        channel = self._nursery.fork(slot.label)
        slot.open(channel)
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._on_worker(slot))

    def _watch_writes(self, lane: Lane) -> None:
        """Be told when a worker that was too slow to read takes more."""
        for slot in lane.slots:
            if slot.channel is None or slot in self._gone:
                continue
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if slot.wants_to_write else 0)
            key = self._selector.get_key(slot.channel)
            if key.events != events:
                self._selector.modify(slot.channel, events, key.data)

    def _respawn(self, now: float) -> None:
        for slot, at in list(self._respawn_at.items()):
            if now >= at:
                del self._respawn_at[slot]
                if self._stop_by is None:
                    self._spawn(slot)

    def _on_worker(self, slot: Slot) -> None:
        lane = self.lanes[slot.queue]
        try:
            for ending, seconds in slot.receive():
                lane.note(seconds)
                self._endings.append(ending)
                self._tell(ending)
        except EOFError:
            assert slot.channel is not None
            self._selector.unregister(slot.channel)
            self._gone[slot] = time.monotonic()
        except (ValueError, KeyError) as e:
            slot.killed_for = f"the worker broke the protocol ({e})"
            self._kill(slot)

    def _bury(self, now: float) -> None:
        """Workers that are gone, once it is known how they ended: the zygote says so within a moment."""
        for slot, since in list(self._gone.items()):
            if slot.pid in self._exits or now - since > EXIT_KNOWN_WITHIN:
                del self._gone[slot]
                self._worker_gone(slot, self._exits.pop(slot.pid, None))

    def _worker_gone(self, slot: Slot, status: int | None) -> None:
        """Its running job is released, and counted against it; the others it had are as good as new."""
        age = time.monotonic() - slot.started_at
        leaving = slot.draining
        left = slot.close()
        if leaving and not left:
            return
        why = slot.killed_for or f"worker {slot.label} ({slot.pid}) {_how(status)}"
        for i, claim in enumerate(left):
            self._endings.append(self._crashed(claim, slot, why) if i == 0 else Ending(claim, Released()))
        young = self._deaths.get(slot, 0) + 1 if age < YOUNG else 0
        self._deaths[slot] = young
        pause = min(0.1 * 2**young, 30.0) if young else 0.0
        self._respawn_at[slot] = time.monotonic() + pause
        released = f"{len(left)} job{'s' if len(left) != 1 else ''} released"
        log(f"{why}; {released}; worker starts {f'in {pause:.1f} s' if pause else 'again'}", level=logging.WARNING)

    def _crashed(self, claim: Claim, slot: Slot, why: str) -> Ending:
        if slot.killed_for is not None and slot.killed_for.startswith("timeout"):
            curve = self._nursery.kinds.get(claim.kind, {"curve": "decorrelated", "base": 1.0, "cap": 3600.0})
            delay = fastpath.delay(curve["curve"], claim.attempt, curve["base"], curve["cap"], random.random())
            return Ending(claim, Failed(slot.killed_for), delay)
        return Ending(claim, Released(why, crashed=True))

    def _kill_overdue(self, now: float) -> None:
        for slot in self._slots():
            claim = slot.running()
            if claim is not None and slot.killed_for is None and now - slot.head_since > claim.timeout:
                slot.killed_for = f"timeout after {claim.timeout} s"
                self._kill(slot)

    def _cancel(self, slot: Slot, claim: Claim) -> None:
        """The job's row says what becomes of it: any outcome but done is `cancelled`."""
        if slot.running() is claim and slot.killed_for is None:
            slot.killed_for = "cancelled by user"
            self._kill(slot)

    def _kill(self, slot: Slot) -> None:
        """With everything its handler started."""
        if slot.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(slot.pid, signal.SIGKILL)

    def _on_nursery(self) -> None:
        try:
            for message in self._nursery.messages():
                if "exited" in message:
                    self._exits[message["exited"]] = message["status"]
        except EOFError:
            self._selector.unregister(self._nursery.control)
            if self._stop_by is None:
                log("the zygote is gone; stopping", level=logging.ERROR)
                self._stop_by = time.monotonic()

    def _tell(self, ending: Ending) -> None:
        claim, outcome = ending.claim, ending.outcome
        if isinstance(outcome, Failed):
            again = f"again in {ending.delay:.1f} s" if claim.attempt < claim.max_attempts else "dead"
            log(f"{claim.kind} {claim.id} failed, {again}: {outcome.message}", claim.queue, logging.WARNING)

    # -- the pod -----------------------------------------------------------------------------------------------

    def _register(self) -> None:
        self.who = self.storage.register(own_name(), list(self.lanes), socket.gethostname(), os.getpid())

    def _bury_predecessors(self) -> None:
        """Masters of this host that died without a word: their jobs need not wait for the reaper."""
        for pod in self.storage.pods():
            if is_dead(pod):
                back = self.storage.deregister(Incarnation(pod))
                log(f"a predecessor (pid {pod.pid}) had died; {back} of its jobs released", level=logging.WARNING)

    def _start_threads(self) -> None:
        self._claimer = Courier("claim", self._post, patient=False)
        self._finalizer = Courier("finalize", self._post, patient=True)
        self._beater = Beater(BEAT, self._heartbeat, self._post)
        self._ears = Ears(self.storage.listen(), self._post)
        for thread in (self._claimer, self._finalizer, self._beater, self._ears):
            thread.start()

    def _heartbeat(self) -> tuple[bool, list[tuple[Any, int]]]:
        """On the beating thread and its own connection."""
        alive = self.heart.beat(self.who)
        if time.monotonic() >= self._reap_at:
            self._reap_at = time.monotonic() + REAP
            self.heart.reap(STALE)
        return alive, self.heart.cancel_requests(self.who) if alive else []

    def _lost(self) -> None:
        """Reaped: the jobs in hand are somebody else's now. Kill what runs them and start over as a new pod."""
        log("this pod had been taken for dead; starting over as a new one", level=logging.ERROR)
        for lane in self.lanes.values():
            lane.waiting.clear()
        for slot in self._slots():
            slot.killed_for = "the pod had been taken for dead"
            self._kill(slot)
        self._register()

    # -- stopping ----------------------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1):
            signal.signal(number, lambda n, _: self._post("signal", n))

    def _news_signal(self, number: int) -> None:
        if number == signal.SIGUSR1:
            logs.reopen()
            log("log reopened")
            return
        again = self._stop_by is not None
        now = time.monotonic()
        if number == signal.SIGQUIT or (again and number == signal.SIGINT):
            self._stop_by = now
        elif not again:
            self._stop_by = now + self._shutdown_timeout
            log(f"stopping: {sum(len(s.in_hand) for s in self._slots())} jobs in hand")

    def _drain(self) -> None:
        """Give back what has not started, wait for what has, give back what will not end."""
        self._notifier.stopping()
        for lane in self.lanes.values():
            self._give_back(lane)
            for slot in lane.slots:
                slot.drain()
        self._until(self._drained)
        for slot in self._slots():
            for claim in slot.close():
                self._endings.append(Ending(claim, Released("the master was stopped")))
            self._kill(slot)
        self._finalize()
        self._until(lambda: not self._finalizer.busy and not self._endings)
        self._beater.stopping.set()  # heartbeats stop last
        self._ears.stopping.set()
        self._beater.join()
        back = self.storage.deregister(self.who)
        log(f"stopped; {back} jobs given back" if back else "stopped")

    def _drained(self) -> bool:
        assert self._stop_by is not None
        idle = not any(slot.channel for slot in self._slots()) and not self._claimer.busy
        return idle or time.monotonic() >= self._stop_by

    def _give_back(self, lane: Lane) -> None:
        self._endings += [Ending(claim, Released()) for claim in lane.waiting]
        lane.waiting.clear()

    # -- news --------------------------------------------------------------------------------------------------

    def _post(self, *news: Any) -> None:
        """From any thread or signal handler."""
        self._news.append(news)
        with contextlib.suppress(BlockingIOError):  # it is ringing already
            self._ringer.send(b"!")

    def _on_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._bell.recv(4096)


def _how(status: int | None) -> str:
    """A worker's end in words."""
    if status is None:
        return "is gone"
    if status >= 0:
        return f"exited with {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
