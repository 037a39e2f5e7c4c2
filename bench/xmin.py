"""A drain while somebody's transaction is held open, so that no dead row can be removed, against one without.

The loop is the storage's own, claim and finalize 1000 at a time in one process: nothing but the database is the limit,
so that a claim which has to step over dead rows cannot hide behind workers. With the snapshot held from before the
first claim to after the last end, every claimed row leaves dead versions and index entries behind. Turns are
interleaved. On SQLite what a held snapshot keeps from being done is to start the log over.

Keys: ratio (pinned over unpinned, median over the rounds), pinned_jobs_per_s; jobs_per_s is the unpinned rate.
"""

from __future__ import annotations

import gc
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import arguments, finish, interleaved, median, ratio, say
from bench.ground import Ground, drain, ground
from bench.pod import new_jobs


def pinned(db: Ground, n: int, rounds: int) -> dict[str, Any]:
    """The same drain with and without a snapshot held open throughout."""
    lost = duplicates = 0

    def turn(held: AbstractContextManager[None]) -> float:
        nonlocal lost, duplicates
        db.reset()
        db.fill(new_jobs(0, n))
        with held:
            began = time.perf_counter()
            drain(db.storage, 1000)
            seconds = time.perf_counter() - began
        lost, duplicates = lost + max(0, n - db.done()), duplicates + max(0, db.done() - n)
        return n / seconds

    say(f"pinned xmin, {n:,} jobs a turn")
    sides = {"free": lambda: turn(nullcontext()), "pinned": lambda: turn(db.snapshot_held())}
    rates = interleaved(sides, rounds)
    return {
        "ratio": ratio(rates, "pinned", "free"),
        "jobs_per_s": median(rates["free"]),
        "pinned_jobs_per_s": median(rates["pinned"]),
        "lost": lost,
        "duplicates": duplicates,
    }


def main() -> None:
    """Three rounds, in about a minute."""
    args = arguments(__doc__ or "", jobs=200_000, rounds=3)
    gc.freeze()
    began = time.perf_counter()
    with ground(args.backend) as db:
        figures = pinned(db, args.jobs, args.rounds)
    finish(args, began, args.jobs, server=db.server, **figures)


if __name__ == "__main__":
    main()
