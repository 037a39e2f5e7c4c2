"""A fixed offered rate for minutes: does anything grow? Latency, dead rows, table size and log, over time.

A producer enqueues --rate jobs a second, in bulk every 20 ms, for --minutes, whatever the pod makes of them; a job
counts as enqueued when it was to be, so a producer that is held up makes its jobs late. Every --every seconds a row is
added to the table: start latency of the jobs of that stretch, jobs waiting, dead rows and size of the live table (as
PostgreSQL says; SQLite: its file, history and all), bytes of log per job.

Keys: p50_ms, p95_ms, p99_ms, max_ms (enqueue to start, of all jobs), rate, offered_seconds, first_p99_ms and
last_p99_ms (of the first and last third), most_waiting, most_dead, dead_rows (at the end), table_mb and most_table_mb,
wal_bytes_per_job, samples (the table).
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import Progress, finish, options, percentiles, say, table
from bench.ground import Ground, ground
from bench.pod import Project, project
from bench.producer import Producer, producing

PULSE = 0.02  # seconds between two chunks
DEAD = "select coalesce((select n_dead_tup from pg_stat_user_tables where schemaname = 'forge' and relname = 'job'), 0)"
SIZE = {
    "postgres": "select pg_total_relation_size('forge.job')",
    "sqlite": "select (select page_count from pragma_page_count) * (select page_size from pragma_page_size)",
}


class Samples:
    """One row every few seconds, taken while the run goes on."""

    def __init__(self, db: Ground, made: Project, producer: Producer, n: int, every: float) -> None:
        self._db, self._made, self._producer, self._n, self._every = db, made, producer, n, every
        self.rows: list[dict[str, Any]] = []
        self._began = self._at = time.monotonic()
        self._wal, self._then = db.usage()[0], 0

    def __call__(self) -> str:
        """Called all along."""
        now = time.monotonic()
        if now - self._at >= self._every:
            self._at = now
            self.take()
        return self._producer.note()

    def take(self) -> None:
        """A row."""
        reached, db = self._made.board.reached(self._n), self._db
        late = self._made.board.late(self._then, reached)
        wal = db.usage()[0]
        row: dict[str, Any] = {"at_s": round(time.monotonic() - self._began, 1), "jobs": reached - self._then}
        row |= percentiles(late)
        row["waiting"] = max(0, self._producer.so_far() - reached)
        if db.backend == "postgres":
            row["dead_rows"] = int(db.value(DEAD))
            row["wal_bytes_per_job"] = round((wal - self._wal) / max(1, reached - self._then))
        row["table_mb"] = round(int(db.value(SIZE[db.backend])) / 1e6, 2)
        self.rows.append(row)
        self._wal, self._then = wal, reached

    def figures(self) -> dict[str, Any]:
        """The extremes, and what is there at the end."""
        found: dict[str, Any] = {"most_waiting": max(row["waiting"] for row in self.rows)}
        found["table_mb"], found["most_table_mb"] = self.rows[-1]["table_mb"], max(row["table_mb"] for row in self.rows)
        if self._db.backend == "postgres":
            found["dead_rows"] = self.rows[-1]["dead_rows"]
            found["most_dead"] = max(row["dead_rows"] for row in self.rows)
        return found


def run(db: Ground, made: Project, args: argparse.Namespace) -> tuple[Samples, dict[str, Any]]:
    """The whole time, and what is left to do at its end."""
    n, before = args.jobs, db.usage()[0]
    chunk = max(1, round(args.rate * PULSE))
    with (
        producing(made, n, chunk=chunk, kind="timed", rate=args.rate) as producer,
        made.pod(args.impl),
        Progress("steady", n) as bar,
    ):
        samples = Samples(db, made, producer, n, args.every)
        began = time.perf_counter()
        producer.go()
        seconds = made.wait(n, bar, also=samples) - began
        offered = producer.join()
        samples.take()
    late = made.board.late(0, n)
    found = {"seconds": seconds, "offered_seconds": round(offered, 1), **percentiles(late)}
    found["max_ms"] = round(1000 * max(late), 3)
    found["first_p99_ms"] = percentiles(late[: n // 3])["p99_ms"]
    found["last_p99_ms"] = percentiles(late[-n // 3 :])["p99_ms"]
    if db.backend == "postgres":
        found["wal_bytes_per_job"] = round((db.usage()[0] - before) / n)
    return samples, found | samples.figures()


def main() -> None:
    """As many minutes as asked for."""
    parser = options(__doc__ or "", jobs=0)
    parser.add_argument("--rate", type=float, default=2_000.0, help="jobs a second (2,000)")
    parser.add_argument("--minutes", type=float, default=3.0, help="how long (3); --jobs says it otherwise")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two rows (5)")
    args = parser.parse_args()
    args.jobs = args.jobs or max(3, round(args.rate * 60 * args.minutes))
    gc.freeze()
    began = time.perf_counter()
    with ground(args.backend) as db, project(db, args.jobs, args.workers) as made:
        say(f"steady, {args.backend}, {args.rate:,.0f} jobs/s, {args.jobs:,} jobs, {args.workers} workers")
        samples, figures = run(db, made, args)
        verdict = made.verdict(args.jobs)
    table(list(samples.rows[0]), [list(row.values()) for row in samples.rows])
    finish(
        args,
        began,
        args.jobs,
        jobs_per_s=round(args.jobs / figures["seconds"], 1),
        lost=verdict.lost,
        duplicates=verdict.duplicates,
        server=db.server,
        rate=args.rate,
        samples=samples.rows,
        **figures,
    )


if __name__ == "__main__":
    main()
