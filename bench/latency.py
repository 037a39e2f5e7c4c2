"""How soon an idle pod starts a job, and how soon its end is stored: single jobs, 50 a second.

A job counts as enqueued just before the call that enqueues it (one INSERT and commit), so the commit is part of the
figure. Its start is noted by the handler, its end is seen by asking for its row in history by id, from the moment it
has started and every 0.3 ms: so that is when others can see it, the commit included. The clock is the machine's
monotonic one in all processes.

Keys: p50_ms, p95_ms, p99_ms (enqueue to start), finalized_p50_ms, finalized_p95_ms, finalized_p99_ms (enqueue to end
stored), max_ms, enqueue_p50_ms (of the call itself), rate.
"""

from __future__ import annotations

import gc
import queue
import sys
import threading
import time
from pathlib import Path
from uuid import UUID

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import Progress, finish, options, percentiles, say, table
from bench.ground import Ground, ground
from bench.pod import STALLED, Project, new_jobs, project

WARM_UP = 50  # jobs before those that count: plans, caches, the first fork's pages
LOOK = 0.0003  # seconds between two looks for an end


class Watcher(threading.Thread):
    """Waits for each job to start (which costs a look into memory) and then to be in history."""

    def __init__(self, db: Ground, made: Project, n: int) -> None:
        super().__init__(daemon=True)
        self._db, self._made = db, made
        self.todo: queue.SimpleQueue[tuple[int, UUID, float] | None] = queue.SimpleQueue()
        self.seconds = [0.0] * n  # from enqueue to end stored
        self.missing = 0

    def run(self) -> None:
        """One after another, as they were enqueued."""
        while (job := self.todo.get()) is not None:
            i, id_, began = job
            while not (self._made.board.has_run(i) and self._db.is_done(id_)):
                if time.monotonic() - began > STALLED:
                    self.missing += 1
                    break
                time.sleep(LOOK)
            self.seconds[i] = time.monotonic() - began


def enqueue(db: Ground, watcher: Watcher, n: int, rate: float) -> tuple[list[float], float]:
    """n jobs, each at its time; the seconds each call took, and all together."""
    calls: list[float] = []
    began = time.monotonic()
    with Progress("latency", n) as bar:
        for i in range(n):
            time.sleep(max(0.0, began + i / rate - time.monotonic()))
            t = time.monotonic()
            (job,) = new_jobs(i, 1, "timed", t)
            db.storage.enqueue([job])
            calls.append(time.monotonic() - t)
            watcher.todo.put((i, job.id, t))
            bar.at(i)
    return calls, time.monotonic() - began


def main() -> None:
    """Ten seconds."""
    parser = options(__doc__ or "", jobs=500)
    parser.add_argument("--rate", type=float, default=50.0, help="jobs a second (50)")
    args = parser.parse_args()
    gc.freeze()
    began, n = time.perf_counter(), args.jobs + WARM_UP
    with ground(args.backend) as db, project(db, n, args.workers) as made:
        say(f"latency, {args.backend}, {args.jobs:,} jobs at {args.rate:g}/s on an idle pod")
        watcher = Watcher(db, made, n)
        watcher.start()
        with made.pod(args.impl):
            calls, seconds = enqueue(db, watcher, n, args.rate)
            watcher.todo.put(None)
            watcher.join()
        verdict = made.verdict(n)
        late, ended = list(made.board.late(WARM_UP, n)), watcher.seconds[WARM_UP:]
    started, finalized = percentiles(late), percentiles(ended, "finalized_")
    table(
        ("ms", "p50", "p95", "p99", "max"),
        [
            ("enqueue to start", *started.values(), round(1000 * max(late), 3)),
            ("enqueue to end stored", *finalized.values(), round(1000 * max(ended), 3)),
        ],
    )
    finish(
        args,
        began,
        args.jobs,
        jobs_per_s=round(n / seconds, 1),
        lost=max(verdict.lost, watcher.missing),
        duplicates=verdict.duplicates,
        server=db.server,
        max_ms=round(1000 * max(late), 3),
        enqueue_p50_ms=percentiles(calls[WARM_UP:])["p50_ms"],
        rate=args.rate,
        **started,
        **finalized,
    )


if __name__ == "__main__":
    main()
