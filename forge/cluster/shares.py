"""How the workers of each queue are split over the pods that serve it. Pure: rows in, rows out, no clock.

`max_workers` of a queue is the cluster's total. Two questions are answered here, one after the other:

**What should be** (`targets`). A pod's quota is the total times its capacity over the capacities of all who serve the
queue. Quotas are seldom whole: each pod gets its quota rounded down, and as many pods get one more (an *extra*) as make
the sum exact: 10 over 3 is 4, 3, 3. So nobody is ever a whole worker away from his quota. Who gets the extras is free
to choose, and is chosen so that

- as few workers as possible move: who has an extra keeps it;
- the extras of all queues are spread: a pod's *burden* is what it has above its quotas, over all its queues. An extra
  moves to another pod of the queue if that has more than one burden less. Without this a pod that came first would
  keep the only worker of each of a hundred queues, and one that came second would have nothing to do;
- any leader computes the same from the same rows, in whatever order they come.

**What may be, now** (`grants`). A pod that is to shrink lets its jobs end, so for a while it holds more than it is to
have. A pod that is to grow gets only what nobody holds: the sum of what all pods hold or may take is never raised above
the total. What a pod holds is what it has said itself (`Share.applied`, `Share.running`); a pod goes by no assignment
before that is written down. See docs/cluster.md for the one exception, pods that have just come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from forge.storage.contract.shares import Cluster, Share, ShareChange

__all__ = ["Held", "changes", "grants", "targets"]

Split = dict[int, int]  # workers by pod

# Burdens are sums of fractions: what differs by less is equal.
_NOISE = 1e-9


class _Queue:
    """One queue while its extras are given out."""

    def __init__(self, name: str, total: int, capacities: Mapping[int, int], present: Mapping[int, int]) -> None:
        self.name = name
        whole = sum(capacities.values())
        self.quota = {pod: total * capacities[pod] / whole for pod in sorted(capacities)}
        self.base = {pod: total * capacities[pod] // whole for pod in self.quota}
        self.extras = total - sum(self.base.values())
        # A quota that is whole gets no extra: it would be a whole worker too many.
        able = {pod for pod in self.quota if total * capacities[pod] % whole}
        self.having = {pod for pod in able if present.get(pod, 0) > self.base[pod]}
        self.lacking = able - self.having

    def split(self) -> Split:
        return {pod: base + (pod in self.having) for pod, base in self.base.items()}


class _Burdens(dict[int, float]):
    """What pods have above their quotas, over all queues, while extras go from one to another."""

    def take(self, queue: _Queue) -> None:
        """From who is burdened most."""
        pod = max(queue.having, key=lambda p: (self[p], p))
        queue.having.remove(pod)
        queue.lacking.add(pod)
        self[pod] -= 1

    def give(self, queue: _Queue) -> None:
        """To who is burdened least."""
        pod = min(queue.lacking, key=lambda p: (self[p], p))
        queue.lacking.remove(pod)
        queue.having.add(pod)
        self[pod] += 1

    def uneven(self, queue: _Queue) -> bool:
        """Whether one of its extras should be another's. Each such move makes the sum of the squares less, so that
        they come to an end."""
        if not queue.having or not queue.lacking:
            return False
        return max(self[p] for p in queue.having) - min(self[p] for p in queue.lacking) > 1 + _NOISE


def targets(
    totals: Mapping[str, int], serving: Mapping[str, Mapping[int, int]], present: Mapping[str, Mapping[int, int]]
) -> dict[str, Split]:
    """Workers by queue and pod, as they should be.

    `totals` has each queue's `max_workers`, `serving` the capacities of the pods that serve it, `present` the workers
    they have. A queue that nobody serves is not in the answer.
    """
    queues = [
        _Queue(name, totals[name], serving[name], present.get(name, {})) for name in sorted(totals) if serving.get(name)
    ]
    burdens = _Burdens()
    for queue in queues:
        for pod, quota in queue.quota.items():
            burdens[pod] = burdens.get(pod, 0.0) + queue.base[pod] + (pod in queue.having) - quota
    for queue in queues:
        while len(queue.having) > queue.extras:
            burdens.take(queue)
    for queue in queues:
        while len(queue.having) < queue.extras:
            burdens.give(queue)
    moved = True
    while moved:
        moved = False
        for queue in queues:
            while burdens.uneven(queue):
                burdens.take(queue)
                burdens.give(queue)
                moved = True
    return {queue.name: queue.split() for queue in queues}


class Held(NamedTuple):
    """What one pod has of one queue."""

    workers: int  # what the leader has given it
    holds: int  # what it may run or still runs, by its own word; more than `workers` while it shrinks


def grants(total: int, aims: Mapping[int, int], held: Mapping[int, Held]) -> Split:
    """What each pod may have now, on the way to `aims`: less at once, more only of what nobody holds.

    Pods that are in `held` alone do not serve the queue any more, and get nothing.
    """
    nothing = Held(0, 0)
    # Who shrinks, or stays: counted with what it holds until it says that it does no longer.
    kept = {pod: min(aims.get(pod, 0), held.get(pod, nothing).workers) for pod in {*aims, *held}}
    taken = {pod: max(kept[pod], held.get(pod, nothing).holds) for pod in kept}
    room = max(0, total - sum(taken.values()))
    for pod in sorted(aims, key=lambda p: (kept[p] - aims[p], p)):  # who lacks most is first
        granted = min(aims[pod], taken[pod] + room)
        if granted > kept[pod]:
            room -= max(0, granted - taken[pod])
            kept[pod] = granted
    return kept


def changes(cluster: Cluster) -> list[ShareChange]:
    """What the leader has to write, given all that the database knows: only rows that differ, in the order in which
    everybody locks them."""
    serving = _serving(cluster)
    rows: dict[str, dict[int, Share]] = {}
    for share in cluster.shares:
        rows.setdefault(share.queue, {})[share.pod] = share
    present = {queue: {pod: _present(share) for pod, share in of.items()} for queue, of in rows.items()}
    totals = {queue: cluster.queues.get(queue, 0) for queue in {*cluster.queues, *rows}}
    aims = targets(totals, serving, present)
    found: list[ShareChange] = []
    for queue, total in totals.items():
        of = rows.get(queue, {})
        held = {pod: Held(_present(share), max(share.applied, share.running)) for pod, share in of.items()}
        split = grants(total, aims.get(queue, {}), held)
        found += _differing(queue, split, of, serving.get(queue, {}))
    return sorted(found)


def _serving(cluster: Cluster) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for pod in cluster.pods:
        for queue in pod.queues if pod.capacity else ():
            found.setdefault(queue, {})[pod.id] = pod.capacity
    return found


def _present(share: Share) -> int:
    """A pod that has had no word yet keeps what it has begun with, as far as that is its part."""
    return share.applied if share.workers is None else share.workers


def _differing(queue: str, split: Split, rows: Mapping[int, Share], serving: Collection[int]) -> Iterable[ShareChange]:
    for pod, workers in split.items():
        row = rows.get(pod)
        if pod not in serving:
            if row is not None and not row.running and not row.applied:
                yield ShareChange(pod, queue, None)
            elif row is not None and row.workers != 0:
                yield ShareChange(pod, queue, 0)
        elif row is None or row.workers != workers:
            yield ShareChange(pod, queue, workers)
