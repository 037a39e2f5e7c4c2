"""The leader's part of rebalancing: read what there is, write what should change. What pods make of it is theirs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

from forge.cluster.service import Service, say
from forge.cluster.shares import changes
from forge.storage.contract.shares import Cluster, ShareStore

__all__ = ["Rebalance"]

EVERY, ALONE = 2.0, 5.0  # seconds between rounds: of several pods, and of one, which has all it may have without a word
LOOK_EVERY = 60.0  # seconds between looks for queues that nobody serves: one is told of when two looks have found it,
TELL_AGAIN = 3600.0  # and again after this long


class Rebalance(Service):
    """Splits the workers of every queue over the pods that serve it."""

    name = "rebalance"
    every = EVERY
    leader_only = True
    urgent = True

    def __init__(self, shares: ShareStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._shares, self._clock = shares, clock
        self._looked_at = -LOOK_EVERY
        self._unserved: set[str] = set()
        self._told: dict[str, float] = {}
        self._settled: Cluster | None = None  # in which there was nothing to change

    def run_once(self, term: int | None) -> str | None:
        """`LostLease` if another pod leads by now."""
        assert term is not None, "only a leader splits"
        cluster = self._shares.cluster()
        told = [] if cluster == self._settled else changes(cluster)
        self._settled = None if told else cluster
        self.every = EVERY if told or len(cluster.pods) > 1 else ALONE
        if told:
            self._shares.assign(term, told)
        self._look_for_unserved()
        as_it_was = {(share.pod, share.queue): share.applied for share in cluster.shares}
        queues = {change.queue for change in told if change.workers != as_it_was.get(change[:2], 0)}
        return f"workers split anew: {_named(queues)}" if queues else None

    def _look_for_unserved(self) -> None:
        """Pods that restart are gone for a moment: a queue is told of when it was nobody's at two looks."""
        now = self._clock()
        if now - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = now
        found = self._shares.undeclared()
        for queue, waits in found.items():
            if queue in self._unserved and now - self._told.get(queue, -TELL_AGAIN) >= TELL_AGAIN:
                self._told[queue] = now
                waiting = ", and jobs wait in it" if waits else ""
                where = f"name it in forge.toml ([queues.{queue}]) or FORGE_QUEUES of a pod"
                say(self.name, f"nobody serves queue {queue}{waiting}; {where}", logging.WARNING)
        self._unserved = set(found)
        self._told = {queue: at for queue, at in self._told.items() if queue in found}


def _named(queues: Collection[str], most: int = 5) -> str:
    shown = sorted(queues)
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more
