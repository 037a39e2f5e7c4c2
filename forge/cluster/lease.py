"""Which pod leads: a lease of one row, held for a term.

**Model.** The row says who leads, in which term, and until when by the database's clock. A pod takes the lease if it is
free (given back, lapsed, or its pod is no more) and gets a new term: the last one plus one, issued by the database and
on disk before it is known. It renews the lease at a third of its TTL. It gives it back when it stops, so that another
one leads at once; if it dies, others take over when the lease has lapsed, and are told beforehand when that will be.

**Invariants.**

1. A term belongs to one holder, for ever. Terms only grow.
2. A write that only the leader may do carries its term, and happens only if the row still has that term when it
   commits: it locks the row first, in its own transaction, and whoever takes over waits for that lock. So when a new
   leader has its term, every write of the one before has committed or never will.
3. A pod runs leader services only while it trusts its lease: from the start of the request that was granted, by its own
   monotonic clock, for the TTL less a margin. A pod that was stopped and woken, or cut off, finds its trust lapsed.

The second alone makes two leaders harmless; the third only makes them rare. Nothing here relies on trust for
correctness, and neither may a service: what must not be done twice is done in a write that carries the term.

**Clocks.** Only the database's clock decides, and only the span between two readings of it matters. A pod compares
nothing with it: it measures the span since its request began, and the database began the lease no sooner. So the wall
clocks of pods may say what they like. What is assumed: a pod's monotonic clock runs at most a tenth slower than the
database's clock (the margin); that of a machine that was put to sleep may have stood still. If that fails, or the
database's clock is set forward, two pods may trust at once: see 2. If it is set back by more than a TTL the lease
counts as lapsed, and a pod that leads may be followed for no reason. A failover that loses what was committed may issue
a term twice, to two holders; it loses acknowledged jobs too.

**Locks.** A pod stopped in the middle of a leader's write holds the row's lock. The server ends such a transaction
after the timeout of the services' connections, so a takeover may wait for that much longer, and no more.

**Costs.** One update of one row each third of a TTL by the leader, one look by every other pod. On SQLite it is the
same with one pod; there, a command may lead between two masters.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable

from forge.cluster.service import say
from forge.errors import ForgeError
from forge.storage.contract.leases import Holder, LeaseStore

__all__ = ["Lease"]

RENEW = 1 / 3  # of the TTL
MARGIN = 1 / 10  # of the TTL, by which a pod trusts it for less


class Lease:
    """This process's part in it. One thread tends it; any may ask for the term."""

    def __init__(
        self,
        leases: LeaseStore,
        pod: Callable[[], int | None],
        ttl: Callable[[], float],
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ttl` answers for how many seconds the lease is asked for.
        `pod` answers this pod's number, which changes when it was taken for dead; None: a command asks, which says
        what there is to say itself (`quiet`)."""
        self._leases, self._pod, self._clock = leases, pod, clock
        self._ttl = ttl
        self._say = (lambda *_: None) if quiet else say
        self._key = secrets.token_hex(8)
        self._held: tuple[int, float] | None = None  # the term, and until when to trust it (monotonic)
        self._changing = threading.Lock()

    def term(self) -> int | None:
        """The term in which this pod leads, as far as it may trust that now."""
        held = self._held
        return held[0] if held is not None and self._clock() < held[1] else None

    def tend(self) -> float:
        """Ask for the lease or renew it. Answers after how many seconds to do it again. Raises nothing."""
        held = self._held
        try:
            return self._ask() if held is None else self._renew(held[0])
        except Exception as e:  # noqa: BLE001 (a lease that is not tended is lost; whatever it was may pass)
            if not isinstance(e, ForgeError):
                self._say("leader", f"{type(e).__name__}: {e}", logging.ERROR)
            if held is not None and self._clock() >= held[1]:
                self._end(held[0], "it could not be renewed")
            return self._ttl() * random.uniform(0.1, 0.2)

    def drop(self, term: int) -> None:
        """A write of this term was refused."""
        self._end(term, "it is over")

    def release(self) -> None:
        """Let another pod lead at once. Raises nothing."""
        held = self._held
        if held is None:
            return
        self._end(held[0], "it was given back", logging.INFO)
        try:
            self._leases.release(held[0])
        except ForgeError as e:
            self._say("leader", f"the lease lapses by itself: {e}", logging.WARNING)

    def _ask(self) -> float:
        began = self._clock()
        term, left = self._leases.acquire(self._holder(), self._ttl())
        if term is None:
            # When it lapses, and now and then before: it may be given back. All at once would wait for each other.
            jitter = random.uniform(0.01, 0.05)
            return min(max(left, 0.0) + self._ttl() * jitter, self._ttl() * (RENEW - jitter))
        self._held = term, self._trust(began)
        self._say("leader", f"this pod leads (term {term})")
        return self._until_renewal(began)

    def _renew(self, term: int) -> float:
        began = self._clock()
        if not self._leases.renew(term, self._holder(), self._ttl()):
            self._end(term, "another one was faster")
            return 0.0
        with self._changing:
            if self._held is not None:  # else a write was refused meanwhile
                self._held = term, self._trust(began)
        return self._until_renewal(began)

    def _end(self, term: int, why: str, level: int = logging.WARNING) -> None:
        with self._changing:
            ended = self._held is not None and self._held[0] == term
            if ended:
                self._held = None
        if ended:
            self._say("leader", f"this pod no longer leads (term {term}): {why}", level)

    def _holder(self) -> Holder:
        return Holder(self._key, self._pod(), socket.gethostname(), os.getpid())

    def _trust(self, began: float) -> float:
        return began + self._ttl() * (1 - MARGIN)

    def _until_renewal(self, began: float) -> float:
        return max(0.0, began + self._ttl() * RENEW * random.uniform(0.9, 1.0) - self._clock())
