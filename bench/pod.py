"""A real `forge-master` on a project of the bench's own, and the scoreboard on which its jobs leave their mark.

    with ground("postgres") as db, project(db, jobs=50_000, workers=2) as made:
        db.fill(new_jobs(0, 50_000))
        with made.pod():
            made.wait(50_000)
        lost, duplicates = made.verdict(50_000)

The scoreboard (`bench/tasks.py` writes it) is one byte a job, how often it ran, and one float64, how late it started.
It is what says that nothing was lost or ran twice; history, counted in plain SQL, must say the same.
"""

from __future__ import annotations

import array
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.common import ROOT, Progress
from bench.ground import Ground
from forge import fastpath
from forge.job import NewJob

STALLED = 60.0  # seconds without a job that ends; then what is missing counts as lost
SAYS = {"c": "(native)", "py": "(pure Python)"}  # a master, of its fast path
_PAYLOAD = b'{"i": %d, "t": %.6f, "pad": "' + b"x" * 62 + b'"}'
_TYPED = b'{"args": [%d, %.6f, "' + b"x" * 45 + b'"], "kwargs": {}}'


def new_jobs(first: int, n: int, kind: str = "noop", t: float | None = None) -> Iterator[NewJob]:
    """Jobs number `first` and on, with payloads of about 100 bytes; `t` (monotonic) is when they count as enqueued."""
    payload, t = _TYPED if kind == "typed" else _PAYLOAD, time.monotonic() if t is None else t
    for i, id_ in enumerate(fastpath.uuid7_many(n), first):
        yield NewJob(id_, kind, payload % (i, t))


class Verdict(NamedTuple):
    """Both are to be 0."""

    lost: int
    duplicates: int


class Board:
    """The scoreboard, as the bench sees it."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.folder, self.jobs = folder, jobs
        self._ran = _mapped(folder / "ran", jobs)
        self._late = _mapped(folder / "late", jobs * 8)  # a hole in the file until it is written
        self._low = 0

    def clear(self) -> None:
        """No job has run."""
        self._ran[:] = bytes(self.jobs)
        self._low = 0

    def reached(self, n: int) -> int:
        """Jobs before the first one of n that has not run. Costs next to nothing: it looks on from where it was."""
        found = self._ran.find(b"\0", self._low, n)
        self._low = n if found < 0 else found
        return self._low

    def has_run(self, i: int) -> bool:
        """This one has."""
        return self._ran[i] > 0

    def late(self, first: int, end: int) -> array.array[float]:
        """Seconds from enqueue to start, of the jobs that are `timed`."""
        found = array.array("d")
        found.frombytes(self._late[8 * first : 8 * end])
        return found

    def count(self, n: int) -> tuple[int, int]:
        """(jobs of the first n that never ran, runs beyond the first)."""
        cells = self._ran[:n]
        never = cells.count(0)
        return never, sum(cells) - (n - never)

    def close(self) -> None:
        """Unmap; the files stay."""
        self._ran.close()
        self._late.close()


def _mapped(path: Path, size: int) -> mmap.mmap:
    with path.open("ab") as file:
        file.truncate(size)
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


class Pod:
    """One running `forge-master`."""

    def __init__(self, folder: Path, log: Path, env: dict[str, str], module: str = "forge.cli.master") -> None:
        self._log = log
        with log.open("ab") as out:
            words = [sys.executable, "-m", module, "-c", str(folder / "forge.toml")]
            self.process = subprocess.Popen(words, cwd=folder, env=env, stdout=out, stderr=out)

    @property
    def log(self) -> str:
        """What it has said."""
        return self._log.read_text()

    def ready(self, within: float = 60.0) -> None:
        """Until its workers are."""
        end = time.monotonic() + within
        while " ready in " not in self.log:
            self.check()
            assert time.monotonic() < end, self.log
            time.sleep(0.01)

    def check(self) -> None:
        """It still runs."""
        if self.process.poll() is not None:
            raise RuntimeError(f"forge-master has ended with {self.process.returncode}:\n{self.log}")

    def family(self) -> list[int]:
        """The zygote and the workers: every process below the master, the parent before its children."""
        found: list[int] = []
        todo = [self.process.pid]
        while todo:
            pid = todo.pop()
            try:
                below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            except OSError:
                continue
            found += map(int, below)
            todo += map(int, below)
        return found

    def stop(self) -> None:
        """Drain and leave; a master that does not is killed, and that is an error."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"forge-master did not stop:\n{self.log}") from None
        if code != 0:
            raise RuntimeError(f"forge-master ended with {code}:\n{self.log}")


class Project:
    """A folder with a forge.toml, a scoreboard, and the pods that run."""

    def __init__(self, folder: Path, db: Ground, jobs: int) -> None:
        self.folder, self.db, self.board = folder, db, Board(folder, jobs)
        self.pods: list[Pod] = []
        self.workers = 0
        self.env = {
            **os.environ,
            "FORGE_BENCH_BOARD": str(folder),
            "FORGE_DATABASE_URL": db.url,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        }

    def configure(self, workers: int, modules: Sequence[str] = ("bench.tasks",), more: str = "") -> None:
        """Write forge.toml, and have the database know it, where an earlier turn may have left another number."""
        names = ", ".join(f'"{name}"' for name in modules)
        text = f"modules = [{names}]\n[queues.default]\nmax_workers = {workers}\n{more}"
        (self.folder / "forge.toml").write_text(text)
        self.db.storage.set_queue("default", max_workers=workers)
        self.workers = workers

    def wait_for_shares(self) -> None:
        """Until every pod has its part of the workers."""
        each, deadline = self.workers // max(1, len(self.pods)), time.monotonic() + 60
        while len(self.pods) > 1:
            running = [share.running for share in self.db.storage.shares.cluster().shares]
            if running == [each] * len(self.pods):
                return
            assert time.monotonic() < deadline, running
            time.sleep(0.1)

    @contextmanager
    def pod(self, impl: str = fastpath.IMPL, module: str = "forge.cli.master") -> Iterator[Pod]:
        """A master whose workers are ready, until the block ends. `module` is run instead of forge's own."""
        log = self.folder / f"master-{len(self.pods)}.log"
        log.unlink(missing_ok=True)
        made = Pod(self.folder, log, {**self.env, "FORGE_IMPL": impl}, module)
        self.pods.append(made)
        try:
            made.ready()
            assert SAYS[impl] in made.log, f"the master does not run with FORGE_IMPL={impl}"
            yield made
        finally:
            self.pods.remove(made)
            made.stop()

    def wait(self, n: int, bar: Progress, *, also: Callable[[], str] = str) -> float:
        """Until the first n jobs have run and all are in history; the time (perf_counter) at which that was seen. Gives
        up when nothing happens any more: the verdict tells what is missing then.

        Only the board is looked at until every job has run, and only then the database, which has little left to do.
        `also` is called ten times a second; what it answers stands beside the bar.
        """
        last, since, looked, note = -1, time.monotonic(), 0.0, ""
        while True:
            now, seen = self.board.reached(n), time.perf_counter()
            # The query goes over all dead rows, which takes its time; what it saw was so when it began.
            if now == n and not self.db.anything_left():
                return seen
            when = time.monotonic()
            if when - looked > 0.1:
                looked, note = when, also()
                for pod in self.pods:
                    pod.check()
            if now != last:
                last, since = now, when
            elif when - since > STALLED:
                return seen
            bar.at(now, note)
            # Waking up costs this process 10 µs: seldom while there is much to do, often at the end.
            time.sleep(0.01 if now < 0.98 * n else 0.002)

    def verdict(self, n: int) -> Verdict:
        """Scoreboard and history, whichever says worse."""
        never, again = self.board.count(n)
        done = self.db.done()
        return Verdict(max(never, n - done), max(again, done - n))


@contextmanager
def project(db: Ground, jobs: int, workers: int = 2, folder: Path | None = None) -> Iterator[Project]:
    """A project for up to so many jobs; in a folder that is given it stays."""
    if folder is None:
        with (
            tempfile.TemporaryDirectory(prefix="forge-bench-") as made,
            project(db, jobs, workers, Path(made)) as inner,
        ):
            yield inner
        return
    made_project = Project(folder, db, jobs)
    made_project.configure(workers)
    try:
        yield made_project
    finally:
        made_project.board.close()
