"""Periodic services of a pod: one skeleton, a thread for each, so that none waits for rounds of another. Those that
share a storage of one connection wait for the statements of others.

A service does one round at a time, and a round is short: every query has a timeout (that of the storage it was given),
and a service with much to do does a part and asks for another round soon by setting `every`. What goes wrong in a round
is logged, and the next one waits longer; nothing that a service meets ends its thread or makes it spin.

A leader service runs only while this pod trusts its lease, and is given the term for its writes. `forge.cluster.lease`
says what that is worth. A write that is refused ends the term for all of them: none begins another round, and writes of
rounds under way are refused as well.
"""

from __future__ import annotations

import abc
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from forge.errors import ForgeError, LostLease
from forge.logs import Sometimes

__all__ = ["Leadership", "Service", "ServiceRunner", "say"]

JITTER = 0.2  # a round comes up to this part of `every` sooner or later: pods must not work in step
LONGEST_BACKOFF = 15.0  # seconds
TELL_EVERY = 60.0  # seconds between two lines about one service that keeps failing
HASTE = 1.0  # seconds between two rounds of a service that is told over and over that there is something to do
STUCK_AFTER = 60.0  # seconds in one round after which a leader lets another one try

_LOGGER = logging.getLogger("forge.cluster")


def say(who: str, text: str, level: int = logging.INFO) -> None:
    """One line of the log, in the name of a service."""
    _LOGGER.log(level, "%s", text, extra={"who": who})


class Service(abc.ABC):
    """Something that a pod, or the leading pod, does now and then."""

    name: str  # as in `forge run <name>`
    every: float  # seconds between runs, jittered by the runner; may change from run to run
    leader_only: bool  # run with a term, or by every pod
    urgent: bool = False  # cannot wait a moment when a pod has just started
    level: int = logging.INFO  # of the line about what a round did

    @abc.abstractmethod
    def run_once(self, term: int | None) -> str | None:
        """One round; what it did, in words for the log, or None if nothing. Leader services get the term and hand it to
        every write."""


class Leadership(Protocol):
    """What the runner needs of a lease: see `forge.cluster.lease.Lease`."""

    def term(self) -> int | None:
        """The term in which this pod leads, as far as it may trust that now."""

    def tend(self) -> float:
        """Ask for the lease or renew it. Answers after how many seconds to do it again. Raises nothing."""

    def drop(self, term: int) -> None:
        """A write of this term was refused."""

    def release(self) -> None:
        """Let another pod lead at once. Raises nothing."""


class _Timetable:
    """One service: when it is next run, how often it has failed in a row, and since when a round is under way."""

    def __init__(self, service: Service, at: float) -> None:
        self.service, self.at, self.failures = service, at, 0
        self.began: float | None = None
        self.ended = at - HASTE  # the last round
        self.hastened = False  # since it began
        self.term: int | None = None  # in which it was run last
        self.wake = threading.Event()

    def follow(self, now: float) -> None:
        """Set the time of the next round."""
        self.ended = now
        pause = min(self.service.every, HASTE) if self.hastened else self.service.every
        if self.failures:
            pause = max(pause, min(max(pause, 0.5) * 2**self.failures, LONGEST_BACKOFF))
        self.at = now + pause * random.uniform(1 - JITTER, 1 + JITTER)


class ServiceRunner:
    """Runs each service in a thread of its own; one more keeps the lease, so that a long round does not cost it."""

    def __init__(
        self,
        services: Sequence[Service],
        lease: Leadership | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        quiet: float = 0.0,
    ) -> None:
        """Without a lease leader services are not run. Who comes to lead within `quiet` seconds begins with what is
        urgent, and with everything when they are over."""
        self._lease, self._clock = lease, clock
        now = clock()
        self._quiet_until = now + quiet
        self._turns = [_Timetable(service, now + service.every * random.random()) for service in services]
        self._tend_now = threading.Event()
        self._stopping = threading.Event()
        self._sometimes = Sometimes(TELL_EVERY)
        self._threads = [
            threading.Thread(target=self._run, args=(turn,), name=turn.service.name, daemon=True)
            for turn in self._turns
        ]
        if lease is not None:
            self._threads.append(threading.Thread(target=self._tend, args=(lease,), name="lease", daemon=True))

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Begin no more rounds, and give back the lease once those under way are over. Waits for nothing."""
        self._stopping.set()
        self._wake_all()
        self._tend_now.set()

    def poke(self) -> None:
        """The lease may be free: look now. From any thread."""
        self._tend_now.set()

    def hasten(self, name: str) -> None:
        """There may be something to do for this service: run it within `HASTE` of its last round. From any thread."""
        for turn in self._turns:
            if turn.service.name == name and not turn.hastened:
                turn.hastened = True
                if not turn.failures:
                    turn.at = min(turn.at, turn.ended + HASTE)
                    turn.wake.set()

    def join(self, timeout: float) -> bool:
        """Wait for that; False if it took too long."""
        end = self._clock() + timeout
        for thread in self._threads:
            thread.join(max(0.0, end - self._clock()))
        return not any(thread.is_alive() for thread in self._threads)

    def _wake_all(self) -> None:
        for turn in self._turns:
            turn.wake.set()

    # -- the thread of a service -------------------------------------------------------------------------------

    def _run(self, turn: _Timetable) -> None:
        while not self._stopping.is_set():
            turn.wake.wait(max(0.0, turn.at - self._clock()))
            turn.wake.clear()
            self._look_at(turn)

    def _look_at(self, turn: _Timetable) -> None:
        term = self._lease.term() if self._lease and turn.service.leader_only else None
        if term is not None and term != turn.term:  # who has come to lead begins with everything
            now = self._clock()
            turn.term, turn.at = term, min(turn.at, now if turn.service.urgent else max(now, self._quiet_until))
        if turn.at <= self._clock() and not self._stopping.is_set():
            self._round(turn, term)
            turn.follow(self._clock())

    def _round(self, turn: _Timetable, term: int | None) -> None:
        service = turn.service
        if service.leader_only and term is None:
            turn.failures = 0
            return
        turn.began, turn.hastened = self._clock(), False
        try:
            did = service.run_once(term)
        except LostLease:
            assert self._lease is not None and term is not None
            self._lease.drop(term)
        except Exception as e:  # noqa: BLE001 (whatever one service meets must not end its thread)
            turn.failures += 1
            words = str(e) if isinstance(e, ForgeError) else f"{type(e).__name__}: {e}"
            if self._sometimes(service.name, self._clock()):
                say(service.name, f"{words}; trying again", logging.WARNING)
        else:
            if turn.failures:
                self._recover(turn)
            turn.failures = 0
            if did is not None:
                say(service.name, did, service.level)
        finally:
            turn.began = None

    def _recover(self, well: _Timetable) -> None:
        """What kept one service from its work is over, and perhaps what kept the others: they need not wait."""
        for turn in self._turns:
            if turn.failures and turn is not well:
                turn.at = min(turn.at, self._clock() + turn.service.every * random.random())
                turn.wake.set()

    # -- the thread of the lease -------------------------------------------------------------------------------

    def _tend(self, lease: Leadership) -> None:
        while not self._stopping.is_set():
            if self._stuck():
                if lease.term() is not None:
                    say("leader", "a service does not come back; another pod may lead", logging.ERROR)
                    lease.release()
                self._stopping.wait(1.0)
                continue
            self._tend_now.clear()
            before = lease.term()
            pause = lease.tend()
            if lease.term() != before:
                self._wake_all()
            if not self._stopping.is_set():  # else its poke may have come before the clear
                self._tend_now.wait(pause)
        for thread in self._threads[:-1]:
            thread.join()  # a write under way may still carry the term
        lease.release()

    def _stuck(self) -> bool:
        """A leader one of whose services hangs keeps all others from leading."""
        hung = self._clock() - STUCK_AFTER
        return any(turn.began is not None and turn.began < hung for turn in self._turns if turn.service.leader_only)
