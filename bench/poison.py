"""A backlog of short jobs with some among them that kill their worker, against the same backlog without.

Each poison job takes down a worker with hundreds of other jobs in hand; those become suspects and run again one by one,
in a worker of their own, while everybody else goes on. The clock stops when all ordinary jobs have run.

Keys: ratio_poisoned (rate of the ordinary jobs with poison over the rate without, median of the rounds), jobs_per_s and
poisoned_jobs_per_s, crashes (of all poison jobs; three each), blamed (ordinary jobs with a crash or an error), lost,
duplicates (ordinary jobs that ran again, beyond those whose worker died before it could say that they had run).
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import Progress, finish, interleaved, median, options, ratio, say
from bench.ground import Ground, ground
from bench.pod import Project, new_jobs, project
from forge.job import NewJob
from forge.protocol import MOST_UNANSWERED


class Poisoned:
    """The turns of both sides, and what was found afterwards."""

    def __init__(self, db: Ground, made: Project, n: int, poison: int, impl: str) -> None:
        self._db, self._made, self._n, self._poison, self._impl = db, made, n, poison, impl
        self.crashes: list[int] = []
        self.blamed = self.lost = self.duplicates = 0

    def clean(self) -> float:
        """Ordinary jobs per second."""
        return self._turn(0)

    def poisoned(self) -> float:
        """The same with the others among them."""
        return self._turn(self._poison)

    def _turn(self, poison: int) -> float:
        db, n = self._db, self._n
        db.reset()
        self._made.board.clear()
        db.hold()
        db.fill(_mixed(n, poison))
        with self._made.pod(self._impl), Progress("poison", n) as bar:
            began = time.perf_counter()
            db.go()
            while (reached := self._made.board.reached(n)) < n:
                bar.at(reached)
                time.sleep(0.005)
            seconds = time.perf_counter() - began
            self._made.wait(n, bar)
        if poison:
            self.crashes.append(int(db.value(f"select sum(crashes) from {db.prefix}job_history where kind = 'poison'")))
        blamed = "kind <> 'poison' and (crashes > 0 or errors is not null)"
        self.blamed += int(db.value(f"select count(*) from {db.prefix}job_history where {blamed}"))
        lost, again = self._made.verdict(n)
        self.lost += lost
        # A dead worker may have run as many without having said so.
        self.duplicates += max(0, again - poison * MOST_UNANSWERED)
        return n / seconds


def _mixed(n: int, poison: int) -> Iterator[NewJob]:
    """Ordinary jobs with the others spread evenly among them."""
    ordinary = new_jobs(0, n)
    for bad in new_jobs(n, poison, "poison"):
        yield from itertools.islice(ordinary, n // (poison + 1))
        yield bad
    yield from ordinary


def main() -> None:
    """Four rounds, in about a minute."""
    parser = options(__doc__ or "", jobs=400_000, rounds=4)
    parser.add_argument("--poison", type=int, default=1, help="jobs that kill their worker")
    args = parser.parse_args()
    gc.freeze()
    began = time.perf_counter()
    with ground(args.backend) as db, project(db, args.jobs, args.workers) as made:
        say(f"poison, {args.backend}, {args.jobs:,} jobs a turn, {args.poison} that kill, {args.workers} workers")
        turns = Poisoned(db, made, args.jobs, args.poison, args.impl)
        rates = interleaved({"clean": turns.clean, "poisoned": turns.poisoned}, args.rounds)
    finish(
        args,
        began,
        args.jobs,
        ratio_poisoned=ratio(rates, "poisoned", "clean"),
        jobs_per_s=median(rates["clean"]),
        poisoned_jobs_per_s=median(rates["poisoned"]),
        crashes=max(turns.crashes, default=0),
        blamed=turns.blamed,
        lost=turns.lost,
        duplicates=turns.duplicates,
        server=db.server,
    )


if __name__ == "__main__":
    main()
