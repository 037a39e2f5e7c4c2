"""The loop behind `forge-master`: claims jobs and runs their handlers one at a time in this process.

Signal handlers only note what was asked; the one exception is the end of the grace period, when a handler that still
runs is interrupted by raising `Released` in it, so that its job goes back with the attempt restored.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from types import FrameType

from forge.app import Handler
from forge.cli.common import counted, duration
from forge.errors import DatabaseError
from forge.job import Claim, Dead, Ending, Failed, Released
from forge.storage import Storage
from forge.storage.contract import Listener, LowWater, Want
from forge.worker.inline import execute

__all__ = ["Runner", "log"]

BEAT, REAP, STALE = 1.0, 15.0, 60.0  # seconds
SHUTDOWN_TIMEOUT = 25
POLL = 0.5


def log(text: str, who: str = "master") -> None:
    """One line with the time of day."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {who}  {text}\n")
    sys.stderr.flush()


class Runner:
    """One pod of one worker: this thread runs handlers, another beats and reaps."""

    def __init__(
        self, storage: Storage, handlers: Mapping[str, Handler], queues: Mapping[str, Mapping[str, object]]
    ) -> None:
        self.storage, self.handlers, self.queues = storage, handlers, list(queues)
        self.stopping = threading.Event()  # claim no more
        self._finished = threading.Event()  # nothing runs any more
        self._in_handler = False
        self._wants = [Want(name, 1, LowWater()) for name in queues]
        known = storage.queues()
        for name in queues:
            if name not in known:  # what operators have set since is not undone
                storage.set_queue(name, **queues[name])

    def run(self) -> None:
        """Serve until stopped; then give back what was not run."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGALRM):
            signal.signal(number, self._on_signal)
        self._register()
        beating = threading.Thread(target=self._beat, name="beat", daemon=True)
        beating.start()
        log(f"1 worker ready for {', '.join(self.queues)}")
        log(f"ctrl-c drains ({SHUTDOWN_TIMEOUT} s); twice stops now")
        with closing(self.storage.listen()) as listener:
            endings: list[Ending] = []
            while endings or not self.stopping.is_set():
                claims = self._next(endings)
                endings = [self._run_one(claim) for claim in claims]
                if not claims and not self.stopping.is_set():
                    self._idle(listener)
        signal.alarm(0)
        self._finished.set()
        beating.join()  # heartbeats stop last
        back = self.storage.deregister(self.who)
        log(f"stopped; {counted(back, 'job')} given back unstarted" if back else "stopped")

    def _idle(self, listener: Listener) -> None:
        """Until a wake-up, which may get lost, or the next look."""
        try:
            listener.wait(POLL * random.uniform(0.5, 1.5))
        except DatabaseError:
            self.stopping.wait(1.0)

    def _next(self, endings: list[Ending]) -> list[Claim]:
        """Write what has ended and claim the next job, queues taking turns."""
        for _ in self._wants:
            self._wants.append(self._wants.pop(0))
            claims = self._exchange(endings, self._wants[-1:])
            if claims or self.stopping.is_set():
                return claims
            endings = []
        return []

    def _exchange(self, endings: list[Ending], wants: list[Want]) -> list[Claim]:
        """An outage is waited out: the token makes it safe to write an ending twice. What cannot be written even at the
        end is left to the reaper."""
        while True:
            try:
                stale, claims = self.storage.exchange(self.who, endings, [] if self.stopping.is_set() else wants)
            except DatabaseError as e:
                log(f"{e}; trying again")
                if self.stopping.wait(1.0):
                    return []
            else:
                if stale:
                    log("a job had been taken away from here meanwhile; its ending was dropped")
                return claims

    def _run_one(self, claim: Claim) -> Ending:
        try:
            self._in_handler = True
            ending = execute(claim, self.handlers)
            self._in_handler = False
        except Released as interrupted:  # between the handler's last line and this one
            self._in_handler = False
            ending = Ending(claim, interrupted)
        match ending.outcome:
            case Failed(message) if claim.attempt < claim.max_attempts:
                log(f"{claim.kind} {claim.id} failed, again in {duration(ending.delay)}: {message}", claim.queue)
            case Failed(message) | Dead(message):
                log(f"{claim.kind} {claim.id} dead: {message}", claim.queue)
            case Released(message):
                log(f"{claim.kind} {claim.id} given back: {message}", claim.queue)
        return ending

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        again = number in (signal.SIGINT, signal.SIGQUIT) and (self.stopping.is_set() or number == signal.SIGQUIT)
        self.stopping.set()
        if (again or number == signal.SIGALRM) and self._in_handler:
            raise Released("the worker was stopped")
        if number != signal.SIGALRM:
            signal.alarm(SHUTDOWN_TIMEOUT)

    def _register(self) -> None:
        self.who = self.storage.register("inline", self.queues, socket.gethostname(), os.getpid())

    def _beat(self) -> None:
        """Say once a second that this pod lives, and look now and then for pods that do not.

        Not before a full threshold after a start or an outage: until then a silent pod may only have been cut off too.
        """
        reap_at = time.monotonic() + STALE
        while not self._finished.wait(BEAT):
            try:
                if not self.storage.beat(self.who):
                    log("this pod had been taken for dead; starting over as a new one")
                    self._register()
                if time.monotonic() >= reap_at:
                    self.storage.reap(STALE)
                    reap_at = time.monotonic() + REAP
            except DatabaseError:
                reap_at = time.monotonic() + STALE
