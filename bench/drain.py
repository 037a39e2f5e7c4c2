"""A real master with its workers on a pre-filled backlog, against the least code that claims and finalizes by hand.

The master is started, with its workers ready, on a queue that cools down and is filled. The clock starts before that
is ended, so the first claim and the first dispatch count; it stops when every job has run and a query finds no live job
any more. Starting the processes does not count. The opponent is `bench/raw.py`: one process that claims 1000 jobs and
moves them to history with hand-written statements on the same tables, and runs nothing. Both take turns.

Keys: jobs_per_s and ratio_to_raw (medians over the rounds), raw_jobs_per_s, best_jobs_per_s; wal_bytes_per_job and
commits_per_job (log written, and transactions that wrote, from the end of the pause to the last job in history;
PostgreSQL only), wal_bytes_insert and raw_wal_bytes_per_job (the same for filling and for the opponent), workers, kind.

--typed: a task with checked arguments instead of a plain handler. --impl py: the master without the native fast path;
--both: both take turns, and ratio_native is native over pure Python (py_jobs_per_s).
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import Progress, finish, interleaved, median, options, ratio, say
from bench.ground import Ground, ground
from bench.pod import Project, Verdict, new_jobs, project
from forge import fastpath


class Drain:
    """The turns of both sides, and what was counted on the way."""

    def __init__(self, db: Ground, made: Project, n: int, kind: str = "noop", impl: str = fastpath.IMPL) -> None:
        self._db, self._made, self._n, self._kind, self._impl = db, made, n, kind, impl
        self.verdicts: list[Verdict] = []
        self.spent: dict[str, list[float]] = {}  # per job

    def forge(self, pods: int = 1, impl: str | None = None) -> float:
        """Jobs per second of a master, or of several."""
        n, db = self._n, self._db
        db.reset()
        self._made.board.clear()
        db.hold()
        begun = db.usage()
        db.fill(new_jobs(0, n, self._kind))
        self._note("wal_bytes_insert", db.usage()[0] - begun[0])
        return self._with_pods(pods, impl or self._impl)

    def _with_pods(self, pods: int, impl: str) -> float:
        if pods:
            with self._made.pod(impl):
                return self._with_pods(pods - 1, impl)
        db, n = self._db, self._n
        self._made.wait_for_shares()
        before = db.usage()
        with Progress("drain", n) as bar:
            began = time.perf_counter()
            db.go()
            seconds = self._made.wait(n, bar) - began
        after = db.usage()
        self._note("wal_bytes_per_job", after[0] - before[0])
        self._note("commits_per_job", after[1] - before[1])
        self.verdicts.append(self._made.verdict(n))
        return n / seconds

    def raw(self) -> float:
        """Jobs per second by hand."""
        self._db.reset()
        raw = self._db.raw()
        raw.fill(fastpath.uuid7_many(self._n))
        before = self._db.usage()
        began = time.perf_counter()
        assert raw.drain(1000) == self._n
        seconds = time.perf_counter() - began
        self._note("raw_wal_bytes_per_job", self._db.usage()[0] - before[0])
        raw.close()
        return self._n / seconds

    def _note(self, key: str, amount: int) -> None:
        if self._db.backend == "postgres":
            self.spent.setdefault(key, []).append(amount / self._n)

    def figures(self) -> dict[str, Any]:
        """Everything but the rates."""
        found: dict[str, Any] = {
            key: round(statistics.median(each), None if "bytes" in key else 4) for key, each in self.spent.items()
        }
        found["lost"] = sum(verdict.lost for verdict in self.verdicts)
        found["duplicates"] = sum(verdict.duplicates for verdict in self.verdicts)
        return found


def main() -> None:
    """Four rounds, in about half a minute."""
    parser = options(__doc__ or "", jobs=50_000, rounds=4)
    parser.add_argument("--typed", action="store_true", help="a typed task instead of a plain handler")
    parser.add_argument("--both", action="store_true", help="the native and the pure Python fast path in turns")
    args = parser.parse_args()
    gc.freeze()
    began = time.perf_counter()
    kind = "typed" if args.typed else "noop"
    with ground(args.backend) as db, project(db, args.jobs, args.workers) as made:
        say(f"drain, {args.backend}, {args.jobs:,} jobs a turn, {args.workers} workers")
        turns = Drain(db, made, args.jobs, kind, args.impl)
        contenders = {"forge": turns.forge, "raw": turns.raw}
        if args.both:
            contenders["forge, pure Python"] = partial(turns.forge, impl="py")
        rates = interleaved(contenders, args.rounds)
        figures = turns.figures() | {"workers": args.workers, "kind": kind}
        if args.both:
            figures["ratio_native"] = ratio(rates, "forge", "forge, pure Python")
            figures["py_jobs_per_s"] = median(rates["forge, pure Python"])
    finish(
        args,
        began,
        args.jobs,
        jobs_per_s=median(rates["forge"]),
        ratio_to_raw=ratio(rates, "forge", "raw"),
        raw_jobs_per_s=median(rates["raw"]),
        best_jobs_per_s=round(max(rates["forge"])),
        server=db.server,
        **figures,
    )


if __name__ == "__main__":
    main()
