"""A drain while somebody's transaction is held open, so that no dead row can be removed, against one without.

The loop is the storage's own, claim and finalize 1000 at a time in one process: nothing but the database is the limit,
so that a claim which has to step over dead rows cannot hide behind workers. With the snapshot held from before the
first claim to after the last end, every claimed row leaves dead versions and index entries behind. Turns are
interleaved. PostgreSQL only: SQLite has no such thing.

Keys: ratio (pinned over unpinned, median over the rounds), pinned_jobs_per_s; jobs_per_s is the unpinned rate.
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import arguments, finish
from bench.ground import ground
from bench.storage import TALLY, pinned


def main() -> None:
    """Three rounds, in about a minute."""
    args = arguments(__doc__ or "", jobs=200_000, rounds=3, backends=("postgres",))
    gc.freeze()
    began = time.perf_counter()
    with ground(args.backend) as db:
        figures = pinned(db.url, db.storage, args.jobs, args.rounds)
    finish(
        args,
        began,
        args.jobs,
        jobs_per_s=figures["jobs_per_s_free"],
        lost=TALLY.lost,
        duplicates=TALLY.duplicates,
        server=db.server,
        ratio=figures["ratio_pinned_xmin"],
        pinned_jobs_per_s=figures["jobs_per_s_pinned"],
    )


if __name__ == "__main__":
    main()
