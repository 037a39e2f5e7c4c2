"""Claiming: when a lane has room, a thread fetches jobs for it. Jobs that nobody here can run go back."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from forge.config import LARGEST_PAYLOAD, suggest
from forge.job import Claim, Dead, Ending, Released
from forge.master.finalizer import Finalizer
from forge.master.pod.log import Sometimes, log
from forge.master.pod.meter import Meter
from forge.master.pod.presence import Presence
from forge.master.queues.local_queue import LocalQueue
from forge.master.queues.pod_budgets import PodBudgets
from forge.master.threads import DatabaseThread, Post
from forge.master.workers.zygotes import Zygotes
from forge.storage import Storage
from forge.storage.contract import Incarnation
from forge.storage.lines import Taken, Turns, claim_in_turn
from forge.storage.low_water import MOST_BYTES, full, payload_bytes

__all__ = ["Claimer"]

T = TypeVar("T")

# How long a job of a kind that nobody here knows stays away: so that in a rolling deploy a pod that does know it comes
# by, and a backlog of such jobs does not come back all at once.
UNKNOWN_KIND_PAUSE = (5.0, 60.0)
# Bytes of payloads that a pod holds at a time, if some are large, but a claim's worth for each queue. They are there up
# to three times: claimed, waiting to be sent, and being sent.
MOST_HELD = 32 * 1024 * 1024
LEAST_BYTES = 4 * 1024 * 1024  # a claim for less waits until more jobs have ended
TOKENS_AGAIN = 1.0  # seconds after which jobs that wait for tokens are looked at, if nobody says that some have come


class Claimer:
    """Serves all lanes, one claim at a time."""

    def __init__(
        self,
        storage: Storage,
        post: Post,
        presence: Presence,
        zygotes: Zygotes,
        finalizer: Finalizer,
        budgets: PodBudgets,
        lanes: Mapping[str, LocalQueue],
        meter: Meter,
    ) -> None:
        self._meter = meter
        self._storage, self._presence, self._zygotes, self._finalizer = storage, presence, zygotes, finalizer
        self._budgets, self._lanes = budgets, lanes
        budgets.on_tokens, finalizer.on_written = self._tokens_came, self._slots_came
        self.thread = DatabaseThread("claim", post, patient=False)
        self._sometimes = Sometimes(60.0)
        self.unknown_kind_ttl = 0.0  # seconds after which a job that nobody knows is dead
        self.stopping = False  # what still comes goes back
        self.claimed = 0  # claims that have come in
        self._looking = False
        self._heavy: set[LocalQueue] = set()  # lanes that hold large payloads
        # Somebody who keeps the jobs that are not for workers, and answers with the others.
        self.take: Callable[[Sequence[Claim]], Sequence[Claim]] = lambda claims: claims

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    @property
    def busy(self) -> bool:
        """Whether jobs may still come."""
        return self.thread.busy > 0

    def claim(self, lane: LocalQueue, now: float) -> None:
        """As many as its workers can take, if it is time."""
        if lane.turns is None and lane.queue in self._presence.lined:
            lane.turns = Turns()
            lane.wake()
        n = lane.wanted(now)
        if n > 0 and (most_bytes := self._most_bytes(lane, now)) > 0:
            n = min(n, lane.most_of(most_bytes))
            if lane.given_back:  # here, where no claim of the lane is under way that would take it for done
                lane.given_back = False
                lane.low_water.forget()
            if lane.turns is not None:
                self._claim_in_turn(lane, lane.turns, n, most_bytes, now)
                return
            lane.begin(now)
            who, queue, water = self._presence.who, lane.queue, lane.low_water
            self.thread.send(
                self._timed(lambda: self._storage.claim(who, queue, n, water, most_bytes)),
                lambda claims, error: self._came(lane, n, most_bytes, who, claims or [], error),
            )

    def _most_bytes(self, lane: LocalQueue, now: float) -> int:
        """Bytes that the payloads of a claim may have; 0: none now. Queues with large ones share what a pod holds at a
        time; the others do not feel it."""
        if lane not in self._heavy:
            return MOST_BYTES
        self._heavy = {each for each in self._heavy if each.weight(now)}
        share = max(MOST_HELD // max(len(self._heavy), 1), MOST_BYTES)
        left = min(MOST_BYTES, share - lane.weight(now))
        if left < LEAST_BYTES:
            lane.full()
            return 0
        return left

    def look(self, queues: Sequence[str]) -> None:
        """Whether a job is due, or when one will be: one statement for all queues that could take one. It takes its
        turn with the claims, whose marks it goes by."""
        if self._looking or self.stopping or not queues:
            return
        waters = {queue: self._lanes[queue].low_water for queue in queues if queue in self._lanes}

        def looked(seconds: float | None, error: str | None) -> None:
            self._looking = False
            if error is not None:
                self._presence.outage(error)
            elif seconds is not None:
                for queue in waters:
                    if queue in self._lanes:
                        self._lanes[queue].due_in(seconds, time.monotonic())

        self._looking = True
        self.thread.send(lambda: self._storage.next_due(list(waters), waters), looked)

    def pushed(self, claim: Claim) -> None:
        """A job that somebody has claimed for this pod, at its offer."""
        self.claimed += 1
        lane = self._lanes.get(claim.queue)
        if lane is None or self.stopping or not lane.takes:
            self._finalizer.release([claim])
        else:
            lane.take_in(self._known(self.take(lane.capped([claim])), time.monotonic()))

    def give_back(self, claims: Sequence[Claim]) -> None:
        """Jobs that have come although this pod does not want them any more."""
        self.claimed += len(claims)
        self._finalizer.release(claims)

    def _claim_in_turn(self, lane: LocalQueue, turns: Turns, n: int, most_bytes: int, now: float) -> None:
        """The same where some jobs are in lines: with tokens for those that want some, as far as is known."""
        if lane.is_due(now):
            turns.start_over()
        lane.begin(now)
        who, queue, water = self._presence.who, lane.queue, lane.low_water
        allowed = {scope: self._budgets.reserve(scope, n) for scope in turns.scopes}

        def came(taken: Taken | None, error: str | None) -> None:
            taken = taken or Taken([], {}, False)
            for scope, tokens in allowed.items():
                if tokens:  # said also if all were needed: only then do they count as spent
                    self._budgets.give_back(scope, tokens - taken.spent.get(scope, 0))
            self._came(lane, n, most_bytes, who, taken.claims, error, taken.more)
            if error is None and not turns.scopes <= allowed.keys():
                lane.wake()  # with tokens of a budget that it has just heard of
            elif turns.closed and turns.scopes:
                lane.due_in(TOKENS_AGAIN, time.monotonic())

        errand = self._timed(lambda: claim_in_turn(self._storage, who, queue, n, water, turns, allowed, most_bytes))
        self.thread.send(errand, came)

    def _timed(self, errand: Callable[[], T]) -> Callable[[], T]:
        def run() -> T:
            began = time.monotonic()
            found = errand()
            self._meter.took("claims", began)
            return found

        return run

    def _tokens_came(self, scope: str) -> None:
        for lane in self._lanes.values():
            if lane.turns is not None and scope in lane.turns.scopes:
                lane.wake()

    def _slots_came(self) -> None:
        """Jobs have ended, and that is written: a line that was closed may be open. Slots that come free elsewhere are
        found by the look that is made every poll_interval."""
        for lane in self._lanes.values():
            if lane.turns is not None and lane.turns.closed:
                lane.wake()

    def _came(
        self,
        lane: LocalQueue,
        asked: int,
        most_bytes: int,
        who: Incarnation,
        claims: Sequence[Claim],
        error: str | None,
        more: bool = False,
    ) -> None:
        now = time.monotonic()
        self.claimed += len(claims)
        if error is not None:
            lane.hold(now + random.uniform(0.75, 1.25))
            self._presence.outage(error)
        else:
            self._presence.is_back()
        size = payload_bytes(claims)
        found = asked if more or full(claims, asked, most_bytes, size) else len(claims)
        # Back at once if the pod was reaped meanwhile (nobody would know that they are ours) or is about to go.
        if who is not self._presence.who or self.stopping or lane.closing:
            self._finalizer.release(claims)
            claims = []
        if size > LARGEST_PAYLOAD:
            claims = self._sendable(claims)
        lane.weigh_in(len(claims), size)
        lane.claimed(self._known(self.take(lane.capped(claims)), now), asked, found)
        if lane.heavy:
            self._heavy.add(lane)

    def _sendable(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """But for those whose payload is too long for a worker, whoever has stored it. It would not survive that."""
        for claim in claims:
            if (size := len(claim.payload)) > LARGEST_PAYLOAD:
                why = f"the payload has {size:,} bytes, and no worker is sent more than {LARGEST_PAYLOAD:,}"
                self._finalizer.end(Ending(claim, Dead(why)))
        return [claim for claim in claims if len(claim.payload) <= LARGEST_PAYLOAD]

    def _known(self, claims: Sequence[Claim], now: float) -> Sequence[Claim]:
        """Those of a kind that somebody here can run. The others go back untouched: another pod may know them, or the
        next release."""
        kinds = self._zygotes.current.kinds
        known = [claim for claim in claims if claim.kind in kinds]
        if len(known) < len(claims):
            for claim in claims:
                if claim.kind not in kinds:
                    self._unknown(claim, suggest(claim.kind, kinds, show=0), now)
        return known

    def _unknown(self, claim: Claim, near: str, now: float) -> None:
        why = Released(f"no handler for kind {claim.kind}", give_up_after=self.unknown_kind_ttl)
        self._finalizer.end(Ending(claim, why, random.uniform(*UNKNOWN_KIND_PAUSE)))
        if self._sometimes(claim.kind, now):
            log(f"no handler for kind {claim.kind}{near}", claim.queue, logging.WARNING)
