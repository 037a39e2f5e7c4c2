"""A fixed offered rate for minutes: does anything grow? Latency, dead rows, table size and log, over time.

A producer enqueues --rate jobs a second, in bulk every 20 ms, for --minutes, whatever the pod makes of them; a job
counts as enqueued when it was to be, so a producer that is held up makes its jobs late. Every --every seconds a row is
added to the table: start latency of the jobs of that stretch, jobs waiting, dead rows and size of the live table (as
PostgreSQL says; SQLite: its file, history and all), bytes of log per job.

Keys: p50_ms, p95_ms, p99_ms, max_ms (enqueue to start, of all jobs), rate, offered_seconds, first_p99_ms and
last_p99_ms (of the first and last third), most_waiting, most_dead, dead_rows (at the end), table_mb and most_table_mb,
wal_bytes_per_job, samples (the table).

--retain SECONDS (PostgreSQL): jobs are kept for so long, and as many as come in that time have ended before, so that
from the start as many fall due for deletion as come, and the master's retention has to keep pace. The table then has
the rows of history too, those that are due and dead ones. Keys: pruned_per_s (over the whole time), most_prunable and
last_prunable, most_dead_history, dead_slope and dead_history_slope (dead rows more in a second), dead_tuples_flat (of
both tables: they rise until vacuum comes, once a minute, but no higher than before), history_mb and most_history_mb.
Behind that come drains of a backlog of --drain jobs in --rounds turns, with a history that is left alone, pruned at
--rate rows a second, or as fast as the service may: ratio_with_pruning and ratio_pruning_all_out (to the rate alone),
drain_jobs_per_s, drain_pruning_jobs_per_s, drain_pruned_per_s and drain_pruned_all_out_per_s.
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
from bench.ground import Ground, PostgresGround, ground
from bench.pod import Project, Verdict, project
from bench.producer import Producer, producing
from bench.pruning import Drains, fill_history, sample, trend

PULSE = 0.02  # seconds between two chunks
DEAD = "select coalesce((select n_dead_tup from pg_stat_user_tables where schemaname = 'forge' and relname = 'job'), 0)"
SIZE = {
    "postgres": "select pg_total_relation_size('forge.job')",
    "sqlite": "select (select page_count from pragma_page_count) * (select page_size from pragma_page_size)",
}


class Samples:
    """One row every few seconds, taken while the run goes on."""

    def __init__(
        self, db: Ground, made: Project, producer: Producer, n: int, every: float, retain: float | None
    ) -> None:
        self._db, self._made, self._producer, self._n, self._every, self._retain = db, made, producer, n, every, retain
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
        if self._retain is not None and isinstance(db, PostgresGround):
            row |= sample(db, self._retain)
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

    def retention(self, before: int) -> dict[str, Any]:
        """How it kept pace; `before` rows were there when it began."""
        last, seconds = self.rows[-1], self.rows[-1]["at_s"]
        came = before + sum(row["jobs"] for row in self.rows)
        live, history = (trend([row[key] for row in self.rows], seconds) for key in ("dead_rows", "dead_history"))
        return {
            "pruned_per_s": round((came - last["history"]) / seconds),
            "most_prunable": max(row["prunable"] for row in self.rows),
            "last_prunable": last["prunable"],
            "most_dead_history": max(row["dead_history"] for row in self.rows),
            "dead_slope": live[0],
            "dead_history_slope": history[0],
            "dead_tuples_flat": live[1] and history[1],
            "history_mb": last["history_mb"],
            "most_history_mb": max(row["history_mb"] for row in self.rows),
        }


def run(db: Ground, made: Project, args: argparse.Namespace) -> tuple[Samples, dict[str, Any]]:
    """The whole time, and what is left to do at its end."""
    n, before = args.jobs, db.usage()[0]
    old = round(args.rate * args.retain) if args.retain else 0
    if isinstance(db, PostgresGround) and args.retain:
        db.storage.set_queue("default", retain_done_days=args.retain / 86_400)
        fill_history(db, old, args.rate, 0.0)
    chunk = max(1, round(args.rate * PULSE))
    with (
        producing(made, n, chunk=chunk, kind="timed", rate=args.rate) as producer,
        made.pod(args.impl),
        Progress("steady", n) as bar,
    ):
        samples = Samples(db, made, producer, n, args.every, args.retain)
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
    return samples, found | samples.figures() | (samples.retention(old) if args.retain else {})


def drains(db: Ground, made: Project, args: argparse.Namespace) -> tuple[dict[str, Any], Verdict]:
    """What retention costs those who work."""
    assert isinstance(db, PostgresGround)
    db.storage.set_queue("default", retain_done_days=7.0)
    turns = Drains(db, made, args.drain, max(50_000, 2 * args.drain), args.impl)
    found = turns.compare(args.rate, args.rounds)
    return found, Verdict(*(sum(each) for each in zip(*turns.verdicts, strict=True)))


def main() -> None:
    """As many minutes as asked for."""
    parser = options(__doc__ or "", jobs=0, rounds=4)
    parser.add_argument("--rate", type=float, default=2_000.0, help="jobs a second (2,000)")
    parser.add_argument("--minutes", type=float, default=3.0, help="how long (3); --jobs says it otherwise")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two rows (5)")
    parser.add_argument("--retain", type=float, metavar="SECONDS", help="how long ended jobs are kept (a week)")
    parser.add_argument("--drain", type=int, default=150_000, help="with --retain: jobs of a drain (150,000)")
    args = parser.parse_args()
    if args.retain and args.backend != "postgres":
        parser.error("--retain is for postgres")
    args.jobs = args.jobs or max(3, round(args.rate * 60 * args.minutes))
    gc.freeze()
    began = time.perf_counter()
    most = max(args.jobs, args.drain if args.retain else 0)
    with ground(args.backend) as db, project(db, most, args.workers) as made:
        say(f"steady, {args.backend}, {args.rate:,.0f} jobs/s, {args.jobs:,} jobs, {args.workers} workers")
        samples, figures = run(db, made, args)
        verdict = Verdict(*made.board.count(args.jobs)) if args.retain else made.verdict(args.jobs)
        table(list(samples.rows[0]), [list(row.values()) for row in samples.rows])
        if args.retain:
            more, also = drains(db, made, args)
            figures |= more
            verdict = Verdict(verdict.lost + also.lost, verdict.duplicates + also.duplicates)
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
