"""How soon a handler that runs on some pod is stopped when somebody elsewhere cancels its job.

Two masters share a queue (one on SQLite). A job runs until it sees that it is cancelled (`ctx.cancelled`, looked at
every millisecond); this process, which is none of the pods, cancels it. What counts begins just before that call and
ends when the handler has seen it; the clock is the machine's monotonic one in all processes. Whichever pod has the job,
the news goes through the database: another process, another connection.

Keys: p50_ms, p95_ms, p99_ms, max_ms (from the call to the handler), stored_p50_ms, stored_p95_ms, stored_p99_ms (until
the job is in history as cancelled), call_p50_ms (of the call itself), pods.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import Progress, arguments, finish, percentiles, say, table
from bench.ground import Ground, ground
from bench.pod import STALLED, Project, new_jobs, project

LOOK = 0.0005  # seconds between two looks


class Cancels:
    """One after another."""

    def __init__(self, db: Ground, made: Project) -> None:
        self._db, self._made = db, made
        self.seen: list[float] = []
        self.stored: list[float] = []
        self.calls: list[float] = []
        self.missing = 0

    def one(self, i: int) -> None:
        """Start a job, let it run for a moment, and cancel it."""
        (job,) = new_jobs(i, 1, "held")
        self._db.storage.enqueue([job])
        if not self._until(lambda: self._made.board.has_run(i)):
            return
        time.sleep(0.02)
        began = time.monotonic()
        self._db.storage.cancel([job.id])
        self.calls.append(time.monotonic() - began)
        if self._until(lambda: self._db.is_done(job.id)):
            self.stored.append(time.monotonic() - began)
            self.seen.append(self._made.board.late(i, i + 1)[0] - began)

    def _until(self, fact: Callable[[], bool]) -> bool:
        end = time.monotonic() + STALLED
        while not fact():
            if time.monotonic() > end:
                self.missing += 1
                return False
            time.sleep(LOOK)
        return True


def main() -> None:
    """Ten seconds."""
    args = arguments(__doc__ or "", 50, 1)
    gc.freeze()
    began, n, pods = time.perf_counter(), args.jobs, 2 if args.backend == "postgres" else 1
    with ground(args.backend) as db, project(db, n, args.workers) as made, ExitStack() as stack:
        say(f"cancel, {args.backend}, {n:,} jobs on {pods} pods")
        for _ in range(pods):
            stack.enter_context(made.pod(args.impl))
        made.wait_for_shares()
        cancels = Cancels(db, made)
        started = time.perf_counter()
        with Progress("cancel", n) as bar:
            for i in range(n):
                cancels.one(i)
                bar.at(i)
        seconds = time.perf_counter() - started
        _, again = made.board.count(n)
        others = f"select count(*) from {db.prefix}job_history where status <> 'cancelled'"
        lost = cancels.missing + int(db.value(others))
    seen, stored = percentiles(cancels.seen), percentiles(cancels.stored, "stored_")
    table(("ms", "p50", "p95", "p99"), [("seen by the handler", *seen.values()), ("stored", *stored.values())])
    finish(
        args,
        began,
        n,
        jobs_per_s=round(n / seconds, 1),
        lost=lost,
        duplicates=again,
        server=db.server,
        max_ms=round(1000 * max(cancels.seen, default=0.0), 3),
        call_p50_ms=round(1000 * statistics.median(cancels.calls or [0.0]), 3),
        pods=pods,
        **seen,
        **stored,
    )


if __name__ == "__main__":
    main()
