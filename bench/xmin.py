"""Work while somebody's transaction is held open, so that no dead row can be removed, against work without.

First a drain. The loop is the storage's own, claim and finalize 1000 at a time in one process: nothing but the database
is the limit, so that a claim which has to step over dead rows cannot hide behind workers. With the snapshot held from
before the first claim to after the last end, every claimed row leaves dead versions and index entries behind. Turns are
interleaved. On SQLite what a held snapshot keeps from being done is to start the log over.

Then a busy pod: 256 jobs in flight that wait 1 ms each, on event loops, and a producer in a process of its own that
stores batches of 128 as fast as they are run (5,000 wait at most). The rate is taken over --stretch seconds without a
snapshot, and over as many with one that has been held for --held seconds and still is; then all starts anew.

Keys: ratio (pinned over unpinned drain, median over the rounds), pinned_jobs_per_s; jobs_per_s is the unpinned rate.
ratio_busy (the same of the pod), busy_jobs_per_s, busy_pinned_jobs_per_s.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import Progress, finish, interleaved, median, options, ratio, say
from bench.ground import Ground, drain, ground
from bench.pod import Project, new_jobs, project
from bench.producer import producing, stored_so_far


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


IN_FLIGHT = 256
BATCH = 128
AHEAD = 5_000  # jobs that wait for the pod
MOST_PER_S = 200_000  # that a pod could run; the scoreboard has as many cells
WARM_UP = 5.0  # seconds


def busy(db: Ground, args: argparse.Namespace) -> dict[str, Any]:
    """A pod under load, before a snapshot is taken and while it is held."""
    lost = duplicates = 0
    rates: dict[str, list[float]] = {"free": [], "pinned": []}
    cells = round(MOST_PER_S * (WARM_UP + args.held + 2 * args.stretch + 10))
    for turn in range(max(1, args.rounds - 1)):
        db.reset()
        with project(db, cells, args.workers) as made:
            each = IN_FLIGHT // args.workers
            made.configure(args.workers, more=f'worker = "async"\nconcurrency = {each}\n')
            free, held = _busy_turn(db, made, args)
            stored = stored_so_far(db, made.folder / "producer", BATCH, cells)
            with made.pod(args.impl), Progress("rest", stored) as bar:
                made.wait(stored, bar)
            verdict = made.verdict(stored)
        lost, duplicates = lost + verdict.lost, duplicates + verdict.duplicates
        rates["free"].append(free)
        rates["pinned"].append(held)
        say(f"  busy {turn + 1}  free {free:>10,.0f} /s  held for {args.held:.0f} s {held:>10,.0f} /s")
    return {
        "ratio_busy": ratio(rates, "pinned", "free"),
        "busy_jobs_per_s": median(rates["free"]),
        "busy_pinned_jobs_per_s": median(rates["pinned"]),
        "lost": lost,
        "duplicates": duplicates,
    }


def _busy_turn(db: Ground, made: Project, args: argparse.Namespace) -> tuple[float, float]:
    """Jobs a second without and with a snapshot held. What is left then, the next pod will run."""
    cells = made.board.jobs

    def rate(seconds: float) -> float:
        first, began = made.board.reached(cells), time.perf_counter()
        time.sleep(seconds)
        producer.must_go_on()
        return (made.board.reached(cells) - first) / (time.perf_counter() - began)

    with made.pod(args.impl), producing(made, cells, chunk=BATCH, kind="brief", ahead=AHEAD) as producer:
        producer.go()
        rate(min(WARM_UP, args.stretch))
        free = rate(args.stretch)
        with db.snapshot_held():
            rate(args.held)
            return free, rate(args.stretch)


def main() -> None:
    """Three rounds, and two of the busy pod: in about five minutes."""
    parser = options(__doc__ or "", jobs=200_000, rounds=3)
    parser.add_argument("--held", type=float, default=60.0, help="seconds that the snapshot is held before (60)")
    parser.add_argument("--stretch", type=float, default=20.0, help="seconds over which a rate is taken (20)")
    parser.add_argument("--only-busy", action="store_true", help="no drains")
    args = parser.parse_args()
    gc.freeze()
    began = time.perf_counter()
    with ground(args.backend) as db:
        load = busy(db, args)
        figures = load | {"jobs_per_s": load["busy_jobs_per_s"]}
        if not args.only_busy:
            figures |= pinned(db, args.jobs, args.rounds)
            for name in ("lost", "duplicates"):
                figures[name] += load[name]
    finish(args, began, args.jobs, server=db.server, **figures)


if __name__ == "__main__":
    main()
