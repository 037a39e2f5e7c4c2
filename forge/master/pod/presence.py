"""The pod in the database: who it is, that it lives, what others want of it.

A pod whose beats stop is reaped, and its jobs are given to others. So whoever runs them is told of each beat that the
database has taken, and when it began: see `forge.fence`.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from forge.cluster.reaper import Streak
from forge.config import Config, QueueConfig
from forge.fence import Fence, clock
from forge.master.database_threads import DatabaseThread, HeartbeatThread, ListenerThread
from forge.master.news import Beat, CancelsFound, Post, SharesFound
from forge.master.pod.identity import is_dead, own_label, own_name
from forge.master.pod.log import Sometimes, log
from forge.master.pod.meter import Meter
from forge.master.pod_state import PodState
from forge.storage import Storage
from forge.storage.contract import Incarnation

__all__ = ["Presence", "prepare"]

T = TypeVar("T")

TELL_AFTER = 1.0  # seconds that an answer to the heart may take before the log tells of it
ASK_EVERY = 0.25  # seconds between questions for cancellations that a wake-up for no queue in particular leads to


def prepare(storage: Storage, queues: Mapping[str, QueueConfig], changed: Mapping[str, int] | None = None) -> None:
    """A queue new to the database starts with the settings declared; what operators have set since stays. `changed`
    has the `max_workers` that they have set by changing the settings."""
    known = storage.queues()
    for name, queue in queues.items():
        if name not in known:
            storage.set_queue(name, **queue.row())
        elif changed and name in changed:
            storage.set_queue(name, max_workers=changed[name])
        storage.set_wake(name, True)


class Presence:
    """One pod in the database. Its threads talk to the database; the loop reads what they found."""

    def __init__(
        self, storage: Storage, heart: Storage, state: PodState, fence: Fence, post: Post, meter: Meter | None = None
    ) -> None:
        """`heart` is a storage for the heartbeat alone, which must not wait behind other work. `fence` is told of each
        beat that the database has taken."""
        self._storage, self._heart, self._state, self._fence, self._post = storage, heart, state, fence, post
        self._meter = meter or Meter()
        self.who: Incarnation
        self.lined: frozenset[str] = frozenset()  # queues with jobs in lines; replaced as a whole
        self.shared: frozenset[str] = frozenset()  # queues that other pods have workers for too; replaced as a whole
        self._queues: list[str] = []
        self._beating_for: Incarnation
        self._ask_at = 0.0  # monotonic: of the last question that a wake-up led to, or of the one to come
        self.streak = Streak()  # of beats, for the reaper
        self._asked_at: float | None = None  # monotonic: since when the heart waits for an answer
        self._down_since: float | None = None
        self._told = False
        self._refuses = False  # results: it may still answer who only reads
        self._sometimes = Sometimes(10.0)

    def start(self, queues: Sequence[str]) -> dict[str, int]:
        """Register, and start to beat and listen. Answers how many workers the pod may have, by queue."""
        self._queues = list(queues)
        self._bury_predecessors()
        began = clock()
        self.who = self._beating_for = self._register(self._storage)
        self._fence.confirm(began, self._state.config.stale_after)
        self._meter.ask_clock(self._storage)
        self._state.note_running(dict.fromkeys(queues, 0))
        shares = self._storage.shares.look(self.who, self._state.running)
        self.lined, self.shared = self._storage.shares.lined, self._storage.shares.shared
        self._heartbeat = HeartbeatThread(
            self._post,
            every=self._state.config.heartbeat,
            beat=self._noted(self._beat),
            look_every=self._state.config.poll_interval,
            cancels=self._noted(self._cancels),
            shares=self._noted(lambda: SharesFound(self._shares())),
        )
        self._listener = ListenerThread(self._storage.listen(), self._post)
        self._heartbeat.start()
        self._listener.start()
        return shares

    def change(self, config: Config, side_thread: DatabaseThread) -> None:
        """Use other settings: other intervals, and perhaps other queues."""
        self._heartbeat.change(config.heartbeat, config.poll_interval)
        self._queues = list(config.declared_queues())
        who, queues, capacity = self.who, list(self._queues), config.capacity
        side_thread.send(lambda: self._storage.serve(who, queues, capacity), _nothing)

    def stop(self) -> None:
        """Stop to listen and to beat. Called last, so that the pod is not taken for dead while it writes its
        results."""
        self._listener.stop()
        self._heartbeat.stop()
        self._heartbeat.join(1.0)

    def _register(self, storage: Storage) -> Incarnation:
        host, pid = socket.gethostname(), os.getpid()
        return storage.register(
            own_name(), self._queues, host, pid, self._state.config.capacity, own_label(self._state.config)
        )

    def _bury_predecessors(self) -> None:
        """Take masters of this host out of the database that died without doing so: their jobs need not wait for the
        reaper."""
        for pod in self._storage.pods():
            if is_dead(pod):
                back = self._storage.deregister(Incarnation(pod))
                log(f"a predecessor (pid {pod.pid}) had died; {back} of its jobs released", level=logging.WARNING)

    # -- on the beating thread and its own connection ----------------------------------------------------------

    def _noted(self, errand: Callable[[], T]) -> Callable[[], T]:
        """The errand, wrapped so that it is known since when it is under way."""

        def run() -> T:
            self._asked_at = time.monotonic()
            try:
                return errand()
            finally:
                self._asked_at = None

        return run

    def _beat(self) -> Beat:
        began, asked, who = clock(), time.monotonic(), self._beating_for
        cancels: list[tuple[UUID, int]] = []
        if self._state.holding:
            alive, cancels = self._heart.pulse(who)
            self._beaten(began, asked, alive=alive)
            shares = self._shares() if alive else None
        else:
            shares = self._heart.shares.beat(who, self._state.running)
            self._beaten(began, asked, alive=shares is not None)
            self._note_shares()
        if shares is None:
            self._beating_for = self._register(self._heart)
            shares = self._shares()
        return Beat(began, self._beating_for, cancels, shares)

    def _beaten(self, began: float, asked: float, *, alive: bool) -> None:
        """The database has answered. A pod that is another one by now is confirmed by the loop, when it has ended what
        was the other one's."""
        if alive and self._beating_for is self.who:
            self._fence.confirm(began, self._state.config.stale_after)
        self._meter.took("beats", asked)
        self.streak.beat(self._state.config.stale_after)

    def _shares(self) -> dict[str, int]:
        shares = self._heart.shares.look(self._beating_for, self._state.running)
        self._note_shares()
        return shares

    def _note_shares(self) -> None:
        self.lined |= self._heart.shares.lined
        self.shared = self._heart.shares.shared

    def _cancels(self) -> CancelsFound | None:
        return CancelsFound(self._heart.cancel_requests(self._beating_for)) if self._state.holding else None

    # -- on the loop -------------------------------------------------------------------------------------------

    def beaten(self, beat: Beat) -> bool:
        """Take a beat in. Returns False if the pod had been taken for dead and is another one now."""
        self.is_back()
        same = beat.who is self.who
        self.who = beat.who
        return same

    def woken(self, words: set[str], now: float) -> None:
        """Have the thread that beats ask for cancellations, if one of the words may mean one for this pod."""
        if f"cancel:{self.who.pod.id}" in words:
            self._heartbeat.poke()
        elif "*" in words and self._state.holding and self._ask_at <= now:  # else the question to come will do
            self._ask_at = max(now, self._ask_at + ASK_EVERY)
            self._heartbeat.poke(self._ask_at)

    def ask_for_shares(self) -> None:
        """Have the thread that beats ask how many workers the pod may have: that may have changed."""
        self._heartbeat.poke_shares()

    def outage(self, error: str, *, writing: bool = False) -> None:
        """Log, now and then, that the database could not be used. `writing`: results cannot be written."""
        now = time.monotonic()
        self._refuses = self._refuses or writing
        self.streak.end()  # a silent pod may only have been cut off like this one
        self._tell(error, now, now, "writing" if writing else "outage")

    def look_out(self, now: float) -> None:
        """Log that the database does not answer, long before the question is given up. It may only be slow, so the
        streak of beats goes on."""
        since = self._asked_at
        if since is not None and now - since > TELL_AFTER:
            self._tell(f"the database has not answered for {now - since:.0f} s", since, now)

    def _tell(self, error: str, since: float, now: float, what: str = "outage") -> None:
        self._down_since = self._down_since or since
        if self._sometimes(what, now):
            self._told = True
            log(f"{error}; going on when it is back", level=logging.ERROR)

    def is_back(self, *, written: bool = False) -> None:
        """The database could be used. `written`: results were written, and nothing else shows that it takes them again
        after it refused."""
        if written:
            self._refuses = False
        if self._down_since is not None and not self._refuses:
            away, self._down_since = time.monotonic() - self._down_since, None
            if self._told:
                self._told = False
                log(f"the database is back after {away:.1f} s")


def _nothing(_: None, error: str | None) -> None:
    if error is not None:
        log(f"the pod's queues could not be written: {error}", level=logging.ERROR)
