"""Many jobs while everything that can die does, again and again; a file outside the database says what became of each.

Two pods (one on SQLite), each with workers of one job and of many, a producer that enqueues all the while, and somebody
who kills: workers all the time, now and then a zygote, a master (another is started), and the database server, stopped
as in a crash. Handlers write START and END to the ledger, the producer which jobs were acknowledged, the killer whom it
killed. At the end every acknowledged job must have ended, in the ledger and in history.

Keys: lost (acknowledged, without an END or not done in history), phantom (done in history without an END), stuck (not
ended in the database), again (jobs with a second END), duplicates (those of them that no kill explains: neither of who
ran it first nor of the database, between the first END and the second), killed_workers, killed_zygotes, killed_masters,
database_crashes, blamed (jobs that carry a crash: they had been alone when their worker was killed).
"""

from __future__ import annotations

import collections
import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import ROOT, CrashingServer, Progress, finish, options, say
from forge import fastpath
from forge.errors import ExitCode, ForgeError
from forge.job import Job, JobFilter, NewJob, Status
from forge.storage import Storage, open_storage

PATIENCE = 120.0  # seconds without an END after which what is missing counts as lost
BATCH = 250  # jobs enqueued at once
SETTINGS = """
modules = ["bench.ledger_tasks"]
max_crashes = 1000       # being killed is not their fault here
heartbeat = 0.5
stale_after = 5.0
[queues.short]
max_workers = 4
[queues.wide]
worker = "async"
concurrency = 20
max_workers = 2
"""


class Pods:
    """The masters, and whom to kill."""

    def __init__(self, folder: Path, env: dict[str, str], n: int) -> None:
        self._folder, self._env = folder, env
        self._log = (folder / "master.log").open("ab")
        self.masters = [self._start() for _ in range(n)]

    def _start(self) -> subprocess.Popen[bytes]:
        self._started_at = time.monotonic()
        words = [sys.executable, "-m", "forge.cli.master", "-c", str(self._folder / "forge.toml")]
        return subprocess.Popen(words, cwd=self._folder, env=self._env, stdout=self._log, stderr=self._log)

    def replace(self, which: int) -> None:
        """The dead one."""
        self.masters[which].wait()
        self.masters[which] = self._start()

    def start_again(self) -> None:
        """Those that ended because the database was away just when they began, as a service manager would."""
        for which, master in enumerate(self.masters):
            if master.poll() == ExitCode.DATABASE:
                self.masters[which] = self._start()

    def below(self, pid: int) -> list[int]:
        """All processes below one, nearest first."""
        found, todo = [], [pid]
        while todo:
            each = todo.pop(0)
            with suppress(OSError):
                mine = list(map(int, Path(f"/proc/{each}/task/{each}/children").read_text().split()))
                found += mine
                todo += mine
        return found

    def stop(self) -> list[int]:
        """All, in order; their exit codes. For the first moments of its life nobody can catch a signal."""
        time.sleep(max(0.0, self._started_at + 3.0 - time.monotonic()))
        for master in self.masters:
            master.send_signal(signal.SIGTERM)
        return [master.wait(60) for master in self.masters]


class Ledger:
    """What was acknowledged, what has run, who was killed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()
        self.acknowledged: set[int] = set()
        self.faults: list[tuple[float, frozenset[int] | None]] = []  # when, and which processes; None: the database

    def ended(self) -> int:
        """So far; counted anew each time, at a low price."""
        with self._path.open("rb") as file:
            return sum(line.startswith(b"END") for line in file)

    def read(self) -> tuple[dict[int, list[tuple[float, int]]], dict[int, list[tuple[float, int]]]]:
        """(starts, ends) by job: (when, process)."""
        events: dict[bytes, dict[int, list[tuple[float, int]]]] = {
            word: collections.defaultdict(list) for word in (b"START", b"END")
        }
        with self._path.open("rb") as file:
            for line in file:
                word, number, pid, when = line.split()
                events[word][int(number)].append((float(when), int(pid)))
        return events[b"START"], events[b"END"]

    def explains(self, first: tuple[float, int], second: tuple[float, int]) -> bool:
        """Whether a fault between the two, of the first process or of the database, can be why there is a second."""
        (began, pid), (ended, _) = first, second
        return any(began - 1.0 <= at <= ended and (who is None or pid in who) for at, who in self.faults)


class Killer(threading.Thread):
    """Whoever can die does."""

    def __init__(self, pods: Pods, ledger: Ledger, server: CrashingServer | None, seed: int) -> None:
        super().__init__(daemon=True)
        self._pods, self._ledger, self._server = pods, ledger, server
        self._random = random.Random(seed)
        self.over = threading.Event()
        self.kills: collections.Counter[str] = collections.Counter()

    def run(self) -> None:
        while not self.over.wait(self._random.uniform(0.05, 0.3)):
            self._pods.start_again()
            dice = self._random.random()
            if dice < 0.02 and self._server is not None:
                self._crash(self._server)
            elif dice < 0.06:
                self._kill_master()
            elif dice < 0.09:
                self._kill(zygote=True)
            else:
                self._kill(zygote=False)

    def _crash(self, server: CrashingServer) -> None:
        self._ledger.faults.append((time.monotonic(), None))
        server.stop()
        server.start()
        self._ledger.faults.append((time.monotonic(), None))
        self.kills["database_crashes"] += 1

    def _kill_master(self) -> None:
        which = self._random.randrange(len(self._pods.masters))
        pid = self._pods.masters[which].pid
        self._note(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._pods.replace(which)
        self.kills["killed_masters"] += 1

    def _kill(self, *, zygote: bool) -> None:
        zygotes, *below = self._family(self._random.choice(self._pods.masters).pid)
        candidates = zygotes if zygote else [pid for pids in below for pid in pids]
        if candidates:
            pid = self._random.choice(candidates)
            self._note(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.kills["killed_zygotes" if zygote else "killed_workers"] += 1

    def _family(self, master: int) -> list[list[int]]:
        zygotes = [pid for pid in self._pods.below(master) if _parent(pid) == master]
        return [zygotes, *(self._pods.below(zygote) for zygote in zygotes)]

    def _note(self, pid: int) -> None:
        self._ledger.faults.append((time.monotonic(), frozenset([pid, *self._pods.below(pid)])))


def _parent(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def produce(storage: Storage, ledger: Ledger, n: int, rate: float) -> None:
    """All jobs, in batches; what is not known to be stored is stored again, under the same ids."""
    ids, began = fastpath.uuid7_many(n), time.monotonic()
    for at in range(0, n, BATCH):
        time.sleep(max(0.0, began + at / rate - time.monotonic()))
        numbers = range(at, min(at + BATCH, n))
        jobs = [_job(ids[i], i) for i in numbers]
        while True:
            with suppress(ForgeError):
                storage.enqueue(jobs)
                break
            time.sleep(0.1)
        ledger.acknowledged.update(numbers)


def _job(id: Any, number: int) -> NewJob:
    kind, queue = ("wait", "wide") if number % 5 == 0 else ("work", "short")
    return NewJob(id, kind, b"%d" % number, queue, max_attempts=1000)


def wait(pods: Pods, ledger: Ledger, storage: Storage, n: int) -> None:
    """Until every job has ended, or nothing ends any more."""
    last, since = -1, time.monotonic()
    with Progress("ledger", n) as bar:
        while True:
            pods.start_again()
            ended = ledger.ended()
            bar.at(min(ended, n))
            if ended >= n and _live(storage) == 0:
                return
            if ended != last:
                last, since = ended, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                return
            time.sleep(0.5)


def _live(storage: Storage) -> int:
    with suppress(ForgeError):
        return sum(c.pending + c.scheduled + c.in_progress + c.failed for c in storage.counts().values())
    return -1


def main() -> None:
    """A few minutes."""
    parser = options(__doc__ or "", jobs=100_000, rounds=1)
    parser.add_argument("--rate", type=float, default=1500, help="jobs enqueued per second (1500)")
    parser.add_argument("--seed", type=int, default=1, help="of the dice")
    args = parser.parse_args()
    gc.freeze()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="forge-ledger-") as made:
        figures = run(args, Path(made))
    jobs_per_s = args.jobs / figures.pop("seconds")
    finish(args, began, args.jobs, jobs_per_s=jobs_per_s, **figures)


def run(args: Any, folder: Path) -> dict[str, Any]:
    """The trial, in a folder of its own; what it found."""
    server = CrashingServer(folder / "pg") if args.backend == "postgres" else None
    url = server.url if server is not None else f"sqlite:///{folder}/forge.db"
    (folder / "forge.toml").write_text(SETTINGS)
    env = {
        **os.environ,
        "FORGE_BENCH_LEDGER": str(folder / "ledger"),
        "FORGE_DATABASE_URL": url,
        "FORGE_IMPL": args.impl,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    ledger = Ledger(folder / "ledger")
    with open_storage(url) as storage:
        storage.migrate()
        pods = Pods(folder, env, 2 if server is not None else 1)
        killer = Killer(pods, ledger, server, args.seed)
        say(f"ledger, {args.backend}, {args.jobs:,} jobs, {len(pods.masters)} pods")
        since = time.perf_counter()
        producer = threading.Thread(target=produce, args=(storage, ledger, args.jobs, args.rate), daemon=True)
        producer.start()
        killer.start()
        producer.join()
        while ledger.ended() < args.jobs * 0.98 and time.perf_counter() - since < 600:
            time.sleep(0.5)  # the last ones run in peace, so that there is an end
        killer.over.set()
        killer.join()
        wait(pods, ledger, storage, args.jobs)
        seconds = time.perf_counter() - since
        codes = pods.stop()
        figures = verdict(ledger, storage, args.jobs) | dict(killer.kills)
    if any(codes):
        say((folder / "master.log").read_text()[-4000:])
        raise RuntimeError(f"masters ended with {codes}")
    if figures["lost"] or figures["duplicates"] or figures["stuck"] or figures["phantom"]:
        say((folder / "master.log").read_text()[-20000:])
    if server is not None:
        server.close()
    return figures | {"seconds": seconds, "server": server.version if server is not None else None}


def verdict(ledger: Ledger, storage: Storage, n: int) -> dict[str, Any]:
    """See above."""
    _, ends = ledger.read()
    done = storage.ended_counts()
    finished = sum(counts.get(Status.DONE, 0) for counts in done.values())
    ended = {number for number in ledger.acknowledged if ends.get(number)}
    again = {number: sorted(each) for number, each in ends.items() if len(each) > 1}
    unexplained = [
        number
        for number, each in again.items()
        if not all(ledger.explains(one, two) for one, two in itertools.pairwise(each))
    ]
    blamed = sum(job.crashes > 0 for job in _all_jobs(storage))
    return {
        "lost": max(len(ledger.acknowledged) - len(ended), n - finished),
        "phantom": max(0, finished - len([number for number in ends if ends[number]])),
        "stuck": max(0, _live(storage)),
        "again": len(again),
        "duplicates": len(unexplained),
        "blamed": blamed,
    }


def _all_jobs(storage: Storage) -> Iterator[Job]:
    cursor: str | None = None
    while True:
        page = storage.find(JobFilter(), 5000, cursor)
        yield from page.jobs
        cursor = page.cursor
        if cursor is None:
            return


if __name__ == "__main__":
    main()
