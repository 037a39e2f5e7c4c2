"""What this pod counts, and how it comes into the database.

The loop counts, in batches, into arrays that only grow; a service looks at them every ten seconds, and reports what is
new. So counting costs next to nothing and waits for nobody. A report is kept until the database has taken it: in an
outage it waits and is sent again as it was, and what is counted meanwhile is the next one. What a pod that is killed
has counted since its last report, ten seconds of it, nobody will know.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from forge import fastpath
from forge.cluster.metrics import BOUNDS, BUCKETS, Growth, Tally
from forge.cluster.service import Service
from forge.errors import ForgeError
from forge.job import Cancelled, Claim, Dead, Ending, Failed, Outcome, Released, Snooze, Status, Throttled
from forge.master.pod.log import log
from forge.master.pod.process_use import ProcessUse
from forge.storage import Storage
from forge.storage.contract import metrics as stored

__all__ = ["Meter", "Metering", "Processes"]

AT_FIRST = 1.0  # seconds in which a new pod says that it is there
EVERY = 10.0  # seconds between reports while there is something to report
AT_LEAST = 55.0  # seconds between reports that only say that the pod lives: under a minute, so that each minute has one
CLOCK_LASTS = 60.0  # seconds for which it is gone by what the database said its time was, if later answers are worse

# How an attempt ended; one that was given back unfinished did not.
_WORDS: dict[type[Outcome], str] = {
    Failed: "failed",
    Dead: "failed",
    Throttled: "throttled",
    Snooze: "snoozed",
    Cancelled: "cancelled",
}


class Processes(NamedTuple):
    """The process numbers of a pod's children."""

    zygotes: Sequence[int]
    workers: Sequence[int]


class Meter:
    """Everything that is counted. Each part is written by one thread."""

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}  # by queue; of the loop
        self.reaped: dict[str, Tally] = {}  # by queue; of the services' thread
        self.spans = {name: array("q", bytes(8 * BUCKETS)) for name in stored.TIMINGS}  # of a thread each
        self.ahead: float | None = None  # seconds by which the clock of `Claim.run_at` is ahead of the monotonic one
        self._asked = math.inf, 0.0  # how long the question for it took, and when that was

    def tally(self, queue: str) -> Tally:
        """The counters of a queue. On the loop."""
        found = self.tallies.get(queue)
        if found is None:
            found = self.tallies[queue] = Tally()
        return found

    def ask_clock(self, storage: Storage) -> None:
        """Ask the database for its time, and note how far that is ahead of the monotonic clock. The answer is taken to
        be of the middle of the question. A question that took long is less exact: its answer is used only if the last
        good one is old."""
        began = time.monotonic()
        now = storage.now()
        ended = time.monotonic()
        shortest, at = self._asked
        if ended - began <= 1.5 * shortest or ended - at > CLOCK_LASTS:
            self._asked = ended - began, ended
            self.ahead = now - storage.metrics.due_epoch - (began + ended) / 2

    def took(self, what: str, began: float) -> None:
        """Count how long the database took to answer what was asked then (monotonic)."""
        self.spans[what][bisect_left(BOUNDS, time.monotonic() - began)] += 1

    # -- on the loop -------------------------------------------------------------------------------------------

    def ran(self, claim: Claim, since: float, seconds: float) -> None:
        """Count a job that was given to a worker or program then (monotonic) and ran for so many seconds."""
        fastpath.timed(self.tally(claim.queue).times, seconds, claim.run_at, since, self.ahead)

    def completed(self, queue: str, n: int = 1) -> None:
        """Count jobs that are done."""
        self.tally(queue).count("completed", n)

    def ended(self, fates: Iterable[tuple[Ending, Status]]) -> None:
        """Count jobs that ended otherwise, by what became of each."""
        for ending, status in fates:
            tally, outcome = self.tally(ending.claim.queue), ending.outcome
            if status is Status.CANCELLED:
                tally.count("cancelled")
            elif isinstance(outcome, Released):
                if outcome.crashed:
                    tally.count("crashed")
            else:
                tally.count(_WORDS[type(outcome)])
            if status is Status.DEAD:
                tally.count("dead")

    # -- on the services' thread -------------------------------------------------------------------------------

    def taken_back(self, fates: Iterable[tuple[Ending, Status]]) -> None:
        """Count jobs that the reaper took back from pods that had gone silent."""
        for ending, status in fates:
            tally = self.reaped.setdefault(ending.claim.queue, Tally())
            tally.count("reaped")
            if status in (Status.DEAD, Status.CANCELLED):
                tally.count(status.value)


class Metering(Service):
    """Reports what this pod has counted."""

    name = "meter"
    leader_only = False
    every = AT_FIRST

    def __init__(
        self,
        meter: Meter,
        storages: Sequence[Storage],
        pod: Callable[[], int],
        processes: Callable[[], Processes],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Of the pod's storages the last one is reported to; `pod` answers its number."""
        self._meter = meter
        self._storages, self._storage = storages, storages[-1]
        self._pod, self._processes, self._clock = pod, processes, clock
        self._writer = secrets.token_hex(8)
        self._number = 0
        self._growth, self._use = Growth(), ProcessUse()
        self._unsent: stored.MetricReport | None = None
        self._told_at = -AT_LEAST
        self._reporting = threading.Lock()

    def run_once(self, term: int | None) -> str | None:  # noqa: ARG002 (every pod reports)
        self.every = EVERY
        with self._reporting:
            self._resend()
            self._report(always=self._clock() - self._told_at >= AT_LEAST)
        return None

    def last(self, timeout: float) -> None:
        """Report what there is, because the pod is about to go; waits so many seconds for a report that is under
        way."""
        if not self._reporting.acquire(timeout=timeout):
            return
        try:
            self._resend()
            self._report(always=False)
        except ForgeError as e:
            log(f"the last figures were not written: {e}", level=logging.WARNING)
        finally:
            self._reporting.release()

    def _resend(self) -> None:
        """Send a report again that the database may or may not have taken. It is unchanged, so that it counts once."""
        if self._unsent is not None:
            self._send(self._unsent)

    def _report(self, always: bool) -> None:
        processes = self._processes()
        parts = self._parts()
        if not parts and not always:
            return
        self._number += 1
        vitals = self._look(processes, pss=always or self._number % 6 == 1)
        self._told_at = self._clock()
        self._unsent = stored.MetricReport(self._writer, self._number, self._pod(), parts, vitals)
        self._send(self._unsent)

    def _parts(self) -> list[stored.QueueReport]:
        meter = self._meter
        mine, reaped = dict(meter.tallies), meter.reaped
        none = Tally()
        found = (self._growth.part(q, mine.get(q, none), reaped.get(q, none)) for q in sorted({*mine, *reaped}))
        return [part for part in found if part is not None]

    def _look(self, processes: Processes, pss: bool) -> stored.PodFigures:
        zygotes, workers = processes
        cpu, memory = self._use.look(zygotes, workers, pss=pss)
        spans: Mapping[str, stored.Histogram] = {
            name: self._growth.take(name, counts) for name, counts in self._meter.spans.items()
        }
        connections = sum(storage.metrics.connections() for storage in self._storages)
        return stored.PodFigures(socket.gethostname(), os.getpid(), len(workers), connections, cpu, memory, spans)

    def _send(self, report: stored.MetricReport) -> None:
        self._storage.metrics.write(report)
        self._unsent = None
        self._meter.ask_clock(self._storage)
