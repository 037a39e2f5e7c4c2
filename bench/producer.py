"""A process that enqueues: in bulk, as fast as it can or at a rate, never further ahead of the workers than it may.

Started by a bench (`producing`); it connects, says `ready`, and waits for a line before it begins. Before each chunk it
writes down which one that is, so that a later process can go on exactly where this one was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.ground import Ground
from bench.pod import Board, Project, new_jobs
from bench.raw_sqlite import INSERT
from forge.job import NewJob
from forge.storage import open_storage

Store = Callable[[list[NewJob]], object]


def _raw_store(url: str) -> Store:
    """COPY, or inserts in one transaction, by hand."""
    if url.startswith("postgres"):
        conn = psycopg.connect(url)

        def copied(jobs: list[NewJob]) -> None:
            with conn.transaction(), conn.cursor().copy("copy forge.job (id, queue, kind, payload) from stdin") as copy:
                for job in jobs:
                    copy.write_row((job.id, "default", job.kind, job.payload.decode()))

        return copied
    lite = apsw.Connection(url.removeprefix("sqlite:///"))
    lite.set_busy_timeout(30_000)
    lite.execute("pragma synchronous = full")

    def inserted(jobs: list[NewJob]) -> None:
        now = int(time.time() * 1e6)
        rows = [(job.id.bytes, now, now, "default", job.kind, job.payload.decode()) for job in jobs]
        lite.execute("begin immediate")
        lite.executemany(INSERT, rows)
        lite.execute("commit")

    return inserted


def _produce(args: argparse.Namespace, board: Board, store: Store) -> float:
    """Everything; the seconds it took."""
    state = os.open(args.state, os.O_WRONLY | os.O_CREAT)
    began = time.monotonic()
    for first in range(args.first, args.end, args.chunk):
        while args.ahead and first - board.reached(first) > args.ahead:
            time.sleep(0.002)
        # At a rate, a job counts as enqueued when it was to be: what this process is late by, the jobs are late by.
        due = began + (first - args.first) / args.rate if args.rate else None
        if due is not None:
            time.sleep(max(0.0, due - time.monotonic()))
        chunk = list(new_jobs(first, min(args.chunk, args.end - first), args.kind, due))
        # Of a fixed length: one write over the last.
        os.pwrite(state, json.dumps({"first": first, "id": str(chunk[0].id)}).ljust(79).encode() + b"\n", 0)
        store(chunk)
    os.pwrite(state, json.dumps({"first": args.end, "id": None}).ljust(79).encode() + b"\n", 0)
    return time.monotonic() - began


def main() -> None:
    """One producer's life."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("url", "board", "state", "kind"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("first", "end", "chunk", "ahead", "jobs"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--raw", action="store_true")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the bench's: it ends this process by TERM
    board = Board(Path(args.board), args.jobs)
    storage = None if args.raw else open_storage(args.url)
    store = _raw_store(args.url) if storage is None else storage.enqueue
    if storage is not None:
        storage.queues()  # connected
    print("ready", flush=True)
    if sys.stdin.readline():
        print(_produce(args, board, store), flush=True)
    if storage is not None:
        storage.close()


class Producer:
    """The process, as its bench sees it."""

    def __init__(self, process: subprocess.Popen[str], state: Path) -> None:
        self._process, self._state = process, state

    def go(self) -> None:
        """Begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def check(self) -> None:
        """It has not failed."""
        if self._process.poll():
            raise RuntimeError(f"the producer ended with {self._process.returncode}")

    def must_go_on(self) -> None:
        """It has jobs left: a rate that was taken while it had none would be its own, and not the pod's."""
        self.check()
        if self._process.poll() is not None:
            raise RuntimeError("the producer ran out of jobs while the rate was taken")

    def so_far(self) -> int:
        """Jobs before the chunk that is being stored."""
        return int(_read(self._state).get("first", 0))

    def note(self) -> str:
        """For beside a progress bar, and an error if it has failed."""
        self.check()
        return f"{self.so_far():,} enqueued"

    def join(self) -> float:
        """Until it is through: the seconds it has taken."""
        assert self._process.stdout is not None
        seconds = self._process.stdout.readline()
        self._process.wait(60)
        self.check()
        return float(seconds)


def _read(state: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(state.read_text() or "{}") if state.exists() else {}
    return found


def stored_so_far(db: Ground, state: Path, chunk: int, jobs: int) -> int:
    """Jobs that an earlier producer has stored for good: a chunk is stored wholly or not at all."""
    last = _read(state)
    if not last:
        return 0
    first = int(last["first"])
    return min(jobs, first + chunk) if last["id"] and db.exists(UUID(last["id"])) else first


@contextmanager
def producing(
    made: Project,
    end: int,
    *,
    first: int = 0,
    chunk: int = 5_000,
    kind: str = "noop",
    ahead: int = 0,
    rate: float = 0.0,
    raw: bool = False,
) -> Iterator[Producer]:
    """A producer of the jobs from `first` to `end` that is ready to begin. `ahead`: no more jobs than that wait."""
    state = made.folder / "producer"
    if first == 0:
        state.unlink(missing_ok=True)
    words = [sys.executable, __file__, "--url", made.db.url, "--board", str(made.folder), "--state", str(state)]
    words += ["--kind", kind, "--first", str(first), "--end", str(end), "--chunk", str(chunk), "--ahead", str(ahead)]
    words += ["--jobs", str(made.board.jobs), "--rate", str(rate), *(["--raw"] if raw else [])]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=made.env) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("the producer did not start")
            yield Producer(process, state)
        finally:
            if process.poll() is None:
                process.terminate()


if __name__ == "__main__":
    main()
