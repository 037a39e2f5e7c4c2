"""What a claim costs with 10,000 to 5,000,000 jobs pending.

Each size has fresh tables, filled in bulk: jobs that have been claimed and given back lie scattered, which is another
matter. A turn is 60 claims of 100 jobs each through the storage, its low-water mark and all; what was claimed is given
back at the end, and everything must be there still. The smallest size is measured first, in between and last, because
machines drift.

Keys: ratio (time of a claim at --jobs pending over that at 10,000), claim_ms (by size), claim_ms_small, claim_ms_large,
pending (--jobs); jobs and jobs_per_s are those claimed in a turn at the largest size. lost: jobs missing afterwards;
duplicates: jobs claimed twice.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import Progress, arguments, finish, say, table
from bench.ground import Ground, ground
from bench.pod import new_jobs
from forge.storage.contract import LowWater

SMALL, BATCH, CLAIMS = 10_000, 100, 60
BULK = 100_000


class Backlog:
    """Turns at many sizes."""

    def __init__(self, db: Ground) -> None:
        self._db = db
        self.times: dict[int, list[float]] = {}  # by size: the median claim of each turn
        self.lost = self.duplicates = 0

    def turn(self, size: int) -> None:
        """Fill, claim, give back, count."""
        db, storage = self._db, self._db.storage
        db.reset()
        with Progress(f"filling {size:,}", size) as bar:
            for first in range(0, size, BULK):
                storage.enqueue(new_jobs(first, min(BULK, size - first)))
                bar.at(first)
        who, water = storage.register("bench", ["default"], "localhost", 1), LowWater()
        times, ids = [], []
        for _ in range(CLAIMS):
            began = time.perf_counter()
            claims = storage.claim(who, "default", BATCH, water)
            times.append(time.perf_counter() - began)
            ids += [claim.id for claim in claims]
        storage.deregister(who)
        self.duplicates += len(ids) - len(set(ids))
        self.lost += size - db.live() + CLAIMS * BATCH - len(ids)
        self.times.setdefault(size, []).append(statistics.median(times))
        say(f"  {size:>9,} pending  a claim of {BATCH} takes {1000 * self.times[size][-1]:.3f} ms")

    def ms(self, size: int) -> float:
        """Median over the turns."""
        return round(1000 * statistics.median(self.times[size]), 3)


def main() -> None:
    """Two minutes, most of it filling."""
    args = arguments(__doc__ or "", jobs=5_000_000, rounds=2)
    gc.freeze()
    began = time.perf_counter()
    large = max(SMALL, args.jobs)
    between = [size for size in (100_000, 1_000_000) if size < large]
    with ground(args.backend) as db:
        turns = Backlog(db)
        turns.turn(SMALL)
        turns.times.clear()  # that was to warm up
        for size in between:
            turns.turn(size)
        for size in [SMALL, large] * args.rounds + [SMALL]:
            turns.turn(size)
    sizes = sorted(turns.times)
    few, many = turns.ms(SMALL), turns.ms(large)
    table(
        ("pending", "ms a claim", "x"),
        [(f"{size:,}", turns.ms(size), round(turns.ms(size) / few, 2)) for size in sizes],
    )
    finish(
        args,
        began,
        CLAIMS * BATCH,
        jobs_per_s=round(1000 * BATCH / many),
        lost=turns.lost,
        duplicates=turns.duplicates,
        server=db.server,
        ratio=round(many / few, 3),
        pending=large,
        claim_ms_small=few,
        claim_ms_large=many,
        claim_ms={str(size): turns.ms(size) for size in sizes},
    )


if __name__ == "__main__":
    main()
