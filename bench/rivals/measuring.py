"""The three measurements, the same for every contender. What is timed, and how, stands at each."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from dataclasses import dataclass

from bench.rivals.board import Board
from bench.rivals.processes import Stage

STALL = 30.0  # seconds without a job run after which the rest is lost
EXTRA = 200  # cells of the board for the jobs that warm up a worker
POLL = 0.005


@dataclass(frozen=True, slots=True)
class Drained:
    """One turn."""

    jobs: int
    seconds: float  # from the first job's start until the queue says that nothing is left to do
    tail: float  # of these, after the last job's start
    steady: float  # jobs per second between the first and the last tenth: without warming up and running dry
    lost: int
    duplicates: int

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return (self.jobs - self.lost) / self.seconds


@dataclass(frozen=True, slots=True)
class Waited:
    """One turn."""

    jobs: int
    seconds: float
    p50: float  # milliseconds from the call that enqueues to the handler's first line
    p99: float
    lost: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class Enqueued:
    """One turn."""

    jobs: int
    seconds: float  # of the calls
    lost: int  # calls that returned without a job in the queue


class Stopped(Exception):
    """A contender's workers ended by themselves."""


def _board(stage: Stage, jobs: int) -> Board:
    folder = stage.folder / "board"
    shutil.rmtree(folder, ignore_errors=True)
    return Board(folder, jobs)


def _until_ran(stage: Stage, workers: list[subprocess.Popen[bytes]], board: Board, jobs: int) -> None:
    """Wait until all have run, or none has for a long while."""
    ran, since = 0, time.monotonic()
    while ran < jobs and time.monotonic() - since < STALL:
        if any(process.poll() is not None for process in workers):
            raise Stopped(f"{stage.contender.name}: a worker ended\n{stage.tail()}")
        time.sleep(POLL)
        if (now := board.ran(jobs)) != ran:
            ran, since = now, time.monotonic()


def _until_finished(stage: Stage) -> float:
    """Wait until the queue has nothing left to do; when that was."""
    end = time.monotonic() + STALL
    while stage.ask("unfinished")["unfinished"] and time.monotonic() < end:
        time.sleep(POLL)
    return time.monotonic()


def drain(stage: Stage, jobs: int) -> Drained:
    """A backlog that is there before the workers are. The clock starts with the first job, so that nobody's
    interpreter and connecting are counted, and stops when the queue itself says that all are done, so that nobody's
    unwritten endings are forgotten."""
    stage.ask("purge")
    stage.ask("bulk" if stage.contender.bulk else "single", jobs=jobs)
    stored = stage.ask("unfinished")["unfinished"]
    assert stored == jobs, f"{stage.contender.name}: {stored} of {jobs} jobs stored"
    stage.settle()
    board = _board(stage, jobs)
    with stage.workers(stage.contender.drain, board.env()) as workers:
        _until_ran(stage, workers, board, jobs)
        finished = _until_finished(stage)
    lost, duplicates = board.verdict(jobs)  # after the workers' end: what ran again late counts too
    starts = sorted(at for at in board.starts(jobs) if at)
    board.close()
    stage.ask("purge")
    if not starts:
        raise Stopped(f"{stage.contender.name}: no job ran\n{stage.tail()}")
    tenth = len(starts) // 10
    middle = starts[tenth : len(starts) - tenth]
    steady = len(middle) / max(1e-9, middle[-1] - middle[0])
    return Drained(jobs, finished - starts[0], finished - starts[-1], steady, lost, duplicates)


def enqueue(stage: Stage, jobs: int, how: str) -> Enqueued:
    """`single`: a call and a commit each, one after another on one connection. `bulk`: calls of 1000 jobs."""
    stage.ask("purge")
    stage.settle()
    seconds = stage.ask(how, jobs=jobs)["seconds"]
    stored = stage.ask("unfinished")["unfinished"]
    stage.ask("purge")
    return Enqueued(jobs, seconds, jobs - stored)


def _warm(stage: Stage, board: Board, first: int) -> None:
    """A job that starts them, and then so many that every process has had some."""
    end = time.monotonic() + STALL
    stage.ask("single", jobs=1, first=first)
    while not board.has_run(first):
        if time.monotonic() > end:
            raise Stopped(f"{stage.contender.name}: no job ran\n{stage.tail()}")
        time.sleep(0.02)
    for i in range(first + 1, first + EXTRA // 4):
        stage.ask("single", jobs=1, first=i)
        time.sleep(0.01)
    _until_finished(stage)
    time.sleep(0.5)


def latency(stage: Stage, jobs: int, rate: float) -> Waited:
    """Jobs at a fixed rate for workers that have nothing else to do."""
    stage.ask("purge")
    stage.settle()
    board = _board(stage, jobs + EXTRA)
    with stage.workers(stage.contender.latency or stage.contender.drain, board.env()) as workers:
        _warm(stage, board, jobs)
        began = time.monotonic()
        sent = stage.ask("paced", jobs=jobs, rate=rate)["sent"]
        _until_ran(stage, workers, board, jobs)
        _until_finished(stage)
        seconds = time.monotonic() - began
    lost, duplicates = board.verdict(jobs)
    starts = board.starts(jobs)
    board.close()
    stage.ask("purge")
    waits = [1000 * (start - at) for start, at in zip(starts, sent, strict=True) if start]
    if len(waits) < 2:
        raise Stopped(f"{stage.contender.name}: no job ran\n{stage.tail()}")
    hundredths = statistics.quantiles(waits, n=100, method="inclusive")
    return Waited(jobs, seconds, hundredths[49], hundredths[98], lost, duplicates)
