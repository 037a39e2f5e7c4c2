"""What `bench/steady.py --retain` is made of: a history that grows old, and drains with retention at work or not."""

from __future__ import annotations

import contextlib
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from bench.common import Progress, interleaved, median, ratio
from bench.ground import PostgresGround
from bench.pod import Project, Verdict, new_jobs
from forge.cluster.retention import BATCH, Retention
from forge.storage import open_storage
from forge.storage.contract.leases import Holder

# n ended jobs, one behind the other, the last of them :age seconds ago; their ids begin with their times, as all do.
HISTORY = """
insert into job_history (id, run_at, enqueued_at, claimed_at, finished_at, claim, timeout, status, priority, attempts,
                         max_attempts, crashes, queue, kind, payload)
select (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || '7' || substr(md5(i::text), 1, 3)
        || '8' || substr(md5(i::text), 4, 15))::uuid, at, at, at, at, 1, 600, 'done', 0, 1, 5, 0, 'default', 'noop',
       '{"i": 1234567, "t": 123456.123456, "pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'
  from (select i, now() - make_interval(secs => %(age)s + (%(n)s - i) / %(rate)s) as at
          from generate_series(1, %(n)s) i) t
"""
OLD = 30 * 86_400.0  # seconds: past what a queue keeps
DEAD = "select n_dead_tup from pg_stat_user_tables where schemaname = 'forge' and relname = '{}'"


def fill_history(db: PostgresGround, n: int, rate: float, age: float) -> None:
    """See HISTORY."""
    if n:
        db.conn.execute(HISTORY.encode(), {"n": n, "rate": rate, "age": age})


def sample(db: PostgresGround, retain: float) -> dict[str, Any]:
    """What retention has to do and what it leaves behind, now."""
    look = f"select count(*), count(*) filter (where finished_at < now() - interval '{retain} s') from job_history"
    row = db.conn.execute(look.encode()).fetchone()
    assert row is not None
    return {
        "history": int(row[0]),
        "prunable": int(row[1]),
        "dead_history": int(db.value(DEAD.format("job_history")) or 0),
        "history_mb": round(int(db.value("select pg_total_relation_size('job_history')")) / 1e6, 1),
    }


def trend(values: Sequence[float], seconds: float) -> tuple[float, bool]:
    """How much they grow in a second, by their regression line, and whether they are flat: they rise until vacuum comes
    (once a minute), and no rise ends much higher than those before it. A run without two such rises is not flat."""
    if len(values) < 2:
        return 0.0, False
    slope = statistics.linear_regression(range(len(values)), values).slope * len(values) / seconds
    peaks = [a for a, b in pairwise([*values, 0.0]) if b < a / 2]
    return round(slope, 1), len(peaks) > 1 and peaks[-1] <= 1.25 * max(peaks[:-1])


class _Enough(Exception):
    pass


class Pruner(threading.Thread):
    """The service itself, under a lease of its own (so that no master's is at work), `rate` rows a second at most."""

    def __init__(self, url: str, rate: float) -> None:
        super().__init__(daemon=True)
        self._storage, self._rate = open_storage(url, timeout=10.0), rate
        self._enough = threading.Event()
        self.deleted = 0
        term = self._storage.leases.acquire(Holder("bench", None, "bench", 1), 3600.0).term
        assert term is not None, "a master leads"
        self._term = term
        prune = self._storage.prune

        def counted(*args: Any, **more: Any) -> Any:
            batch = prune(*args, **more)
            self.deleted += batch.deleted
            return batch

        self._storage.prune = counted  # type: ignore[method-assign]
        self._service = Retention(self._storage, at_most=math.inf, sleep=self._rest)

    def _rest(self, seconds: float) -> None:
        if self._enough.wait(max(seconds, BATCH / self._rate - seconds)):
            raise _Enough

    def run(self) -> None:
        """Until told that it is enough, or nothing is left."""
        with contextlib.suppress(_Enough):
            self._service.run_once(self._term)

    def end(self) -> None:
        """Wait for the batch under way."""
        self._enough.set()
        if self.ident is not None:
            self.join()
        self._storage.close()


class Drains:
    """A backlog is run, with a history that is left alone, pruned at a rate, or as fast as the service may."""

    def __init__(self, db: PostgresGround, made: Project, jobs: int, history: int, impl: str) -> None:
        self._db, self._made, self._jobs, self._history, self._impl = db, made, jobs, history, impl
        self.verdicts: list[Verdict] = []
        self.pruned: dict[float, list[float]] = {}  # rows a second, by the rate that was asked for

    def turn(self, rate: float) -> float:
        """Jobs a second. Rate 0: nothing is pruned."""
        db, n = self._db, self._jobs
        db.reset()
        fill_history(db, self._history, 1e6, OLD)
        db.conn.execute("vacuum analyze job_history")
        db.conn.execute("checkpoint")
        self._made.board.clear()
        db.hold()
        db.fill(new_jobs(0, n))
        pruner = Pruner(db.url, rate or 1.0)
        try:
            with self._made.pod(self._impl), Progress("drain", n) as bar:
                began = time.perf_counter()
                if rate:
                    pruner.start()
                db.go()
                seconds = self._made.wait(n, bar) - began
        finally:
            pruner.end()
        if rate:
            assert pruner.deleted < self._history, "all of it was pruned before the end: a longer history is needed"
            self.pruned.setdefault(rate, []).append(pruner.deleted / seconds)
        never, again = self._made.board.count(n)
        self.verdicts.append(Verdict(never, again))
        return n / seconds

    def compare(self, rate: float, rounds: int) -> dict[str, Any]:
        """In turns."""
        contenders: dict[str, Callable[[], float]] = {
            "alone": lambda: self.turn(0.0),
            "pruning": lambda: self.turn(rate),
            "pruning all out": lambda: self.turn(math.inf),
        }
        rates = interleaved(contenders, rounds)
        return {
            "ratio_with_pruning": ratio(rates, "pruning", "alone"),
            "ratio_pruning_all_out": ratio(rates, "pruning all out", "alone"),
            "drain_jobs_per_s": median(rates["alone"]),
            "drain_pruning_jobs_per_s": median(rates["pruning"]),
            "drain_pruned_per_s": median(self.pruned[rate]),
            "drain_pruned_all_out_per_s": median(self.pruned[math.inf]),
        }
