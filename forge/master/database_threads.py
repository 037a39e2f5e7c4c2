"""Threads that talk to the database so that the master's loop never waits for it.

Each does one kind of errand, one at a time, and posts what came of it to the loop. While the database is away results
are kept and tried again; claims are not made; nothing is lost and nothing spins.
"""

from __future__ import annotations

import math
import queue
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from forge.errors import DatabaseError, ForgeError
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
    Post,
    SharesFound,
    Then,
    Trouble,
    Woken,
)
from forge.storage.contract.listener import Listener

__all__ = ["LONGEST_PAUSE", "DatabaseThread", "HeartbeatThread", "ListenerThread"]

LONGEST_PAUSE = 2.0  # seconds between two tries of what must be done
SHARES_WITHIN = 1.5  # seconds in which shares are asked for, however rarely the pod beats
SHARES_APART = 0.5  # seconds between two questions for shares, however often it is poked
PROBE_EVERY = 5.0  # seconds between looks whether the connection that listens still has another end


class DatabaseThread(threading.Thread):
    """Runs errands one after the other. `busy` is how many of them are waiting or under way."""

    def __init__(self, name: str, post: Post, *, patient: bool) -> None:
        """`patient`: an errand that fails is tried again until it succeeds, and each failure is posted as an outage of
        writing. Else a failed errand answers with its error."""
        super().__init__(name=name, daemon=True)
        self._post = post
        self._patient = patient
        self._errands: queue.SimpleQueue[tuple[Callable[[], Any], Then]] = queue.SimpleQueue()
        self.busy = 0

    def send(self, errand: Callable[[], Any], then: Then) -> None:
        """Have the errand run, and the loop call `then` with what came of it. Called by the loop."""
        self.busy += 1
        self._errands.put((errand, then))

    def run(self) -> None:
        while True:
            errand, then = self._errands.get()
            self._post(ErrandDone(self, then, *self._try(errand)))

    def take_in(self, done: ErrandDone) -> None:
        """Pass the answer of an errand on to whoever sent it. Called by the loop."""
        self.busy -= 1
        done.then(done.answer, done.error)

    def _try(self, errand: Callable[[], Any]) -> tuple[Any, str | None]:
        pause = 0.25
        while True:
            try:
                return errand(), None
            except Exception as e:  # noqa: BLE001 (whatever one errand meets, the next must be run)
                said = str(e) if isinstance(e, ForgeError) else f"{type(e).__name__}: {e}"
                if not self._patient:
                    return None, said
                self._post(Outage(said, writing=True))
                time.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, LONGEST_PAUSE)


class HeartbeatThread(threading.Thread):
    """Errands on a connection of their own, so that they never wait behind other work: saying that the pod lives
    (and being told its shares), asking which jobs are to be cancelled (when poked), and asking for shares alone (when
    poked, or when beats are rare). Each costs the same however many jobs there are or have been. What does not, the
    look whether a job is due, is not made here: the loop is told when it is time for it."""

    def __init__(
        self,
        post: Post,
        *,
        every: float,
        beat: Callable[[], Beat],
        look_every: float,
        cancels: Callable[[], CancelsFound | None],
        shares: Callable[[], SharesFound],
    ) -> None:
        """Posts what each errand answers, unless that is None; and that a look is due, every `look_every` seconds."""
        super().__init__(name="beat", daemon=True)
        self._post = post
        self._every, self._beat = every, beat
        self._look_every = look_every
        self._cancels = cancels
        self._shares = shares
        self._poked = threading.Event()
        self._ask_at = math.inf  # monotonic: when to ask for cancellations
        self._share_at = math.inf  # monotonic: when to ask for shares
        self._shared_at = 0.0  # monotonic: when they were asked for last
        self._changed = False
        self._stopping = False

    def change(self, every: float, look_every: float) -> None:
        """Use other intervals, from now on: a beat and a look follow at once. From any thread."""
        self._every, self._look_every = every, look_every
        self._changed = True
        self._poked.set()

    def poke(self, at: float = 0.0) -> None:
        """Ask which jobs are to be cancelled, at that time (monotonic) or now. From any thread."""
        self._ask_at = min(self._ask_at, at)
        self._poked.set()

    def poke_shares(self) -> None:
        """Ask how many workers the pod may have, within half a second. From any thread."""
        self._share_at = min(self._share_at, self._shared_at + SHARES_APART)
        self._poked.set()

    def stop(self) -> None:
        """Ask the thread to end. It ends within a second."""
        self._stopping = True
        self._poked.set()

    def run(self) -> None:
        beat_at = look_at = time.monotonic()
        while True:
            at = min(beat_at, look_at, self._ask_at, self._share_at)
            self._poked.wait(max(0.0, at - time.monotonic()))
            self._poked.clear()
            if self._stopping:
                return
            now = time.monotonic()
            if self._changed:
                self._changed = False
                beat_at = look_at = now
            if now >= beat_at:
                beat_at = now + self._every
                self._put_off_shares(now)  # it brings them
                self._do(self._beat)
            if now >= self._share_at:
                self._put_off_shares(now)
                self._do(self._shares)
            if now >= self._ask_at:
                self._ask_at = math.inf  # first: who pokes meanwhile is answered by this question or by the next
                self._do(self._cancels)
            if now >= look_at:
                look_at = now + self._look_every * random.uniform(0.8, 1.2)  # pods must not look in step
                self._post(LookDue())

    def _put_off_shares(self, now: float) -> None:
        self._shared_at, self._share_at = now, now + SHARES_WITHIN

    def _do(self, errand: Callable[[], News | None]) -> None:
        try:
            answer = errand()
        except DatabaseError as e:
            self._post(Outage(str(e)))
        except ForgeError as e:
            self._post(Trouble(str(e)))
        else:
            if answer is not None:
                self._post(answer)


class ListenerThread(threading.Thread):
    """Listens for wake-ups, and for jobs that the pod has offered to take. A lost connection is made again; what was
    missed meanwhile is asked for. Once connected the loop itself hears, where it can: 0.15 ms less."""

    def __init__(self, listener: Listener, post: Post) -> None:
        super().__init__(name="listen", daemon=True)
        self._listener, self._post = listener, post
        self._channel: str | None = None
        self._lost = threading.Event()
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            if not self._hear(1.0):
                self._stopping.wait(random.uniform(0.5, 1.5))
            elif (fd := self._listener.fileno()) is not None:
                self._lost.clear()
                self._post(ListenerReady(fd, self.read))
                while not self._lost.wait(PROBE_EVERY):
                    self._listener.probe()
        self._listener.close()

    def read(self) -> bool:
        """Read what has come; called on the loop. Returns False if the connection is lost; the thread makes it
        again."""
        if self._hear(0.0):
            return True
        self._lost.set()
        return False

    def stop(self) -> None:
        """Ask the thread to end. It ends within a second."""
        self._stopping.set()
        self._lost.set()

    def _hear(self, timeout: float) -> bool:
        try:
            woken = self._listener.wait(timeout)
        except ForgeError:
            woken = None
        if claims := self._listener.pushed():  # first: they came by the channel that there was so far
            self._post(JobsPushed(claims))
        if (channel := self._listener.channel) != self._channel:
            self._channel = channel
            self._post(ChannelChanged(channel))
        if woken:
            self._post(Woken(woken))
        return woken is not None
