"""Pods that spend a budget, on a clock that the test turns: killed, stopped, cut off, at random but by a seed.

The storage and the purses are the real ones. A request is sent, carried out and answered at three different times, each
of which may never come.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from forge.cluster.budgets import Purse
from forge.storage import Storage
from forge.storage.contract import Incarnation
from forge.storage.contract.budgets import Ask, Grant, Limit

__all__ = ["Clock", "Pod", "Rig", "Spent", "worst", "worst_of_moments"]

Spent = tuple[float, float, int]  # some time between these two, so many tokens


def worst(record: Sequence[Spent], refill: float) -> float:
    """The most that was spent in any span beyond what is refilled in it: as much as the capacity is allowed.

    A span counts what was certainly spent within it; so it is enough to look at those that begin where something began
    and end where something ended.
    """
    by_end = sorted(record, key=lambda spent: spent[1])
    most = -math.inf
    for first in {begin for begin, _, _ in record}:
        total = 0
        for begin, end, n in by_end:
            if begin >= first:
                total += n
                most = max(most, total - refill * (end - first))
    return most


def worst_of_moments(record: Sequence[Spent], refill: float) -> float:
    """The same where what was spent was spent at once, in one pass: the best span up to here goes on or begins anew."""
    most = here = -math.inf
    last = 0.0
    for begin, end, n in sorted(record):
        assert begin == end
        here = n + max(0.0, here - refill * (begin - last))
        most, last = max(most, here), begin
    return most


class Clock:
    """The database's, and all clocks there are."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Request:
    ask: Ask
    began: float  # by the pod's clock
    grant: Grant | None = None
    done: bool = False


@dataclass
class Pod:
    """One pod, whose clock may run a little fast or slow."""

    who: Incarnation
    purse: Purse
    rate: float
    eager: float  # how likely it is to want tokens, at each step
    stopped_until: float = 0.0
    request: Request | None = None
    reserved: list[int] = field(default_factory=list)  # of tokens that were reserved: how many are to be given back
    lost: list[Request] = field(default_factory=list)  # given up by the pod, but still on their way


class Rig:
    """A cluster."""

    def __init__(self, storage: Storage, clock: Clock, seed: int, limit: Limit, pods: int, trust: float = 0.9) -> None:
        self.storage, self.clock, self.limit = storage, clock, limit
        self.random = random.Random(seed)
        random.seed(seed)  # purses draw from that one
        self._trust = trust
        self.record: list[Spent] = []
        self.mood: float | None = None  # how eager everybody is; None: as each of them is
        self._plans: list[tuple[float, float]] = []  # and from when on
        storage.budgets.set("mail", limit)
        self.pods = [self.new() for _ in range(pods)]

    def new(self) -> Pod:
        who = self.storage.register("pod", ["letters"], "north", 1)
        purse = Purse(trust=self._trust)
        return Pod(who, purse, self.random.uniform(0.92, 1.08), self.random.choice((0.05, 0.3, 1.0)))

    def time_of(self, pod: Pod) -> float:
        return self.clock.now * pod.rate

    def step(self, *, faults: bool) -> None:
        """A moment goes by, and each pod does something or nothing."""
        self.clock.now += self.random.expovariate(50)
        if faults:
            self._harm()
            if self.random.random() < 0.02:  # all are quiet, so that the bucket is full; or all want all there is
                self.mood = self.random.choice((0.0, 0.0, 1.0, None))
            for at, mood in [plan for plan in self._plans if plan[0] <= self.clock.now]:
                self.mood = mood
                self._plans.remove((at, mood))
        for pod in self.random.sample(self.pods, len(self.pods)):
            for request in [*pod.lost, *filter(None, [pod.request])]:
                if not request.done and self.random.random() < 0.7:
                    self._carry_out(pod, request)
            pod.lost = [request for request in pod.lost if not request.done]
            if pod.stopped_until <= self.clock.now:
                self._act(pod, faults)

    def _harm(self) -> None:
        # Who has the most tokens is the one to meet with it, if anybody: there is most to go wrong.
        richest = max(self.pods, key=lambda pod: pod.purse._held)
        chance, pod = self.random.random(), self.random.choice((richest, self.random.choice(self.pods)))
        if chance < 0.004:  # dead, whatever it had; a request may still be on its way
            successor = self.new()
            successor.lost = []
            self.pods[self.pods.index(pod)] = successor
            if pod.request and not pod.request.done and self.random.random() < 0.5:
                self._carry_out(pod, pod.request)
        elif chance < 0.012:
            # It wakes just when the bucket is full and all want all there is.
            pod.stopped_until = wakes = self.clock.now + self.random.choice((0.5, 4.0, 4.7, 6.0, 12.0))
            self._plans += [(wakes - 1.0, 0.0), (wakes - 0.05, 1.0)]

    def _carry_out(self, pod: Pod, request: Request) -> None:
        request.done = True
        request.grant = self.storage.budgets.lease(pod.who, "mail", request.ask)

    def _act(self, pod: Pod, faults: bool) -> None:
        now = self.time_of(pod)
        if pod.request is not None:
            if faults and self.random.random() < 0.05:
                pod.purse.failed(now)
                # Only one that was not carried out yet can come late; the number says so to the database, but it is
                # minted when it is carried out here, so a late one is left out: the storage's own tests have it.
                pod.request = None
            elif pod.request.done and self.random.random() < 0.7:
                assert pod.request.grant is not None
                pod.purse.answered(pod.request.grant, pod.request.began, now)
                pod.request = None
        n = self.random.choice((1, 1, 1, 2, 3))
        while self.random.random() < (pod.eager if self.mood is None else self.mood):
            if not pod.purse.take(n, now):
                if pod.request is None and now >= pod.purse.ask_when(n):
                    # Some ask for more than they will need, and are stopped with it.
                    self._send(pod, pod.purse.ask(n, n * self.random.choice((1, 1, 10)), now), now)
                break
            self.record.append((self.clock.now, self.clock.now, n))
        self._reserve(pod, now)
        if pod.request is None and now >= pod.purse.settle_at:
            self._send(pod, pod.purse.settle(now), now)

    def _reserve(self, pod: Pod, now: float) -> None:
        """Some are reserved, and of those some are needed: which is known now, or soon, or late, or never."""
        if pod.reserved and self.random.random() < 0.3:
            pod.purse.give_back(pod.reserved.pop(0), now)
        wants = self.random.random() < (0.1 if self.mood is None else self.mood)
        if not pod.reserved and wants and (found := pod.purse.reserve(6, now)):
            needed = self.random.randint(0, found)
            self.record.append((self.clock.now, self.clock.now, needed))
            if self.random.random() < 0.9:
                pod.reserved.append(found - needed)

    def _send(self, pod: Pod, ask: Ask, now: float) -> None:
        pod.request = Request(ask, now)

    def rest(self) -> None:
        """Nobody wants anything any more."""
        self.mood = 0.0
        for pod in self.pods:
            pod.stopped_until = 0.0
        for _ in range(400):
            self.step(faults=False)
            self.clock.now += 0.1
