"""Short jobs with a few long ones among them: does any of them wait while a worker has nothing to do?

A backlog of no-ops with three jobs of 6 s at random places, for one pod with two workers, two pods with one each, and
two pods with two each (SQLite: one pod with two workers, and with four). --pods and --workers for one of these alone.
All pods have just run no-ops, so that they claim and send ahead as many as they ever do. Every job notes who ran it and
when.

A job is late if it waited for more than a second in which some worker was idle: had no job, and not only for the moment
between two. Keys: late_while_idle (short jobs, of all turns, that were), long_late_while_idle (the same of the long
ones, which then ran one after the other), late_share (of the short ones), most_idle_wait_s (the longest such wait of
any job), slowest_s (until all had ended: the slowest turn).
"""

from __future__ import annotations

import array
import gc
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import Progress, finish, options, say
from bench.ground import Ground, ground
from bench.pod import Project, project
from forge import fastpath
from forge.job import NewJob

LONG_JOBS = 3
LATE = 1.0  # seconds
MOMENT = 0.05  # seconds between two jobs of a worker that do not make it an idle one
WARM = 3000  # no-ops before each turn
# (pods, workers of each). A SQLite file has room for one pod.
SHAPES = {"postgres": ((1, 2), (2, 1), (2, 2)), "sqlite": ((1, 2), (1, 4))}
FILES = ("began", "ended", "who")

Span = tuple[float, float]


class Ran(NamedTuple):
    """One job."""

    began: float  # monotonic
    ended: float
    who: int


class Waits(NamedTuple):
    """Seconds that the jobs of a turn waited while some worker was idle."""

    short: list[float]
    long: list[float]

    @property
    def late(self) -> tuple[int, int]:
        """How many waited too long."""
        return sum(wait > LATE for wait in self.short), sum(wait > LATE for wait in self.long)


def idle_times(jobs: Sequence[Ran], workers: int, since: float, until: float) -> list[Span]:
    """When at least one worker was idle, in order and without overlaps."""
    by_worker: defaultdict[int, list[Ran]] = defaultdict(list)
    for job in sorted(jobs):
        by_worker[job.who].append(job)
    if len(by_worker) < workers:
        return [(since, until)]  # one has not had a single job
    gaps = [gap for mine in by_worker.values() for gap in _gaps(mine, since, until)]
    merged: list[Span] = []
    for start, end in sorted(gaps):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _gaps(jobs: Sequence[Ran], since: float, until: float) -> Iterator[Span]:
    at = since
    for job in jobs:
        if job.began - at > MOMENT:
            yield at, job.began
        at = max(at, job.ended)
    if until - at > MOMENT:
        yield at, until


def idle_wait(due: float, began: float, idle: Sequence[Span]) -> float:
    """Seconds between the two in which somebody was idle."""
    return sum(max(0.0, min(began, end) - max(due, start)) for start, end in idle if start < began and end > due)


class Mixed:
    """One project, and turns on it."""

    def __init__(self, db: Ground, made: Project, jobs: int, seconds: float, impl: str) -> None:
        self._db, self._made, self._jobs, self._seconds, self._impl = db, made, jobs, seconds, impl
        self.lost = self.duplicates = 0
        self.total = jobs + LONG_JOBS

    def turn(self, pods: int, workers: int, seed: int) -> tuple[Waits, float]:
        """One backlog; the waits, and the seconds until all had ended."""
        self._db.reset()
        self._made.configure(workers * pods, modules=("bench.mixed_tasks",))
        with ExitStack() as stack:
            for _ in range(pods):
                stack.enter_context(self._made.pod(self._impl))
            self._made.wait_for_shares()
            self._run([False] * WARM)
            places = random.Random(seed).sample(range(self.total), LONG_JOBS)
            return self._run([i in places for i in range(self.total)], workers * pods)

    def _run(self, longs: Sequence[bool], workers: int = 0) -> tuple[Waits, float]:
        self._db.reset()
        self._made.board.clear()
        self._db.hold()
        self._db.fill(self._new(longs))
        due, began = time.monotonic(), time.perf_counter()
        self._db.go()
        with Progress("mixed", len(longs)) as bar:
            took = self._made.wait(len(longs), bar) - began
        verdict = self._made.verdict(len(longs))
        self.lost, self.duplicates = self.lost + verdict.lost, self.duplicates + verdict.duplicates
        jobs = self._seen(len(longs))
        idle = idle_times(jobs, workers, due, max(job.ended for job in jobs))
        waits = [idle_wait(due, job.began, idle) for job in jobs]
        each = [[wait for wait, long in zip(waits, longs, strict=True) if long is kind] for kind in (False, True)]
        return Waits(*each), took

    def _new(self, longs: Sequence[bool]) -> Iterator[NewJob]:
        for i, id_ in enumerate(fastpath.uuid7_many(len(longs))):
            kind = "long" if longs[i] else "short"
            yield NewJob(id_, kind, b'{"i": %d, "seconds": %.3f}' % (i, self._seconds))

    def _seen(self, n: int) -> list[Ran]:
        found = []
        for name in FILES:
            cells = array.array("d")
            cells.frombytes((self._made.folder / name).read_bytes()[: 8 * n])
            found.append(cells)
        return [Ran(began, ended, int(who)) for began, ended, who in zip(*found, strict=True)]


def main() -> None:
    """About two minutes."""
    parser = options(__doc__ or "", jobs=4000, rounds=3, workers=0)
    parser.add_argument("--pods", type=int, default=0, help="pods, of --workers workers each (three shapes in turn)")
    parser.add_argument("--seconds", type=float, default=6.0, help="that a long job takes (6)")
    args = parser.parse_args()
    gc.freeze()
    began, shapes = time.perf_counter(), SHAPES[args.backend]
    if args.pods or args.workers:
        shapes = ((args.pods or 1, args.workers or 1),)
    waits, took = Waits([], []), []
    most = max(args.jobs + LONG_JOBS, WARM)
    with ground(args.backend) as db, project(db, most) as made:
        for name in FILES:
            (made.folder / name).write_bytes(bytes(8 * most))
        mixed = Mixed(db, made, args.jobs, args.seconds, args.impl)
        for turn in range(args.rounds):
            for pods, workers in shapes:
                found, seconds = mixed.turn(pods, workers, seed=turn)
                waits.short.extend(found.short)
                waits.long.extend(found.long)
                took.append(seconds)
                late, worst = found.late, max(*found.short, *found.long)
                late_ones = f"{late[0]} short and {late[1]} long late"
                say(f"  {pods} pods x {workers}  {seconds:5.1f} s  {late_ones}, {worst:.2f} s at most")
    late = waits.late
    finish(
        args,
        began,
        mixed.total * len(took),
        jobs_per_s=mixed.total * len(took) / sum(took),
        lost=mixed.lost,
        duplicates=mixed.duplicates,
        server=db.server,
        seconds=sum(took),
        late_while_idle=late[0],
        long_late_while_idle=late[1],
        late_share=round(late[0] / len(waits.short), 4),
        most_idle_wait_s=round(max(*waits.short, *waits.long), 3),
        slowest_s=round(max(took), 2),
    )


if __name__ == "__main__":
    main()
