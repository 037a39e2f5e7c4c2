"""Claiming: when a queue has room, a thread fetches jobs for it. Jobs that nobody here can run go back."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from forge.config import suggest
from forge.delays import UNKNOWN_KIND_PAUSE
from forge.job import LARGEST_PAYLOAD, Claim, Dead, Ending, Released
from forge.master.database_threads import DatabaseThread
from forge.master.finalizer import Finalizer
from forge.master.news import Post
from forge.master.pod.log import Sometimes, log
from forge.master.pod.meter import Meter
from forge.master.pod.presence import Presence
from forge.master.pod_state import PodState
from forge.master.programs.programs import Programs
from forge.master.queues.local_queue import LocalQueue
from forge.master.queues.pod_budgets import PodBudgets
from forge.master.workers.zygotes import Zygotes
from forge.storage import Storage
from forge.storage.contract import Incarnation
from forge.storage.contract.lines import LineClaims, Turns
from forge.storage.shared.low_water import MOST_BYTES, full, payload_bytes
from forge.storage.shared.walking import claim_in_turn

__all__ = ["Claimer"]

T = TypeVar("T")

# Bytes of payloads that a pod holds at a time, if some are large, but a claim's worth for each queue. They are there up
# to three times: claimed, waiting to be sent, and being sent.
MOST_HELD = 32 * 1024 * 1024
LEAST_BYTES = 4 * 1024 * 1024  # a claim for less waits until more jobs have ended
TOKENS_AGAIN = 1.0  # seconds after which jobs that wait for tokens are looked at, if nobody says that some have come


class Claimer:
    """Claims for all queues of a pod, one claim at a time."""

    def __init__(
        self,
        storage: Storage,
        post: Post,
        *,
        state: PodState,
        presence: Presence,
        zygotes: Zygotes,
        queues: Mapping[str, LocalQueue],
        programs: Programs,
        finalizer: Finalizer,
        budgets: PodBudgets,
        meter: Meter,
    ) -> None:
        """`programs` take the claimed jobs that are not for workers."""
        self._storage, self._state, self._presence, self._zygotes = storage, state, presence, zygotes
        self._queues, self._programs, self._finalizer = queues, programs, finalizer
        self._budgets, self._meter = budgets, meter
        self.thread = DatabaseThread("claim", post, patient=False)
        self._sometimes = Sometimes(60.0)
        self.claimed = 0  # claims that have come in
        self._looking = False
        self._heavy: set[LocalQueue] = set()  # queues that hold large payloads

    def start(self) -> None:
        """Start the thread that claims."""
        self.thread.start()

    @property
    def busy(self) -> bool:
        """Whether a claim is under way, so that jobs may still come."""
        return self.thread.busy > 0

    def claim(self, queue: LocalQueue, now: float) -> None:
        """Claim as many jobs as the queue has room for, if it is time."""
        if queue.turns is None and queue.name in self._presence.lined:
            queue.form_lines()
        n = queue.wanted(now)
        if n > 0 and (most_bytes := self._most_bytes(queue, now)) > 0:
            n = min(n, queue.most_of(most_bytes))
            queue.forget_marks()
            if queue.turns is not None:
                self._claim_in_turn(queue, queue.turns, n, most_bytes, now)
                return
            queue.begin(now)
            who, name, water = self._presence.who, queue.name, queue.low_water
            self.thread.send(
                self._timed(lambda: self._storage.claim(who, name, n, water, most_bytes)),
                lambda claims, error: self._came(queue, n, most_bytes, who, claims or [], error),
            )

    def _most_bytes(self, queue: LocalQueue, now: float) -> int:
        """Bytes that the payloads of a claim may have; 0: none now. Queues with large ones share what a pod holds at a
        time; the others do not feel it."""
        if queue not in self._heavy:
            return MOST_BYTES
        self._heavy = {each for each in self._heavy if each.weight(now)}
        share = max(MOST_HELD // max(len(self._heavy), 1), MOST_BYTES)
        left = min(MOST_BYTES, share - queue.weight(now))
        if left < LEAST_BYTES:
            queue.full()
            return 0
        return left

    def look(self, names: Sequence[str]) -> None:
        """Ask the database whether a job is due, or when one will be: one statement for all these queues. It takes its
        turn among the claims, because it goes by their marks."""
        if self._looking or self._state.stopping or not names:
            return
        waters = {name: self._queues[name].low_water for name in names if name in self._queues}

        def looked(seconds: float | None, error: str | None) -> None:
            self._looking = False
            if error is not None:
                self._presence.outage(error)
            elif seconds is not None:
                for name in waters:
                    if name in self._queues:
                        self._queues[name].due_in(seconds, time.monotonic())

        self._looking = True
        self.thread.send(lambda: self._storage.next_due(list(waters), waters), looked)

    def pushed(self, claim: Claim) -> None:
        """Take in a job that was claimed for this pod because of its offer."""
        self.claimed += 1
        queue = self._queues.get(claim.queue)
        if queue is None or self._state.stopping or not queue.takes:
            self._finalizer.release([claim])
        else:
            queue.take_in(self._known(self._programs.take(queue.capped([claim])), time.monotonic()))

    def give_back(self, claims: Sequence[Claim]) -> None:
        """Give back jobs that have come although this pod does not want them any more."""
        self.claimed += len(claims)
        self._finalizer.release(claims)

    def _claim_in_turn(self, queue: LocalQueue, turns: Turns, n: int, most_bytes: int, now: float) -> None:
        """The same where some jobs are in lines: with tokens for those that want some, as far as is known."""
        if queue.is_due(now):
            turns.start_over()
        queue.begin(now)
        who, name, water = self._presence.who, queue.name, queue.low_water
        allowed = {scope: self._budgets.reserve(scope, n) for scope in turns.scopes}
        behind = 1 if self._programs.kinds else queue.behind

        def came(taken: LineClaims | None, error: str | None) -> None:
            taken = taken or LineClaims([], {}, False)
            for scope, tokens in allowed.items():
                if tokens:  # said also if all were needed: only then do they count as spent
                    self._budgets.give_back(scope, tokens - taken.spent.get(scope, 0))
            self._came(queue, n, most_bytes, who, taken.claims, error, taken.more, taken.chains)
            if error is None and not turns.scopes <= allowed.keys():
                queue.wake()  # with tokens of a budget that it has just heard of
            elif turns.closed and turns.scopes:
                queue.due_in(TOKENS_AGAIN, time.monotonic())

        errand = self._timed(
            lambda: claim_in_turn(self._storage, who, name, n, water, turns, allowed, most_bytes, behind)
        )
        self.thread.send(errand, came)

    def _timed(self, errand: Callable[[], T]) -> Callable[[], T]:
        def run() -> T:
            began = time.monotonic()
            found = errand()
            self._meter.took("claims", began)
            return found

        return run

    def tokens_came(self, scope: str) -> None:
        """There are tokens of this budget again: wake the queues whose jobs wait for some."""
        for queue in self._queues.values():
            if queue.turns is not None and scope in queue.turns.scopes:
                queue.wake()

    def places_came(self) -> None:
        """Jobs have ended, and that is written: wake the queues whose lines had no place free. Places that come free on
        other pods are found by the look that is made every poll_interval."""
        for queue in self._queues.values():
            if queue.turns is not None and queue.turns.closed:
                queue.wake()

    def _came(
        self,
        queue: LocalQueue,
        asked: int,
        most_bytes: int,
        who: Incarnation,
        claims: Sequence[Claim],
        error: str | None,
        more: bool = False,
        chains: Sequence[Sequence[Claim]] = (),
    ) -> None:
        now = time.monotonic()
        self.claimed += len(claims)
        if error is not None:
            queue.pause(now + random.uniform(0.75, 1.25))
            self._presence.outage(error)
        else:
            self._presence.is_back()
        size = payload_bytes(claims)
        found = asked if more or full(claims, asked, most_bytes, size) else len(claims)
        for chain in chains:
            self._finalizer.chains.add(chain)
        # Back at once if the pod was reaped meanwhile (nobody would know that they are ours) or is about to go.
        if who is not self._presence.who or self._state.stopping or queue.closing:
            self._finalizer.release(claims)
            claims = []
        if chains:
            claims = self._unchained(queue, claims, chains)
        if size > LARGEST_PAYLOAD:
            claims = self._sendable(claims)
        queue.weigh_in(len(claims), size)
        queue.claimed(self._known(self._programs.take(queue.capped(claims)), now), asked, found, chains)
        if queue.heavy:
            self._heavy.add(queue)

    def _unchained(
        self, queue: LocalQueue, claims: Sequence[Claim], chains: Sequence[Sequence[Claim]]
    ) -> Sequence[Claim]:
        """These jobs, but of a chain whose jobs are not all for one worker only the first. The others go back."""
        others = self._programs.kinds
        back: set[UUID] = set()
        for chain in chains:
            if any(claim.kind in others or queue.suspects.runs_alone(claim.id) for claim in chain):
                back |= {claim.id for claim in chain[1:]}
        if not back:
            return claims
        self._finalizer.release([claim for claim in claims if claim.id in back])
        return [claim for claim in claims if claim.id not in back]

    def _sendable(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """These jobs, but for those whose payload is longer than a worker can be sent: they are dead."""
        for claim in claims:
            if (size := len(claim.payload)) > LARGEST_PAYLOAD:
                why = f"the payload has {size:,} bytes, and no worker is sent more than {LARGEST_PAYLOAD:,}"
                self._finalizer.end(Ending(claim, Dead(why)))
        return [claim for claim in claims if len(claim.payload) <= LARGEST_PAYLOAD]

    def _known(self, claims: Sequence[Claim], now: float) -> Sequence[Claim]:
        """Those of these jobs whose kind a worker here can run. The others go back untouched: another pod may know
        them, or the next release."""
        kinds = self._zygotes.current.kinds
        known = [claim for claim in claims if claim.kind in kinds]
        if len(known) < len(claims):
            for claim in claims:
                if claim.kind not in kinds:
                    self._unknown(claim, suggest(claim.kind, kinds, show=0), now)
        return known

    def _unknown(self, claim: Claim, near: str, now: float) -> None:
        why = Released(f"no handler for kind {claim.kind}", give_up_after=self._state.config.unknown_kind_ttl)
        self._finalizer.end(Ending(claim, why, random.uniform(*UNKNOWN_KIND_PAUSE)))
        if self._sometimes(claim.kind, now):
            log(f"no handler for kind {claim.kind}{near}", claim.queue, logging.WARNING)
