"""Shares, simulated: many pods come, go, crash and are replaced. python bench/shares.py [--pods N] [--plot]

Pure Python, seeded: no database and no process, but the leader's and the pods' own rules (`forge.cluster.shares`,
`forge.storage.contract.shares`), a second at a time. Every pod looks once a second, the leader every two; a worker that
is to go first ends its job. Says of each scenario how many seconds it takes until nothing changes any more, how many
workers have moved beyond those that had to, how far pods are from their quotas, and how many workers there were too
many, against the bound of docs/cluster.md: one first share of each pod that has come since there were none too many.

--plot writes docs/img/shares.png.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from forge.cluster.shares import changes, targets
from forge.storage.contract.shares import Cluster, Member, QueueSeen, Share
from forge.storage.shared.share_rules import allowed

LEADER_EVERY = 2  # seconds
STALE = 10  # seconds until the rows of a pod that crashed go
JOB_ENDS = 0.3  # the chance that a job ends in a second


@dataclass
class World:
    """All pods and the table, at one second."""

    rng: random.Random
    totals: dict[str, int]
    members: dict[int, Member] = field(default_factory=dict)
    rows: dict[int, dict[str, Share]] = field(default_factory=dict)  # by pod
    crashed: dict[int, int] = field(default_factory=dict)  # pods that do nothing any more: when their rows go
    serving: Counter[str] = field(default_factory=Counter)  # rows of live pods, by queue
    now: int = 0
    number: int = 0
    credit: Counter[str] = field(default_factory=Counter)  # what newcomers have begun with, while there are too many
    moved: int = 0  # workers given or taken by the leader,
    lower: int = 0  # and as many as had to be
    eventful: bool = False  # somebody has come or gone since its last round
    changed_at: int = 0
    worst: float = 0.0  # the most workers too many of a queue, in parts of its bound
    too_many: int = 0  # the most there were over all queues

    def come(self, queues: tuple[str, ...], capacity: int = 1) -> int:
        """A pod starts with its first share."""
        self.number += 1
        self.members[self.number] = Member(self.number, queues, capacity)
        self.rows[self.number] = {}
        self.serving.update(queues)
        self.eventful = True
        for queue in queues:
            first = allowed(self.seen(self.number, queue))
            self.rows[self.number][queue] = Share(self.number, queue, None, first, first)
            self.credit[queue] += first
        return self.number

    def go(self, pod: int) -> None:
        """Its jobs have ended, and it leaves."""
        self.serving.subtract(self.members.pop(pod).queues)
        del self.rows[pod]
        self.eventful, self.changed_at = True, self.now

    def crash(self, pod: int) -> None:
        """Its workers are gone; others learn of it later."""
        self.crashed[pod] = self.now + STALE

    def seen(self, pod: int, queue: str) -> QueueSeen:
        row = self.rows[pod].get(queue)
        others = self.serving[queue] - 1
        total, word = self.totals[queue], row.workers if row else None
        return QueueSeen(queue, total, False, True, word, row and row.applied, row and row.running, others, others > 0)

    def step(self) -> None:
        """A second goes by."""
        self.now += 1
        for pod in [pod for pod, at in self.crashed.items() if at <= self.now]:
            del self.crashed[pod]
            self.go(pod)
        if self.now % LEADER_EVERY == 0:
            self.lead()
        for pod in self.members:
            if pod not in self.crashed:
                self.look(pod)
        self.measure()

    def cluster(self) -> Cluster:
        return Cluster(self.totals, list(self.members.values()), [s for of in self.rows.values() for s in of.values()])

    def lead(self) -> None:
        """One round of the leader."""
        if self.eventful:
            self.lower += self.unavoidable()
            self.eventful = False
        for change in changes(self.cluster()):
            assert change.workers is not None
            row = self.rows[change.pod][change.queue]
            self.moved += abs(change.workers - (row.applied if row.workers is None else row.workers))
            self.rows[change.pod][change.queue] = row._replace(workers=change.workers)
            self.changed_at = self.now

    def look(self, pod: int) -> None:
        """A pod goes by what it is told; who has too many workers waits for their jobs."""
        for queue, row in self.rows[pod].items():
            limit, running = allowed(self.seen(pod, queue)), row.running
            left = sum(self.rng.random() >= JOB_ENDS for _ in range(max(0, running - limit)))
            after = row._replace(applied=limit, running=limit + left)
            if after != row:
                self.rows[pod][queue] = after
                self.changed_at = self.now

    def measure(self) -> None:
        """Whether there are more workers than there may be."""
        running: Counter[str] = Counter()
        for pod, rows in self.rows.items():
            if pod not in self.crashed:
                for queue, row in rows.items():
                    running[queue] += row.running
        over = {queue: n - self.totals[queue] for queue, n in running.items()}
        self.too_many = max(self.too_many, sum(n for n in over.values() if n > 0))
        for queue, n in over.items():
            if n <= 0:
                self.credit[queue] = 0
            else:
                self.worst = max(self.worst, n / self.credit[queue] if self.credit[queue] else float("inf"))

    def running(self) -> int:
        return sum(s.running for pod, of in self.rows.items() if pod not in self.crashed for s in of.values())

    @property
    def settled(self) -> bool:
        """Nothing has changed for two rounds, and nothing is about to."""
        busy = any(row.running > row.applied for of in self.rows.values() for row in of.values())
        return self.now - self.changed_at > 2 * LEADER_EVERY and not self.crashed and not busy

    def settle(self) -> None:
        """Until then."""
        while not self.settled:
            self.step()

    def loads(self) -> tuple[float, int]:
        """How far a pod is from the sum of its quotas at most, and how many workers two pods of a queue differ by."""
        whole = dict.fromkeys(self.totals, 0)
        for member in self.members.values():
            for queue in member.queues:
                whole[queue] += member.capacity
        spread: dict[str, list[int]] = {}
        off = 0.0
        for pod, member in self.members.items():
            quota = sum(self.totals[q] * member.capacity / whole[q] for q in member.queues)
            off = max(off, abs(sum(s.running for s in self.rows[pod].values()) - quota))
            for queue, row in self.rows[pod].items():
                spread.setdefault(queue, []).append(row.running)
        return off, max(max(of) - min(of) for of in spread.values())

    def unavoidable(self) -> int:
        """Workers that must move for every queue to be split fairly, each looked at alone."""
        serving: dict[str, dict[int, int]] = {}
        present: dict[str, dict[int, int]] = {}
        for pod, member in self.members.items():
            for queue in member.queues:
                serving.setdefault(queue, {})[pod] = member.capacity
                row = self.rows[pod][queue]
                present.setdefault(queue, {})[pod] = row.applied if row.workers is None else row.workers
        total = 0
        for queue, pods in serving.items():
            aim = targets({queue: self.totals[queue]}, {queue: pods}, present)[queue]
            total += sum(abs(aim[pod] - present[queue][pod]) for pod in pods)
        return total


def new_world(pods: int, queues: int, each: int, seed: int) -> World:
    """A cluster that has settled: `each` queues per pod, of all sizes."""
    rng = random.Random(seed)
    names = [f"q{n:04}" for n in range(queues)]
    world = World(rng, {name: rng.choice([1, 2, 5, 10, 50, 200]) for name in names})
    for _ in range(pods):
        world.come(tuple(rng.sample(names, min(each, queues))))
    for name in names:  # each is somebody's
        if not world.serving[name]:
            world.come((name, *rng.sample([n for n in names if n != name], min(each, queues) - 1)))
    world.settle()
    world.moved, world.lower, world.worst, world.too_many, world.changed_at = 0, 0, 0.0, 0, world.now
    return world


Scenario = Callable[[World], Iterator[None]]  # a second of it at a time


def rolling_deploy(world: World) -> Iterator[None]:
    """Every pod is replaced, a twentieth at a time: the new ones come, a few seconds later the old ones leave."""
    old = list(world.members)
    batch = max(1, len(old) // 20)
    while old:
        leaving, old = old[:batch], old[batch:]
        for pod in leaving:
            world.come(world.members[pod].queues)
        for _ in range(5):
            yield
        for pod in leaving:
            world.go(pod)
        yield


def crashes(world: World) -> Iterator[None]:
    """A tenth of the pods crash at once."""
    for pod in world.rng.sample(sorted(world.members), max(1, len(world.members) // 10)):
        world.crash(pod)
    yield


def one_comes(world: World) -> Iterator[None]:
    """One pod more."""
    world.come(world.members[min(world.members)].queues)
    yield


def one_goes(world: World) -> Iterator[None]:
    """One pod less."""
    pods = Counter(world.serving)
    world.go(next(p for p, m in world.members.items() if all(pods[q] > 1 for q in m.queues)))
    yield


def doubles(world: World) -> Iterator[None]:
    """Twice as many pods, all at once."""
    for pod in list(world.members):
        world.come(world.members[pod].queues)
    yield


SCENARIOS: dict[str, Scenario] = {
    "one comes": one_comes,
    "one goes": one_goes,
    "a tenth crashes": crashes,
    "twice as many": doubles,
    "rolling deploy": rolling_deploy,
}


def simulate(name: str, pods: int, queues: int, each: int = 8, seed: int = 1) -> dict[str, Any]:
    """One scenario from beginning to end."""
    world = new_world(pods, queues, each, seed)
    total, began = sum(world.totals[q] for q in world.totals), world.now
    running: list[int] = [world.running()]
    for _ in SCENARIOS[name](world):
        world.changed_at = world.now
        world.step()
        running.append(world.running())
    last = world.now
    while not world.settled:
        world.step()
        running.append(world.running())
    off, differ = world.loads()
    return {
        "scenario": name,
        "pods": len(world.members),
        "queues": queues,
        "workers": total,
        "seconds": world.now - began,
        "settled_after": world.changed_at - last,
        "moved": world.moved,
        "moved_unavoidably": world.lower,
        "off_quota": round(off, 3),
        "differ": differ,
        "too_many": world.too_many,
        "of_bound": round(world.worst, 3),
        "running": running,
        "stays": not changes(world.cluster()),
    }


def draw(results: list[dict[str, Any]], out: Path) -> None:
    """Workers over time, and what moved."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.6))
    for result, colour in zip(results, ("#475569", "#a16207", "#c2410c", "#7c3aed", "#0f766e"), strict=False):
        parts = [100 * n / result["workers"] for n in result["running"]]
        left.plot(range(len(parts)), parts, label=result["scenario"], color=colour, linewidth=1.4)
    left.axhline(100, color="#a8a29e", linewidth=0.8)
    left.set_xlim(0, 45)
    left.set(title="workers running, of all queues' max_workers", xlabel="seconds", ylabel="%")
    left.legend(fontsize=7)
    names = [result["scenario"].replace(" ", "\n") for result in results]
    places = range(len(results))
    for shift, key, colour in ((-0.2, "moved_unavoidably", "#a8a29e"), (0.2, "moved", "#c2410c")):
        right.bar([i + shift for i in places], [max(1, r[key]) for r in results], 0.4, label=key.replace("_", " "),
                  color=colour)  # fmt: skip
    right.set_yscale("log")
    right.set_xticks(list(places), names, fontsize=7)
    right.set(title="workers moved", ylabel="workers")
    right.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(out, dpi=130)
    plt.close(figure)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--queues", type=int, default=2000)
    parser.add_argument("--each", type=int, default=8, help="queues that a pod serves (8)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", action="store_true", help="write docs/img/shares.png")
    args = parser.parse_args()
    results = []
    for name in SCENARIOS:
        began = time.monotonic()
        results.append(simulate(name, args.pods, args.queues, args.each, args.seed))
        shown = {key: value for key, value in results[-1].items() if key != "running"}
        print(json.dumps(shown | {"took": round(time.monotonic() - began, 1)}), flush=True)
    if args.plot:
        draw(results, ROOT / "docs/img/shares.png")


if __name__ == "__main__":
    main()
