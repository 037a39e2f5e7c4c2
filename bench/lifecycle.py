"""From enqueue to history, with a producer and a master at work at the same time, against the same by hand.

One process enqueues in bulk (5,000 jobs a transaction; `Storage.enqueue`, which is what every bulk enqueue of the
client ends in) while a master with its workers claims, runs and finalizes. Both are up before the clock starts, which
is when the producer is told to begin; it stops when every job has run and none is live. By hand: one process that
writes the same rows by COPY and one that claims and finalizes 1000 at a time, running nothing. Both sides take turns.

Keys: jobs_per_s and ratio_to_raw (medians over the rounds), raw_jobs_per_s, produced_per_s (of the producer alone,
while the workers work), wal_bytes_per_job and commits_per_job (from insert to history; PostgreSQL only).
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import Progress, finish, interleaved, median, options, ratio, say
from bench.ground import Ground, ground
from bench.pod import Project, Verdict, project
from bench.producer import producing


class Lifecycle:
    """The turns of both sides, and what was counted on the way."""

    def __init__(self, db: Ground, made: Project, n: int, kind: str, impl: str) -> None:
        self._db, self._made, self._n, self._kind, self._impl = db, made, n, kind, impl
        self.verdicts: list[Verdict] = []
        self.spent: list[tuple[float, float]] = []  # bytes of log and commits, per job
        self.produced: list[float] = []  # per second

    def forge(self) -> float:
        """Jobs per second of a producer and a master."""
        n, db = self._n, self._db
        db.reset()
        db.go()
        self._made.board.clear()
        with producing(self._made, n, kind=self._kind) as producer, self._made.pod(self._impl):
            before = db.usage()
            with Progress("lifecycle", n) as bar:
                began = time.perf_counter()
                producer.go()
                seconds = self._made.wait(n, bar, also=producer.note) - began
            after = db.usage()
            self.produced.append(n / producer.join())
        self.spent.append(((after[0] - before[0]) / n, (after[1] - before[1]) / n))
        self.verdicts.append(self._made.verdict(n))
        return n / seconds

    def raw(self) -> float:
        """Jobs per second of COPY and of claim + finalize at once."""
        self._db.reset()
        raw = self._db.raw()
        with producing(self._made, self._n, raw=True) as producer:
            began = time.perf_counter()
            producer.go()
            assert raw.drain(1000, self._n) == self._n
            seconds = time.perf_counter() - began
            producer.join()
        raw.close()
        return self._n / seconds

    def figures(self) -> dict[str, Any]:
        """Everything but the rates."""
        found: dict[str, Any] = {"produced_per_s": median(self.produced)}
        if self._db.backend == "postgres":
            found["wal_bytes_per_job"] = round(statistics.median(wal for wal, _ in self.spent))
            found["commits_per_job"] = round(statistics.median(commits for _, commits in self.spent), 4)
        found["lost"] = sum(verdict.lost for verdict in self.verdicts)
        found["duplicates"] = sum(verdict.duplicates for verdict in self.verdicts)
        return found


def main() -> None:
    """Four rounds, in about half a minute."""
    parser = options(__doc__ or "", jobs=100_000, rounds=4)
    parser.add_argument("--typed", action="store_true", help="a typed task instead of a plain handler")
    args = parser.parse_args()
    gc.freeze()
    began = time.perf_counter()
    with ground(args.backend) as db, project(db, args.jobs, args.workers) as made:
        say(f"lifecycle, {args.backend}, {args.jobs:,} jobs a turn, {args.workers} workers")
        turns = Lifecycle(db, made, args.jobs, "typed" if args.typed else "noop", args.impl)
        rates = interleaved({"forge": turns.forge, "raw": turns.raw}, args.rounds)
        figures = turns.figures() | {"workers": args.workers}
    finish(
        args,
        began,
        args.jobs,
        jobs_per_s=median(rates["forge"]),
        ratio_to_raw=ratio(rates, "forge", "raw"),
        raw_jobs_per_s=median(rates["raw"]),
        server=db.server,
        **figures,
    )


if __name__ == "__main__":
    main()
