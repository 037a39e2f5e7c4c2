"""A slot: room for one worker process of a queue, the process in it, and the jobs it has in hand."""

from __future__ import annotations

import socket
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from forge import fastpath
from forge.job import Claim, Done, Ending
from forge.master.queues.job_pace import LONG
from forge.master.queues.long_kinds import long_ones
from forge.master.workers.zygote_process import ZygoteProcess
from forge.protocol import Ends, ProtocolError, frame_of, within_limit

__all__ = ["Held", "Slot", "Stop"]


Held = tuple[Claim, float]  # a job in a worker's hands, and when it was sent (monotonic)
_DONE = Done()


@dataclass(slots=True, eq=False)
class Stop:
    """A job that is to stop, and how far the master has gone to stop it."""

    why: str
    failed: bool  # past its timeout: it has failed. Else it was cancelled, and its row says so
    next_at: float  # monotonic: when to go on
    step: int = 0  # asked, interrupted, killed
    leaving: bool = False  # the pod stops: the job goes back, and what does not stop is killed with the pod
    grace: float | None = None  # seconds between two steps, if not `cancel_grace`
    delay: float | None = None  # seconds until the retry, if the worker has said

    def put_off(self, until: float) -> None:
        """Take the next step then (monotonic)."""
        self.next_at = until

    def go_on(self, now: float, grace: float) -> int:
        """Go one step further, and set the time of the next one, after a grace. Returns the step: 1 ask, 2 interrupt,
        more: kill."""
        self.step += 1
        self.next_at = now + (grace if self.grace is None else self.grace)
        return self.step

    def retry_after(self, seconds: float) -> None:
        """Keep what the worker says of the task's own delay until its retry."""
        self.delay = seconds

    @property
    def ends(self) -> Ends:
        """The status that the job ends with, see `forge.protocol`."""
        return "released" if self.leaving else "failed" if self.failed else "cancelled"


class Heard(NamedTuple):
    """What a worker has said."""

    done: list[Ending]  # the usual: jobs that are done, without a result
    lines: list[bytes]  # everything else
    total: float  # seconds that the done ones took together
    longest: float  # seconds that the longest of them took
    long: Sequence[tuple[Ending, float]] = ()  # those that took long, and the seconds


class Slot:
    """One worker as the master sees it. A worker of capacity 1 runs jobs in the order they were sent: the oldest
    unanswered one is running, the others were sent ahead. One of more capacity runs all it has."""

    def __init__(self, queue: str, number: int | str, *, alone: bool = False) -> None:
        """`alone`: its worker has capacity 1, whatever the queue's workers have."""
        self.queue = queue
        self.label = f"{queue}/{number}"
        self.alone = alone
        self.retired = False  # when the process is gone the slot goes too
        self.serial = 0  # of the process: an answer for one before it is for nobody
        self.channel: socket.socket | None = None
        self.zygote: ZygoteProcess | None = None  # that the process was forked from
        self.pid = 0  # by the zygote's word
        self.greeted_as = 0  # the pid that its own hello names
        self.ready = False  # both are known, and the same
        self.lost = False  # its process is gone, which has yet to be dealt with
        self.capacity = 1  # jobs it runs at the same time
        self.draining = False
        self.drained_at = 0.0
        self.leaving: str | None = None  # why the worker wants to be replaced
        self.failed: str | None = None  # which of its hooks has, and why, by its own word
        self.in_hand: dict[str, Held] = {}  # by the hex of its id, oldest first
        self.stops: dict[str, Stop] = {}
        self.head_since = 0.0  # monotonic: when the oldest one came to be the running one
        self.recalled = False  # since the head came to be the head, and the last job came behind it
        self.started_at = 0.0
        self.killed_for: str | None = None  # why the master killed it
        self.blameless = False  # it was killed for something that its jobs in hand had no part in
        self._out: deque[bytes] = deque()
        self._rest = b""  # of a line that has not come in whole

    def open(self, channel: socket.socket, zygote: ZygoteProcess) -> None:
        """A new process is being forked for this slot."""
        channel.setblocking(False)
        self.channel, self.zygote = channel, zygote
        self.serial += 1
        self.pid, self.greeted_as, self.ready, self.capacity = 0, 0, False, 1
        self.killed_for, self.blameless, self.failed = None, False, None
        self.draining, self.leaving, self.recalled, self.lost = False, None, False, False
        self.started_at = time.monotonic()
        self.stops.clear()
        self._out.clear()
        self._rest = b""

    @property
    def free(self) -> bool:
        """Whether its worker may be given jobs, if it has room."""
        if self.lost or (self.zygote is not None and self.zygote.gone):  # a job sent now would be blamed for its end
            return False
        return self.ready and not self.draining and self.killed_for is None

    def runs_long(self, now: float, seconds: float) -> bool:
        """Whether its only place has been taken by the same job for longer than this, as far as is known."""
        return self.capacity == 1 and bool(self.in_hand) and now - self.head_since > seconds

    @property
    def head(self) -> Claim | None:
        """The job that its worker has had for longest."""
        return next(iter(self.in_hand.values()))[0] if self.in_hand else None

    def send(self, claims: list[Claim], now: float) -> None:
        """Give jobs to its worker. They are written by the next `flush`."""
        if not self.in_hand:
            self.head_since = now
        self.recalled = False
        self._out.append(fastpath.job_lines(claims, self.in_hand, now))

    def say(self, line: bytes) -> None:
        """Send another line to its worker, with the next `flush`."""
        if self.channel is not None:
            self._out.append(line)

    def drain(self) -> None:
        """Have its worker give back what it has not started, and leave after what it has."""
        if not self.draining and self.channel is not None:
            self.draining, self.drained_at = True, time.monotonic()
            self._out.append(frame_of({"do": "drain"}))

    def recall(self, *, again: bool = False) -> None:
        """Have its worker give back what it has not started. Sent once for each job that others wait behind, unless
        `again`."""
        if again or not self.recalled:
            self.recalled = True
            self.say(frame_of({"do": "recall"}))

    def retire(self) -> None:
        """Give the slot up: when its process has ended what it runs, both go."""
        self.retired = True
        self.drain()

    def keep(self) -> None:
        """Do not give the slot up after all: another process follows the one that leaves."""
        self.retired = False

    def wants_to_leave(self, why: str) -> None:
        """Its worker asks to be replaced: drain it."""
        self.leaving = why
        self.drain()

    def could_not_start(self, why: str) -> None:
        """Note that its worker could not start: a hook has failed, or it was not ready in time."""
        self.failed = why

    def mark_killed(self, why: str, *, blameless: bool) -> None:
        """Note that the master kills its process, and why. `blameless`: not for anything that its jobs in hand did."""
        self.killed_for, self.blameless = why, blameless

    def mark_lost(self) -> None:
        """Note that its process is gone. What it had in hand is dealt with later."""
        self.lost = True

    @property
    def wants_to_write(self) -> bool:
        """Whether lines wait to be written."""
        return bool(self._out)

    @property
    def unwritten(self) -> int:
        """How many bytes wait to be written."""
        return sum(map(len, self._out))

    def flush(self) -> None:
        """Write as much as the socket takes now."""
        while self._out and self.channel is not None:
            data = b"".join(self._out)
            self._out.clear()
            try:
                sent = self.channel.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # its end is seen on the reading side
            if sent < len(data):
                self._out.append(data[sent:])
                return

    def receive(self, now: float, times: array[int] | None = None, ahead: float | None = None) -> Heard:
        """Read what has come from the worker. Raises EOFError if its process is gone. Jobs that are done are counted in
        `times`, see `forge.fastpath.timed`."""
        assert self.channel is not None
        within_limit(self._rest)  # before anything is taken out of hand
        try:
            data = self.channel.recv(1 << 18)
        except BlockingIOError:
            return Heard([], [], 0.0, 0.0)
        except OSError:
            data = b""
        if not data:
            raise EOFError
        head = next(iter(self.in_hand), None)
        # A job that is to stop is looked at closely.
        in_hand = {} if self.stops else self.in_hand
        data = self._rest + data if self._rest else data
        done, lines, self._rest, total, longest = fastpath.answers(data, in_hand, _DONE, times, ahead)
        if done and head not in self.in_hand:
            self.head_since, self.recalled = now, False
        return Heard(done, lines, total, longest, long_ones(data, done) if longest > LONG else ())

    def greeted(self, pid: int, capacity: int) -> None:
        """The worker has said hello, and which process it is. That is not believed: it is ready once the zygote has
        said the same."""
        if self.greeted_as:
            raise ProtocolError("hello again")
        self.greeted_as, self.capacity = pid, capacity
        self._compare()

    def forked(self, pid: int) -> None:
        """Note the process number that the zygote has told."""
        self.pid = pid
        self._compare()

    def _compare(self) -> None:
        if self.pid and self.greeted_as:
            if self.pid != self.greeted_as:
                raise ProtocolError(f"it says that it is process {self.greeted_as} and is {self.pid}")
            self.ready = True

    def answered(self, id: str, now: float) -> tuple[Claim | None, Stop | None, float]:
        """Take a job out of hand. Returns its claim, how it was being stopped if it was, and when it was sent; the
        claim is None if it was not in hand."""
        if self.in_hand and next(iter(self.in_hand)) == id:
            self.head_since, self.recalled = now, False
        claim, sent = self.in_hand.pop(id, (None, 0.0))
        return claim, self.stops.pop(id, None) if self.stops else None, sent

    def close(self) -> list[Claim]:
        """The process is gone. Returns the jobs that it had in hand, the oldest first."""
        left = [claim for claim, _ in self.in_hand.values()]
        self.in_hand.clear()
        if self.channel is not None:
            self.channel.close()
        self.channel, self.ready, self.pid = None, False, 0
        return left

    def running(self) -> Iterator[tuple[str, Claim, float]]:
        """The jobs that run, by id, and since when."""
        if self.capacity > 1:
            yield from ((id, claim, since) for id, (claim, since) in self.in_hand.items())
        elif self.in_hand:
            id, (claim, _) = next(iter(self.in_hand.items()))
            yield id, claim, self.head_since

    def runs(self, id: str) -> bool:
        """Whether that job has started, as far as is known."""
        return self.capacity > 1 or next(iter(self.in_hand), None) == id
