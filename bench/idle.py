"""What a pod with nothing to do costs: processor time of its processes, and statements that it gives to the database.

The pod has run --jobs jobs, and then rests for a few seconds before it is looked at for --seconds. Processor time is
what the kernel says of each thread (schedstat). Statements are counted in a second stretch, so that counting costs
nothing in the first: PostgreSQL logs every one, and the lines are counted; in SQLite's case the master itself counts.

Keys: cpu_percent (of one core: master, zygote and workers), master_cpu_percent, server_cpu_percent (PostgreSQL's
processes that serve this pod), statements_per_s, seconds (of the stretch), connections (PostgreSQL's to this pod).
jobs_per_s is 0: it does nothing. With --queues N the pod declares as many more, without workers (max_workers = 0).
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import Progress, finish, options, say
from bench.ground import Ground, PostgresGround, ground
from bench.pod import Board, Pod, Project, new_jobs, project

REST = 3.0  # seconds after the last job

POD_BACKENDS = """select pid from pg_stat_activity
 where datname = current_database() and backend_type = 'client backend' and pid <> all (%s)"""


def on_cpu(pids: Iterable[int]) -> float:
    """Seconds that the threads of these processes have run."""
    nanoseconds = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                nanoseconds += int(task.read_text().split()[0])
    return nanoseconds / 1e9


def backends(db: Ground, ours: list[int]) -> list[int]:
    """PostgreSQL's processes that are not `ours`: this pod's."""
    if not isinstance(db, PostgresGround):
        return []
    return [pid for (pid,) in db.conn.execute(POD_BACKENDS, (ours,))]


def counter(db: Ground, board: Board) -> Callable[[], int]:
    """Statements so far."""
    if not isinstance(db, PostgresGround):
        path = board.folder / "statements"
        return lambda: int.from_bytes(path.read_bytes(), sys.byteorder)
    log = Path(db.value("show data_directory")) / "log"
    start = log.stat().st_size

    def logged() -> int:
        with log.open("rb") as file:
            file.seek(start)
            return sum(b"LOG:  execute" in line or b"LOG:  statement:" in line for line in file)

    return logged


def watch(label: str, seconds: float) -> None:
    """Wait, visibly."""
    end = time.monotonic() + seconds
    with Progress(label, round(seconds), "s") as bar:
        while (left := end - time.monotonic()) > 0:
            bar.at(round(seconds - left))
            time.sleep(min(0.2, left))


def busy(db: Ground, pod: Pod, seconds: float, ours: list[int]) -> dict[str, float]:
    """Percent of a core."""
    groups = {
        "cpu_percent": [pod.process.pid, *pod.family()],
        "master_cpu_percent": [pod.process.pid],
        "server_cpu_percent": backends(db, ours),
    }
    before, began = {key: on_cpu(pids) for key, pids in groups.items()}, time.monotonic()
    watch("processor time", seconds)
    took = time.monotonic() - began
    found = {key: round(100 * (on_cpu(pids) - before[key]) / took, 3) for key, pids in groups.items() if pids}
    if isinstance(db, PostgresGround):
        found["connections"] = len(groups["server_cpu_percent"])
    return found


def warm(made: Project, n: int) -> None:
    """Some work, and a rest."""
    made.board.clear()
    made.db.reset()
    made.db.fill(new_jobs(0, n))
    with Progress("jobs", n) as bar:
        made.wait(n, bar)
    watch("resting", REST)


def main() -> None:
    """Half a minute."""
    parser = options(__doc__ or "", jobs=1_000)
    parser.add_argument("--queues", type=int, default=0, help="queues without workers beside the one that has some (0)")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each stretch is (10)")
    args = parser.parse_args()
    gc.freeze()
    began = time.perf_counter()
    with ground(args.backend) as db, project(db, args.jobs, args.workers) as made:
        say(f"idle, {args.backend}, {args.workers} workers, {args.queues} queues without, {args.seconds:g} s")
        made.configure(args.workers, more="".join(f"[queues.q{i}]\nmax_workers = 0\n" for i in range(args.queues)))
        db.storage.queues()
        ours = backends(db, [])  # before there is a pod, all are
        with made.pod(args.impl) as pod:
            warm(made, args.jobs)
            figures = busy(db, pod, args.seconds, ours)
            verdict = made.verdict(args.jobs)
        (made.folder / "statements").write_bytes(bytes(8))
        if isinstance(db, PostgresGround):
            db.conn.execute("alter database postgres set log_statement = 'all'")  # for connections made from now on
        with made.pod(args.impl, module="bench.counted_master"):
            warm(made, args.jobs)
            count = counter(db, made.board)
            before, at = count(), time.monotonic()
            watch("statements", args.seconds)
            figures["statements_per_s"] = round((count() - before) / (time.monotonic() - at), 2)
    finish(
        args,
        began,
        args.jobs,
        jobs_per_s=0.0,
        seconds=args.seconds,
        lost=verdict.lost,
        duplicates=verdict.duplicates,
        server=db.server,
        **figures,  # type: ignore[arg-type]
    )


if __name__ == "__main__":
    main()
