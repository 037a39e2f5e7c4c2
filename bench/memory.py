"""Memory of master, zygote and workers: PSS, in which a page that is shared is divided by the number of its sharers.

One more worker's price is the difference of the whole pod's PSS when --more workers are added, divided by their number:
what the others have more or less because of it is counted. It is taken with the handlers of these benches; with a
module that imports something sizeable at its top, so that workers share it (preload); and with the same imports made in
every worker by itself. Workers have run jobs by then. The master is then given --jobs jobs and looked at after every
tenth.

The scoreboard, one byte a job, is mapped by zygote and workers and so is part of their PSS.

Keys: worker_mb (one more worker), worker_mb_preload, worker_mb_no_preload (with the sizeable imports), master_mb,
zygote_mb and each_worker_mb (after all jobs), master_mb_half (the median of the looks in the first half),
master_growth_mb (by how much that of the second half is more: with the jobs in hand one look differs from the next by
2 MB), master_mb_by_jobs, flat (growth of less than 1 MB); jobs_per_s is that of the run.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import Progress, finish, options, say, table
from bench.ground import ground
from bench.pod import Pod, Project, Verdict, new_jobs, project
from bench.producer import producing

SOME = 2_000  # jobs before memory is looked at
FLAT_MB = 1.0


def pss(pid: int) -> float:
    """Megabytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("the kernel does not say")


def by_role(pod: Pod) -> dict[str, list[float]]:
    """PSS of each process of the pod."""
    zygote, *workers = pod.family()
    return {"master": [pss(pod.process.pid)], "zygote": [pss(zygote)], "workers": [pss(pid) for pid in workers]}


def total(pod: Pod) -> float:
    """Of the whole pod."""
    return sum(sum(each) for each in by_role(pod).values())


class Memory:
    """A pod at a time."""

    def __init__(self, made: Project, args: argparse.Namespace) -> None:
        self._made, self._args = made, args
        self.verdicts: list[Verdict] = []

    def _run_some(self) -> None:
        """Jobs for every worker."""
        self._made.db.reset()
        self._made.board.clear()
        self._made.db.fill(new_jobs(0, SOME, "nap"))
        with Progress("warming up", SOME) as bar:
            self._made.wait(SOME, bar)
        self.verdicts.append(self._made.verdict(SOME))

    def one_more(self, modules: tuple[str, ...], preload: bool = False) -> float:
        """Megabytes that another worker takes."""
        workers, more = self._args.workers, self._args.more
        self._made.configure(workers, modules)
        self._made.env["FORGE_BENCH_PRELOAD"] = str(int(preload))
        with self._made.pod(self._args.impl) as pod:
            self._run_some()
            before = total(pod)
            for _ in range(more):
                os.kill(pod.process.pid, signal.SIGTTIN)
                time.sleep(0.05)  # signals of one kind that come together are one
            deadline = time.monotonic() + 30
            while len(pod.family()) < 1 + workers + more:
                assert time.monotonic() < deadline, pod.log
                time.sleep(0.05)
            self._run_some()
            return round((total(pod) - before) / float(more), 2)

    def over_time(self) -> dict[str, Any]:
        """The master's, after every tenth of the jobs."""
        n, made = self._args.jobs, self._made
        made.db.reset()
        made.board.clear()
        made.configure(self._args.workers)
        points: dict[int, float] = {}
        with producing(made, n, ahead=20_000) as producer, made.pod(self._args.impl) as pod:

            def look() -> str:
                tenth = made.board.reached(n) * 10 // n
                if tenth and tenth not in points:
                    points[tenth] = round(pss(pod.process.pid), 2)
                return producer.note()

            began = time.perf_counter()
            producer.go()
            with Progress("jobs", n) as bar:
                seconds = made.wait(n, bar, also=look) - began
            producer.join()
            points[10] = round(pss(pod.process.pid), 2)
            roles = by_role(pod)
        self.verdicts.append(made.verdict(n))
        looks = [mb for _, mb in sorted(points.items())]
        half = len(looks) // 2
        before, after = median(looks[:half] or looks), median(looks[half:])
        return {
            "jobs_per_s": round(n / seconds),
            "master_mb": points[10],
            "master_mb_half": round(before, 2),
            "master_growth_mb": round(after - before, 2),
            "flat": after - before < FLAT_MB,
            "zygote_mb": round(roles["zygote"][0], 2),
            "each_worker_mb": [round(mb, 2) for mb in roles["workers"]],
            "master_mb_by_jobs": {str(n * tenth // 10): mb for tenth, mb in sorted(points.items())},
        }


def main() -> None:
    """A minute or so; the million is most of it."""
    parser = options(__doc__ or "", jobs=1_000_000)
    parser.add_argument("--more", type=int, default=4, help="workers that are added (4)")
    args = parser.parse_args()
    gc.freeze()
    began = time.perf_counter()
    with ground(args.backend) as db, project(db, max(SOME, args.jobs), args.workers) as made:
        say(f"memory, {args.backend}, {args.workers} workers and {args.more} more")
        memory = Memory(made, args)
        both = ("bench.tasks", "bench.heavy_tasks")
        figures: dict[str, Any] = {
            "worker_mb": memory.one_more(both[:1]),
            "worker_mb_preload": memory.one_more(both, preload=True),
            "worker_mb_no_preload": memory.one_more(both),
        }
        figures |= memory.over_time()
    rows: list[tuple[str, Any]] = [("master", figures["master_mb"]), ("zygote", figures["zygote_mb"])]
    rows += [(f"worker {i}", mb) for i, mb in enumerate(figures["each_worker_mb"])]
    table(("PSS after all jobs", "MB"), rows)
    table(("jobs", "master MB"), [(f"{int(n):,}", mb) for n, mb in figures["master_mb_by_jobs"].items()])
    finish(
        args,
        began,
        args.jobs,
        lost=sum(verdict.lost for verdict in memory.verdicts),
        duplicates=sum(verdict.duplicates for verdict in memory.verdicts),
        server=db.server,
        **figures,
    )


if __name__ == "__main__":
    main()
