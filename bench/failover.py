"""A pod of three is killed with jobs in hand: how long until they run elsewhere, and its workers are the others'.

Each of the pods has --workers workers of one queue, all busy with jobs that do not end by themselves. One is killed: by
turns one that does not lead and the one that leads. Nobody has a free worker then, so its jobs can run only on workers
that the others get from its share. All seconds are counted from the moment when a pod may be taken for dead, which is
--stale seconds after its last beat (60 by default in forge, of which nothing would be seen but the waiting).

Keys: reaped_s (until the pod is gone from the database), shares_s (until the others have all workers, and say so),
rerun_s (until the last of its jobs runs elsewhere), each the median over the turns; the same with `most_` before it;
stale, leader_shares_s (of the turns in which the leader was killed).
"""

from __future__ import annotations

import gc
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import finish, options, say, table
from bench.ground import Ground, ground
from bench.pod import Pod, Project, new_jobs, project

PODS = 3
PATIENCE = 120.0  # seconds


def wait(fact: Callable[[], object]) -> float:
    """Until it holds; the time (monotonic) at which it did."""
    end = time.monotonic() + PATIENCE
    while not fact():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)
    return time.monotonic()


class Turn:
    """Three pods, of which one is killed."""

    def __init__(self, db: Ground, made: Project, args: Any) -> None:
        self._db, self._made, self._impl, self._stale = db, made, args.impl, args.stale
        self._n = PODS * args.workers
        self.lost = self.duplicates = 0

    def run(self, leads: bool) -> dict[str, float]:
        """The seconds."""
        self._db.reset()
        self._made.board.clear()
        with ExitStack() as stack:
            pods = [stack.enter_context(self._made.pod(self._impl)) for _ in range(PODS)]
            self._made.wait_for_shares()
            jobs = list(new_jobs(0, self._n, "kept"))
            self._db.fill(jobs)
            wait(lambda: self._made.board.count(self._n) == (0, 0))
            found = self._kill(self._victim(pods, leads))
            self._db.storage.cancel([job.id for job in jobs])
            wait(lambda: not self._db.anything_left())
        return found

    def _victim(self, pods: list[Pod], leads: bool) -> Pod:
        wait(lambda: self._db.storage.leases.leader() is not None)
        leader = self._db.storage.leases.leader()
        assert leader is not None
        return next(pod for pod in pods if (pod.process.pid == leader.pid) == leads)

    def _kill(self, victim: Pod) -> dict[str, float]:
        db, board = self._db, self._made.board
        processes = set(victim.family())
        theirs = [i for i, pid in enumerate(board.late(0, self._n)) if int(pid) in processes]
        known = next(pod for pod in db.storage.pods() if pod.pid == victim.process.pid)
        os.kill(victim.process.pid, signal.SIGKILL)
        victim.process.wait()
        victim.process.returncode = 0  # its end is no surprise
        silent = next((pod.beat_at for pod in db.storage.pods() if pod.id == known.id), known.beat_at)
        stale_at = time.monotonic() + self._stale - (db.storage.now() - silent.timestamp())
        found = {"reaped_s": wait(lambda: known.id not in {pod.id for pod in db.storage.pods()})}
        found["shares_s"] = wait(lambda: sum(s.running for s in db.storage.shares.cluster().shares) >= self._n)
        found["rerun_s"] = wait(lambda: all(int(board.late(i, i + 1)[0]) not in processes for i in theirs))
        never, again = board.count(self._n)
        self.lost += never
        self.duplicates += max(0, again - len(theirs))  # each of its jobs was to run once more, and no other
        return {key: round(at - stale_at, 2) for key, at in found.items()}


def main() -> None:
    """Half a minute."""
    parser = options(__doc__ or "", jobs=0, rounds=4, backends=("postgres",))
    parser.add_argument("--stale", type=float, default=5.0, help="seconds after which a silent pod is dead (5)")
    args = parser.parse_args()
    gc.freeze()
    began, jobs = time.perf_counter(), PODS * args.workers
    os.environ["FORGE_STALE_AFTER"] = str(args.stale)
    os.environ["FORGE_HEARTBEAT"] = str(min(1.0, args.stale / 5))
    with ground(args.backend) as db, project(db, jobs, PODS * args.workers) as made:
        say(f"failover, {PODS} pods of {args.workers} workers, stale after {args.stale:g} s")
        turn = Turn(db, made, args)
        found = [turn.run(leads=number % 2 == 1) for number in range(args.rounds)]
    table(("killed", *found[0]), [("leader" if n % 2 else "other", *each.values()) for n, each in enumerate(found)])
    figures: dict[str, Any] = {}
    for key in found[0]:
        figures[key] = round(statistics.median(each[key] for each in found), 2)
        figures[f"most_{key}"] = round(max(each[key] for each in found), 2)
    if leading := [each["shares_s"] for each in found[1::2]]:
        figures["leader_shares_s"] = round(statistics.median(leading), 2)
    finish(
        args,
        began,
        jobs * args.rounds,
        jobs_per_s=0.0,
        seconds=statistics.median(each["rerun_s"] for each in found) + args.stale,
        lost=turn.lost,
        duplicates=turn.duplicates,
        server=db.server,
        stale=args.stale,
        **figures,
    )


if __name__ == "__main__":
    main()
