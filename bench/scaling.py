"""The drain with 1, 2, 4 and 8 workers, and with 1, 2 and 3 pods.

Two kinds of job: one that does nothing, which shows where the master and the database are the limit, and one that waits
2 ms as for an answer from elsewhere, which shows what workers are for (n workers can do 500 n of those a second, minus
what is lost on the way). Pods have --workers workers each. Each line is one drain as in `drain.py`, rounds interleaved.

Keys: noop_by_workers, nap_by_workers, noop_by_pods (jobs/s, medians), nap_efficiency (of 8 workers: share of 500 x 8),
jobs_per_s (the best of the no-op).
"""

from __future__ import annotations

import gc
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import arguments, finish, interleaved, median, say, table
from bench.drain import Drain
from bench.ground import ground
from bench.pod import Project, project

WORKERS, PODS = (1, 2, 4, 8), (1, 2, 3)
NAPS_PER_S = 500  # of one worker, at most


def turn(made: Project, drain: Drain, workers: int, pods: int) -> float:
    """One drain."""
    made.configure(workers * pods)  # over all of them
    return drain.forge(pods)


def main() -> None:
    """About two minutes."""
    args = arguments(__doc__ or "", jobs=50_000, rounds=2)
    gc.freeze()
    began, naps = time.perf_counter(), max(200, args.jobs // 10)
    with ground(args.backend) as db, project(db, args.jobs) as made:
        noop, nap = (Drain(db, made, n, kind, args.impl) for n, kind in ((args.jobs, "noop"), (naps, "nap")))
        say(f"no-op jobs by workers, {args.jobs:,} a turn")
        by_workers = interleaved({str(w): partial(turn, made, noop, w, 1) for w in WORKERS}, args.rounds)
        say(f"jobs that wait 2 ms by workers, {naps:,} a turn")
        naps_by_workers = interleaved({str(w): partial(turn, made, nap, w, 1) for w in WORKERS}, args.rounds)
        say(f"no-op jobs by pods of {args.workers} workers")
        by_pods = interleaved({str(p): partial(turn, made, noop, args.workers, p) for p in PODS}, args.rounds)
    rates: dict[str, Any] = {
        "noop_by_workers": {key: median(each) for key, each in by_workers.items()},
        "nap_by_workers": {key: median(each) for key, each in naps_by_workers.items()},
        "noop_by_pods": {key: median(each) for key, each in by_pods.items()},
    }
    rows = [(f"{w} workers", rates["noop_by_workers"][str(w)], rates["nap_by_workers"][str(w)]) for w in WORKERS]
    rows += [(f"{p} pods x {args.workers}", rates["noop_by_pods"][str(p)], "") for p in PODS]
    table(("", "no-op jobs/s", "2 ms jobs/s"), rows)
    verdicts = noop.verdicts + nap.verdicts
    finish(
        args,
        began,
        args.jobs,
        jobs_per_s=max(*rates["noop_by_workers"].values(), *rates["noop_by_pods"].values()),
        lost=sum(verdict.lost for verdict in verdicts),
        duplicates=sum(verdict.duplicates for verdict in verdicts),
        server=db.server,
        nap_efficiency=round(rates["nap_by_workers"]["8"] / (8 * NAPS_PER_S), 3),
        **rates,
    )


if __name__ == "__main__":
    main()
