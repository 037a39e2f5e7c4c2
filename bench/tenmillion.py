"""Ten million jobs, from enqueue to history: a producer and a master at work at once, with a bounded backlog.

The producer enqueues in bulk and stays no further ahead than --ahead jobs. Interrupted with Ctrl-C, a rerun goes on
where it was: the database, the scoreboard and the time so far are kept in --folder (whether the chunk in which the
producer was stopped is stored is looked up). At the end every job must have run exactly once by the scoreboard, and be
done in history by plain SQL; then the folder is removed unless --keep is given.

Keys: jobs_per_s and seconds (of all runs together, starting processes not counted), slowest_jobs_per_s and
fastest_jobs_per_s (of the 5-second stretches of this run), wal_bytes_per_job (of this run; PostgreSQL only), runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import Progress, finish, options, say
from bench.ground import Ground, ground
from bench.pod import Project, project
from bench.producer import Producer, producing, stored_so_far

CHUNK = 10_000  # jobs a transaction
STRETCH = 5.0  # seconds


class State:
    """What is known of earlier runs."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self._path = folder / "state.json"
        self.jobs, self.seconds, self.runs = jobs, 0.0, 0
        if self._path.exists():
            found = json.loads(self._path.read_text())
            if found["jobs"] != jobs:
                sys.exit(f"{folder} is a run of {found['jobs']:,} jobs; finish it, remove it, or name another --folder")
            self.seconds, self.runs = found["seconds"], found["runs"]
        self.runs += 1

    def save(self, seconds: float) -> None:
        """So far, with those of this run. Written beside and renamed: a stop in between loses nothing."""
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps({"jobs": self.jobs, "seconds": self.seconds + seconds, "runs": self.runs}))
        beside.rename(self._path)


class Watch:
    """Called all along: saves the time, and keeps the rates of the stretches."""

    def __init__(self, made: Project, state: State, producer: Producer, n: int) -> None:
        self._made, self._state, self._producer, self._n = made, state, producer, n
        self.began = self._at = time.perf_counter()
        self._then = made.board.reached(n)
        self.rates: list[int] = []

    def __call__(self) -> str:
        """What stands beside the bar."""
        now, reached = time.perf_counter(), self._made.board.reached(self._n)
        if now - self._at >= STRETCH:
            self.rates.append(round((reached - self._then) / (now - self._at)))
            self._at, self._then = now, reached
            self._state.save(now - self.began)
        return f"{max(0, self._producer.so_far() - reached):,} waiting"


def run(db: Ground, made: Project, args: argparse.Namespace, state: State) -> dict[str, Any]:
    """Until all is done or somebody interrupts."""
    n = args.jobs
    first = stored_so_far(db, made.folder / "producer", CHUNK, n)
    if first:
        say(f"going on: {first:,} jobs enqueued, {made.board.reached(n):,} run, {state.seconds:,.0f} s so far")
    before = db.usage()[0]
    reached = made.board.reached(n)
    with (
        producing(made, n, first=first, chunk=CHUNK, ahead=args.ahead) as producer,
        made.pod(args.impl),
        Progress("jobs", n) as bar,
    ):
        watch = Watch(made, state, producer, n)
        producer.go()
        try:
            end = made.wait(n, bar, also=watch)
        finally:
            state.save(time.perf_counter() - watch.began)
        producer.join()
    found: dict[str, Any] = {"seconds": state.seconds + end - watch.began, "runs": state.runs}
    if watch.rates:
        found |= {"slowest_jobs_per_s": min(watch.rates), "fastest_jobs_per_s": max(watch.rates)}
    if db.backend == "postgres" and n > reached:
        found["wal_bytes_per_job"] = round((db.usage()[0] - before) / (n - reached))
    return found


def main() -> None:
    """Minutes; see --jobs."""
    parser = options(__doc__ or "", jobs=10_000_000)
    parser.add_argument("--folder", type=Path, help="where the run is kept (in the temporary folder)")
    parser.add_argument("--ahead", type=int, default=200_000, help="jobs that may wait (200,000)")
    parser.add_argument("--keep", action="store_true", help="keep the folder when all is done")
    args = parser.parse_args()
    began = time.perf_counter()
    folder = args.folder or Path(tempfile.gettempdir()) / f"forge-{args.jobs}-{args.backend}"
    folder.mkdir(parents=True, exist_ok=True)
    state = State(folder, args.jobs)
    with ground(args.backend, folder) as db, project(db, args.jobs, args.workers, folder) as made:
        say(f"{args.jobs:,} jobs, {args.backend}, {args.workers} workers, in {folder}")
        try:
            figures = run(db, made, args, state)
        except KeyboardInterrupt:
            say(f"\ninterrupted at {made.board.reached(args.jobs):,} jobs; the same command goes on from here")
            sys.exit(130)
        verdict = made.verdict(args.jobs)
    if not (args.keep or any(verdict)):
        shutil.rmtree(folder)
    finish(
        args,
        began,
        args.jobs,
        jobs_per_s=round(args.jobs / figures["seconds"]),
        lost=verdict.lost,
        duplicates=verdict.duplicates,
        server=db.server,
        **figures,
    )


if __name__ == "__main__":
    main()
