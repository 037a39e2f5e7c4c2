"""What lines cost: the same backlog of no-ops as plain jobs, in partitions, of a thousand keys, and of a single one.

Two pods with --workers workers each (SQLite: one pod) drain each of these in turn, in one run: plain jobs; jobs in 100
partitions; jobs of 1,000 concurrency keys with a limit of two each; and a tenth as many of one such key. Before each
turn all pods have just run some, so that they claim and send ahead as many as they ever do; the clock starts before the
queue is opened, and stops when every job is in history.

Every job notes since when and until when it ran. Keys: plain_jobs_per_s (also jobs_per_s), partition_jobs_per_s,
keys_jobs_per_s, one_key_jobs_per_s (medians), partition_ratio, keys_ratio, one_key_ratio (medians of the turns' ratios
to plain), over_limit (the most jobs of one key at once beyond its limit, over all turns: 0).
"""

from __future__ import annotations

import array
import gc
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import Progress, finish, interleaved, median, options, ratio, say
from bench.ground import Ground, ground
from bench.pod import Project, project
from forge import fastpath
from forge.job import Line, NewJob

KEYS, LIMIT, PARTITIONS = 1000, 2, 100
WARM = 6000  # jobs before each turn
PODS = {"postgres": 2, "sqlite": 1}
FILES = ("began", "ended", "who")
PAD = b"x" * 70  # payloads have about 100 bytes, as in the other benches

LineOf = Callable[[int], Line | None]


def of_key(key: int) -> Line:
    """The line of one key."""
    return Line.of(concurrency_key=f"short:{key}", concurrency=LIMIT)


SHAPES: dict[str, LineOf] = {
    "plain": lambda _: None,
    "partition": lambda i: Line.of(partition=f"tenant-{i % PARTITIONS}"),
    "keys": lambda i: of_key(i % KEYS),
    "one_key": lambda _: of_key(0),
}


def most_at_once(spans: list[tuple[float, float]]) -> int:
    """Of jobs that ran from then until then. One that begins when another ends does not run beside it."""
    now = most = 0
    for _, change in sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans]):
        now += change
        most = max(most, now)
    return most


class Lines:
    """One project, and turns on it."""

    def __init__(self, db: Ground, made: Project, jobs: int, workers: int, impl: str) -> None:
        self._db, self._made, self._jobs, self._workers, self._impl = db, made, jobs, workers, impl
        self.lost = self.duplicates = self.over_limit = 0

    def turn(self, shape: str) -> float:
        """Jobs per second of one shape."""
        jobs, pods = self._jobs // 10 if shape == "one_key" else self._jobs, PODS[self._db.backend]
        self._db.reset()
        self._made.configure(self._workers * pods, modules=("bench.mixed_tasks",))
        with ExitStack() as stack:
            for _ in range(pods):
                stack.enter_context(self._made.pod(self._impl))
            self._made.wait_for_shares()
            self._run(min(WARM, jobs), SHAPES[shape])
            return jobs / self._run(jobs, SHAPES[shape])

    def _run(self, n: int, line: LineOf) -> float:
        self._db.reset()
        self._made.board.clear()
        self._db.hold()
        self._db.fill(self._new(n, line))
        began = time.perf_counter()
        self._db.go()
        with Progress("lines", n) as bar:
            took = self._made.wait(n, bar) - began
        verdict = self._made.verdict(n)
        self.lost, self.duplicates = self.lost + verdict.lost, self.duplicates + verdict.duplicates
        self.over_limit = max(self.over_limit, self._beyond(n, line))
        return took

    @staticmethod
    def _new(n: int, line: LineOf) -> Iterator[NewJob]:
        for i, id_ in enumerate(fastpath.uuid7_many(n)):
            yield NewJob(id_, "short", b'{"i": %d, "pad": "%b"}' % (i, PAD), line=line(i))

    def _beyond(self, n: int, line: LineOf) -> int:
        found = []
        for name in FILES[:2]:
            cells = array.array("d")
            cells.frombytes((self._made.folder / name).read_bytes()[: 8 * n])
            found.append(cells)
        by_key: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        for i, span in enumerate(zip(*found, strict=True)):
            if (of := line(i)) is not None and of.concurrency_key is not None:
                by_key[of.concurrency_key].append(span)
        return max((most_at_once(spans) - LIMIT for spans in by_key.values()), default=0)


def main() -> None:
    """About two minutes."""
    args = options(__doc__ or "", jobs=60_000, rounds=3).parse_args()
    gc.freeze()
    began, most = time.perf_counter(), max(args.jobs, WARM)
    with ground(args.backend) as db, project(db, most) as made:
        for name in FILES:
            (made.folder / name).write_bytes(bytes(8 * most))
        say(f"lines, {args.backend}, {args.jobs:,} jobs a turn, {PODS[args.backend]} pods x {args.workers}")
        lines = Lines(db, made, args.jobs, args.workers, args.impl)
        rates = interleaved({shape: partial(lines.turn, shape) for shape in SHAPES}, args.rounds)
    figures: dict[str, Any] = {f"{shape}_jobs_per_s": median(each) for shape, each in rates.items()}
    figures |= {f"{shape}_ratio": ratio(rates, shape, "plain") for shape in SHAPES if shape != "plain"}
    if lines.over_limit > 0:
        say(f"  WRONG: {lines.over_limit} more of one key than its limit ran at once")
    finish(
        args,
        began,
        args.jobs,
        jobs_per_s=median(rates["plain"]),
        lost=lines.lost,
        duplicates=lines.duplicates,
        server=db.server,
        over_limit=max(lines.over_limit, 0),
        **figures,
    )
    sys.exit(lines.over_limit > 0)


if __name__ == "__main__":
    main()
