"""Pools: warm children of any language, each with one job at a time, one line in and exactly one line back.

A child that does anything else is out of step: what it says next could be taken for another job's answer, so it is
killed and replaced, and the job it had is failed with the reason. If the child had not read that job, as the pipe that
it is in tells, it is not the job's fault: another child is given it. The lines themselves are in
`forge.master.programs.pool_protocol`.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Iterator
from uuid import UUID

from forge import delays
from forge.codec import encode_payload
from forge.config import PoolConfig
from forge.descendants import how_it_ended
from forge.errors import InvalidJob
from forge.job import MAX_PAYLOAD, Cancelled, Claim, Done, Ending, Failed, Outcome, Released, unstorable
from forge.master.programs.places import Places
from forge.master.programs.pool_protocol import OutOfStep, outcome_of, request_line, shown
from forge.master.programs.process_table import CANNOT_RUN, Process, ProcessTable, Recipe

__all__ = ["Child", "Pool", "failed", "unstarted"]

# Bytes of a line: the largest result there can be, and what is around it. A child may write any of its characters as
# \u and four digits, which is six bytes for one.
MAX_REPLY = 6 * MAX_PAYLOAD + 65_536
END_KNOWN_WITHIN = 0.25  # seconds after a child closed a pipe until it is asked no longer how it ended
LEAVE_WITHIN = 2.0  # seconds after its stdin was closed
SETTLED = 1.0  # seconds: a child as old as this has been started for certain
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0  # seconds before the successor of a child that never answered
NOT_STARTED_PAUSE = (5.0, 60.0)  # seconds that a job whose program is missing stays away: as of an unknown kind
# Times that a job is given to another child because one that had never answered a job spoke before it read this one: so
# may its successors. One that has answered is different: its successor begins with this job.
MOST_AGAIN = 3
TELL_EVERY = 60.0  # seconds between complaints about the same program


def failed(claim: Claim, message: str) -> Ending:
    """The ending of a job that has failed. It is tried again after the default delay: its kind has no task that says
    another."""
    return Ending(claim, Failed(message), delays.by_default(claim.attempt))


def unstarted(claim: Claim, why: str) -> Ending:
    """The ending of a job that goes back as if it had never been claimed, but not at once: what is missing here may be
    there on another pod, or later."""
    return Ending(claim, Released(why), random.uniform(*NOT_STARTED_PAUSE))


class Child(Process):
    """One process of a pool."""

    def __init__(self, table: ProcessTable, label: str, pool: Pool) -> None:
        super().__init__(table, label)
        self._pool = pool
        self.job: Claim | None = None
        self.answers = 0
        self.leaving_by: float | None = None  # monotonic; asked to leave
        self._kill_at = 0.0
        self._seconds = 0  # the job's timeout
        self._request = 0  # bytes
        self._reply = bytearray()
        self._silent_since: float | None = None
        self._silent_pipe = ""

    @property
    def silent(self) -> bool:
        """Whether it has closed one of its pipes: it is about to end, or does not behave as a child must."""
        return self._silent_since is not None

    def give(self, claim: Claim, seconds: int) -> None:
        """Give it a job, which it must answer within so many seconds."""
        line = request_line(claim, seconds)
        self.job, self._request, self._seconds = claim, len(line), seconds
        self._kill_at = time.monotonic() + seconds
        self._reply.clear()
        self.write(line)

    def leave(self, within: float = LEAVE_WITHIN) -> None:
        """Close its stdin. A child that has no job ends then; it is killed if it has not after so many seconds."""
        if self.leaving_by is None:
            self.leaving_by = time.monotonic() + within
            self.write(b"", close=True)

    def tick(self, now: float) -> None:
        """Act on a job that takes too long, a child that does not leave, and one that has closed a pipe."""
        if self.job is not None and now >= self._kill_at:
            self.fail(f"timeout after {self._seconds} s", timed_out=True)
        elif self.leaving_by is not None:
            if now >= self.leaving_by:
                self.kill()
                self._pool.vacate(self)
        elif self._silent_since is not None and now - self._silent_since > END_KNOWN_WITHIN:
            self._closed_a_pipe()

    def _closed_a_pipe(self) -> None:
        why = f"it closed its {self._silent_pipe} and went on"
        if self._never_saw_its_job(self.unread()):
            self._fail_without_its_job(why)
        else:
            self.fail(why)

    def _fail_without_its_job(self, why: str) -> None:
        """Kill it. Its job, which it has not read, is given to another child."""
        job, self.job = self.job, None
        self.fail(why)
        if job is not None:
            self._pool.give_again(job, None if self.answers else f"{self.who}: {why}")

    def _never_saw_its_job(self, unread: int) -> bool:
        """Whether its job can be given to another child as if nothing had happened: it has answered before, and has not
        read this one. A child that has never answered may never read a job, and neither may its successors: that job
        fails."""
        return self.job is not None and self.answers > 0 and unread >= self._request

    def fail(self, why: str, *, timed_out: bool = False) -> None:
        """Kill it. Its job, if it has one, has failed for this reason. `timed_out`: the reason is the job's own, so it
        does not name the child."""
        job, self.job = self.job, None
        self.kill()
        self._pool.vacate(self, f"was killed: {why}")
        if job is not None:
            self._pool.finish(failed(job, why if timed_out else f"{self.who}: {why}"))

    def cancel(self) -> None:
        """Kill it; its job is cancelled. A child cannot be told of a cancellation."""
        job = self.drop()
        if job is not None:
            self._pool.finish(Ending(job, Cancelled()))

    def drop(self) -> Claim | None:
        """Kill it. Returns the job that it had, which the caller must end; None if it had none."""
        job, self.job = self.job, None
        self.kill()
        self._pool.vacate(self)
        return job

    # -- what it does ------------------------------------------------------------------------------------------

    def heard(self, data: bytes) -> None:
        if self.killed:
            return
        if self.job is None:
            self.fail(f"it wrote without having a job (desync): {shown(data)}")
            return
        start = len(self._reply)
        if not start and self.unread() >= self._request:
            self._fail_without_its_job(f"it answered before it read the job (desync): {shown(data)}")
            return
        self._reply += data
        end = self._reply.find(b"\n", start)
        if end > MAX_REPLY or (end < 0 and len(self._reply) > MAX_REPLY):
            self.fail(f"its answer has more than {MAX_REPLY:,} bytes")
        elif end >= 0:
            self._answered(bytes(self._reply[:end]), bytes(self._reply[end + 1 :]))

    def _answered(self, line: bytes, more: bytes) -> None:
        assert self.job is not None
        try:
            outcome = outcome_of(line, str(self.job.id))
        except OutOfStep as e:
            self.fail(str(e))
            return
        job, self.job = self.job, None
        self.answers += 1
        self._pool.answered(self, _ending(job, outcome))
        if more:
            self.fail(f"it wrote more than one line for a job (desync): {shown(more)}")

    def went_silent(self, pipe: str) -> None:
        if self._silent_since is None and not self.killed:
            self._silent_since, self._silent_pipe = time.monotonic(), pipe

    def ended(self) -> None:
        if self.killed:
            return
        unseen = self._never_saw_its_job(self.unread_at_end)
        job, self.job = self.job, None
        missing = self.last_words if self.status in (127, None) and self.last_words.startswith(CANNOT_RUN) else None
        why = f"{how_it_ended(self.status)}{' in the middle of its answer' if self._reply and job else ''}"
        if missing is not None:
            self._pool.cannot_start(missing)
        self._pool.vacate(self, None if self.leaving_by is not None else why)
        if job is None:
            return
        if missing is not None:
            self._pool.finish(unstarted(job, missing))
        elif unseen:
            self._pool.give_again(job)
        elif self.zygote.gone:
            self._pool.starter_gone(job)
        else:
            self._pool.finish(failed(job, f"{self.who} {why}, without an answer"))


def _ending(claim: Claim, outcome: Outcome) -> Ending:
    match outcome:
        case Done():
            if not claim.keep_result:
                return Ending(claim, Done())
            try:
                return Ending(claim, Done(), result=encode_payload(outcome.result, name="result"))
            except InvalidJob as e:
                return Ending(claim, unstorable(str(e), "its work was done, but its result cannot be stored"))
        case Failed():
            return failed(claim, outcome.message)
    return Ending(claim, outcome)


class _Seat:
    """Room for one child."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.child: Child | None = None
        self.start_at = 0.0  # monotonic: not before this
        self.barren = 0  # children in a row that never answered


class Pool:
    """The children of one program, and the jobs that wait for a free one."""

    def __init__(self, name: str, config: PoolConfig, recipe: Recipe, table: ProcessTable, places: Places) -> None:
        self.name, self.kind = name, config.kind
        self.waiting: deque[Claim] = deque()
        self._again: Counter[UUID] = Counter()  # jobs that no child has read, by no fault of theirs
        self._recipe, self._timeout = recipe, config.timeout
        self._table, self._places = table, places
        self._seats = [_Seat(f"{name}/{n}") for n in range(config.size)]
        self._retired = False
        self._missing: str | None = None  # why the program cannot be started
        self._told_at = -TELL_EVERY

    # -- jobs --------------------------------------------------------------------------------------------------

    def take(self, claim: Claim) -> None:
        """Have a job of the pool's kind wait for a free child."""
        if self._missing is not None:
            self.finish(unstarted(claim, self._missing))
        else:
            self.waiting.append(claim)

    def starter_gone(self, claim: Claim) -> None:
        """The zygote has died, and the child that had this job with it."""
        self._again.pop(claim.id, None)
        self._places.starter_gone(claim)

    def finish(self, ending: Ending) -> None:
        """A job of this pool has ended."""
        self._again.pop(ending.claim.id, None)
        self._places.finish(ending)

    def take_out(self) -> list[Claim]:
        """Take out the jobs that wait. Returns them."""
        found = list(self.waiting)
        self.waiting.clear()
        return found

    def give(self) -> None:
        """Give waiting jobs to free children, the oldest first. A job whose queue has no place lets others pass."""
        free = (child for child in self.children() if self._is_free(child))
        held: list[Claim] = []
        child = next(free, None)
        while child is not None and self.waiting:
            claim = self.waiting.popleft()
            if self._places.start(claim):
                child.give(claim, min(claim.timeout, self._timeout or claim.timeout))
                child = next(free, None)
            else:
                held.append(claim)
        self.waiting.extendleft(reversed(held))

    def _is_free(self, child: Child) -> bool:
        if child.job is not None or self._missing is not None or child.leaving_by is not None:
            return False
        child.look()  # a line too many that has just come must not be taken for the next job's answer
        return not child.killed and not child.silent

    def running(self) -> Iterator[Child]:
        """The children that have a job."""
        return (child for child in self.children() if child.job is not None)

    def give_again(self, claim: Claim, why: str | None = None) -> None:
        """Give a job to another child, because no child has read it. With a reason `why` it may not be read the next
        time either: then it fails after a few times."""
        if why is not None:
            self._again[claim.id] += 1
            if self._again[claim.id] > MOST_AGAIN:
                self.finish(failed(claim, why))
                return
        self._places.put_back(claim)
        self.waiting.appendleft(claim)

    # -- children ----------------------------------------------------------------------------------------------

    def children(self) -> Iterator[Child]:
        """The children that run."""
        return (seat.child for seat in self._seats if seat.child is not None)

    def tick(self, now: float) -> None:
        """Have each child look at the clock, and start a child in each empty seat whose time has come."""
        for seat in self._seats:
            if seat.child is not None:
                if self._missing is not None and now - seat.child.started_at > SETTLED:
                    self._missing = None
                seat.child.tick(now)
            elif now >= seat.start_at and not (self._retired or self._table.closed or self._table.zygote.gone):
                seat.child = Child(self._table, seat.label, self)
                self._table.start(seat.child, self._recipe)

    @property
    def waits(self) -> bool:
        """Whether `tick` must be called now and then."""
        if self._missing is not None or not all(seat.child for seat in self._seats):
            return True
        return any(c.job is not None or c.silent or c.leaving_by is not None or c.waits for c in self.children())

    def retire(self) -> None:
        """Start no more children; those that run leave as their jobs end."""
        self._retired = True
        for child in list(self.children()):
            if child.job is None:
                child.leave()

    def answered(self, child: Child, ending: Ending) -> None:
        """A child has answered for its job, which ends so."""
        for seat in self._seats:
            if seat.child is child:
                seat.barren = 0
        self.finish(ending)
        if self._retired:
            child.leave()

    def vacate(self, child: Child, why: str | None = None) -> None:
        """A child is gone, or was killed: its seat is empty. With a reason `why` the log says so."""
        for seat in self._seats:
            if seat.child is child:
                seat.child = None
                seat.barren = 0 if child.answers or why is None else seat.barren + 1
                pause = min(FIRST_PAUSE * 2 ** (seat.barren - 2), LONGEST_PAUSE) if seat.barren > 1 else 0.0
                seat.start_at = time.monotonic() + pause
                self._table.look_by(seat.start_at)
                if why is not None and self._missing is None:
                    again = "" if self._retired else f"; another starts {f'in {pause:.1f} s' if pause else 'at once'}"
                    self._table.log(f"{child.who} {why}{again}", f"pool {self.name}")

    def cannot_start(self, why: str) -> None:
        """The program cannot be started: jobs go back instead of waiting for it."""
        self._missing = why
        now = time.monotonic()
        if now - self._told_at >= TELL_EVERY:
            self._told_at = now
            self._table.log(f"{why}; jobs of kind {self.kind} go back until it can be", f"pool {self.name}")
        while self.waiting:
            self.finish(unstarted(self.waiting.popleft(), why))
