"""Offers to producers: an idle pod takes the next job of a queue before it has to ask for it.

A pod whose queue is empty and that has a worker free leaves an offer in the database. Whoever stores a job finds it,
stores the job as claimed by that pod, and sends it there in the notification. Else the notification would wake the pod
up, and it would claim the job and wait for the answer: 1 ms of the 2.8 that a lone job took until it started.

- A taken offer is a claim like any other: its token is on the job's row, the pod ends it, the reaper has it if the pod
  dies. So a taken one must be heard of, or looked for: offers that would not be heard of any more, because the listener
  has another connection, are withdrawn, and what had been taken is given back.
- A job is run only for an offer that stands here, or that is being made: it may come before the word that its offer was
  stored. What is to be withdrawn stands no more from that moment: a job that comes for it goes back, and so it does not
  matter whether the storage, which looks for it too, gives it back first.
- An offer that the pod cannot keep is withdrawn, and each is now and then: if one was lost, another is made.
- Under load there are none: claims in batches cost less.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from forge.job import Claim
from forge.master.pod.presence import Presence
from forge.master.queues.claimer import Claimer
from forge.master.queues.local_queue import LocalQueue
from forge.storage import Storage

__all__ = ["Offers"]

APART = 0.005  # seconds between two offers for a queue: if jobs come more often, claims in batches are cheaper
AFTER_REFUSAL = 1.0  # seconds until the next offer, after one that the database did not take
RENEW = 300.0  # seconds that an offer stands, about
BEATS = 3  # beats that the pod may miss before its offers are not taken any more


class Offer(NamedTuple):
    """An offer that stands, as far as is known."""

    token: int
    channel: str
    until: float  # monotonic


class Offers:
    """The offers of a pod: one for each queue that has a worker free and nothing to do."""

    def __init__(self, storage: Storage, presence: Presence, claimer: Claimer) -> None:
        """Uses the thread of the claimer, which looks for claims that are in doubt."""
        self._storage, self._presence, self._claimer = storage, presence, claimer
        self._channel: str | None = None
        self._closed = False
        self._standing: dict[str, Offer] = {}  # by queue
        self._making: dict[str, Offer] = {}  # by queue: not known to stand yet
        self._not_before: dict[str, float] = {}  # monotonic, by queue
        self._void: set[int] = set()  # tokens to withdraw
        self._withdrawing = False

    def listening(self, channel: str | None) -> None:
        """The listener has another channel, or none: what was sent to the last one is not heard any more."""
        self._channel = channel
        self._end([queue for queue, offer in self._standing.items() if offer.channel != channel])

    def look(self, queue: LocalQueue, heartbeat: float, now: float) -> None:
        """Make an offer for this queue, if it is idle and it is time."""
        name, channel = queue.name, self._channel
        if name in self._standing or channel is None or name in self._making or self._closed or not queue.idle:
            return
        if now < self._not_before.get(name, 0.0):
            return
        self._not_before[name] = now + APART
        who = self._presence.who
        offer = self._making[name] = Offer(who.mint(), channel, now + RENEW * random.uniform(0.5, 1.5))
        self._claimer.thread.send(
            partial(self._storage.offer, who, offer.token, name, channel, BEATS * heartbeat),
            lambda made, error: self._made(name, offer, made, error, now),
        )

    def _made(self, queue: str, offer: Offer, made: bool | None, error: str | None, now: float) -> None:
        if self._making.get(queue) is not offer:
            return  # its job has come already, or the pod is another one
        del self._making[queue]
        if error is not None or not made:
            self._not_before[queue] = now + AFTER_REFUSAL
        if error is not None or (made and offer.channel != self._channel):
            self._void.add(offer.token)
        elif made:
            self._standing[queue] = offer

    def came(self, claims: Sequence[Claim]) -> None:
        """Take in jobs that were claimed for this pod. Those whose offer does not stand any more go back."""
        for claim in claims:
            offers = (each for each in (self._standing, self._making) if claim.queue in each)
            mine = next((each for each in offers if each[claim.queue].token == claim.token), None)
            if mine is not None:
                del mine[claim.queue]
                self._claimer.pushed(claim)
            elif claim.token >> 32 == self._presence.who.pod.id:  # else it is for one that was reaped
                self._claimer.give_back([claim])

    def tokens(self) -> set[int]:
        """The tokens of all offers that may have been taken without this pod's knowing."""
        return {offer.token for each in (self._standing, self._making) for offer in each.values()} | self._void

    def reconsider(self, queues: Iterable[LocalQueue], now: float) -> None:
        """Withdraw offers that this pod cannot keep, and those that have stood for long."""
        able = {queue.name for queue in queues if queue.takes}
        self._end([queue for queue, offer in self._standing.items() if queue not in able or now >= offer.until])

    def close(self) -> None:
        """Withdraw all offers, and make no more."""
        self._closed = True
        self._end(list(self._standing))

    def forget(self) -> None:
        """Forget all offers: the pod was reaped, and is another one now."""
        self._standing.clear()
        self._making.clear()
        self._void.clear()

    def _end(self, queues: Sequence[str]) -> None:
        self._void.update(self._standing.pop(queue).token for queue in queues)
        if self._void and not self._withdrawing:
            self._withdrawing = True
            who, tokens = self._presence.who, list(self._void)
            self._claimer.thread.send(
                lambda: self._storage.withdraw(who, tokens), lambda _, error: self._withdrawn(tokens, error)
            )

    def _withdrawn(self, tokens: Iterable[int], error: str | None) -> None:
        self._withdrawing = False
        if error is None:  # else once more at the next tick
            self._void.difference_update(tokens)
