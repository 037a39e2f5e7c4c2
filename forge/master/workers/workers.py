"""The worker processes of a pod: made, watched, replaced. What jobs are is known here only where a worker dies."""

from __future__ import annotations

import logging
import math
import os
import selectors
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from forge.descendants import how_it_ended, kill_group
from forge.host_limits import explain
from forge.job import Claim, Ending, Released
from forge.logs import stacks
from forge.master.pod.log import Sometimes, counted, log
from forge.master.pod.meter import Processes
from forge.master.pod_state import PodState
from forge.master.queues.local_queue import LocalQueue
from forge.master.workers.outputs import Outputs
from forge.master.workers.replies import Replies, WorkerBroken
from forge.master.workers.slot import Slot, Stop
from forge.master.workers.stop_job import leave, overdue, press, timed_out
from forge.master.workers.suspects import ZYGOTE_DIED
from forge.master.workers.zygote_process import ZygoteProcess
from forge.master.workers.zygotes import Zygotes
from forge.protocol import MOST_UNANSWERED, ProtocolError, frame_of

__all__ = ["Workers"]

LOOK_EVERY = 0.2  # seconds between looks at how long jobs have run
EXIT_KNOWN_WITHIN = 0.25  # seconds for the zygote to say how a worker ended
YOUNG = 1.0  # a worker that dies younger than this makes its slot wait before the next
LONGEST_PAUSE = 30.0  # seconds that the slot waits at most
# Seconds that the slot waits at most where jobs are to blame. Each of them is dead after a few crashes, so there is an
# end to it, and the others wait for a worker meanwhile.
LONGEST_PAUSE_BY_JOBS = 0.8
NO_PAUSE_BY_JOBS = 3  # deaths by jobs after which the slot does not wait at all
NO_ROOM_PAUSE = 1.0  # seconds until a worker is asked for again that there were too few open files for
ROLL_PATIENCE = 5.0  # a worker with a job that takes longer does not hold up the replacement of the others


class Workers:
    """The worker processes in all slots of all queues."""

    def __init__(
        self,
        queues: Mapping[str, LocalQueue],
        state: PodState,
        zygotes: Zygotes,
        replies: Replies,
        selector: selectors.BaseSelector,
        ended: Callable[[Ending], None],
        apart: Callable[[Sequence[Claim]], tuple[Sequence[Claim], Sequence[Claim]]] = lambda claims: (claims, ()),
    ) -> None:
        """`ended` is told the ending of each job that died with its worker. `apart` divides jobs into those in no chain
        and those in one."""
        self._queues, self._state, self._zygotes, self._replies = queues, state, zygotes, replies
        self._selector, self._ended, self._apart = selector, ended, apart
        self.outputs = Outputs(selector)
        self._notice = math.inf, 0.0  # monotonic: from when on jobs are told to stop, with this grace
        self._gone: dict[Slot, float] = {}  # workers whose channel has closed, since when
        self._exits: dict[Slot, int] = {}  # how workers ended; told by the zygote
        self._respawn_at: dict[Slot, float] = {}
        self._deaths: dict[Slot, int] = {}
        self._owed: dict[Slot, str] = {}  # deaths to be told of together with the start of the next worker
        self._rolling = False
        self._last_death = ""  # of a worker: how
        self._unable: dict[Slot, str] = {}  # whose last worker ended before it was ready: how
        self._sometimes = Sometimes(60.0)

    def slots(self) -> Iterator[Slot]:
        """All slots of all queues."""
        for queue in self._queues.values():
            yield from queue.all_slots()

    def processes(self) -> Processes:
        """The process numbers of zygotes and workers. From any thread."""
        slots = [slot for queue in list(self._queues.values()) for slot in list(queue.all_slots())]
        zygotes = [zygote.process.pid for zygote in self._zygotes.all()]
        return Processes(zygotes, [slot.pid for slot in slots if slot.pid])

    def summary(self, in_programs: int) -> str:
        """`4 workers, 2 jobs running`; `in_programs` are jobs that no worker runs."""
        slots = list(self.slots())
        running = sum(1 for slot in slots for _ in slot.running()) + in_programs
        return f"{counted(sum(slot.ready for slot in slots), 'worker')}, {counted(running, 'job')} running"

    @property
    def ready(self) -> int:
        """How many workers are ready."""
        return sum(slot.ready and slot not in self._gone for slot in self.slots())

    @property
    def all_ready(self) -> bool:
        """Whether every worker is ready that is meant to be there."""
        return all(slot.retired or (slot.ready and slot not in self._gone) for slot in self.slots())

    def missing(self) -> str:
        """Who is not ready, and why as far as is known: `0 of 2 workers of mail; worker mail/1 (42) exited with 78`."""
        parts = []
        for name, queue in self._queues.items():
            meant = [slot for slot in queue.slots if not slot.retired]
            ready = sum(slot.ready for slot in meant)
            if ready < len(meant):
                parts.append(f"{ready} of {counted(len(meant), 'worker')} of {name}")
        return ", ".join(parts) + (f"; {self._last_death}" if self._last_death else "")

    def unable(self) -> str | None:
        """Which queue's workers cannot start, and why: `no worker of mail could start: worker mail/1 (42) exited with
        78: …`; None if all can."""
        for name, queue in self._queues.items():
            meant = [slot for slot in queue.slots if not slot.retired]
            if meant and all(slot in self._unable for slot in meant):
                return f"no worker of {name} could start: {self._unable[meant[-1]]}"
        return None

    def forget(self, why: str) -> None:
        """Drop the jobs in hand, because they are another pod's now, and kill what runs them."""
        for slot in self.slots():
            slot.in_hand.clear()
            self.kill(slot, why, blameless=True)

    def fence(self) -> int:
        """Kill all workers, because the jobs in hand may soon be another pod's. They go back when their workers are
        dealt with, and no worker is started while the pod is fenced. Returns how many jobs they are."""
        jobs = sum(len(slot.in_hand) for slot in self.slots())
        for slot in self.slots():
            if slot.channel is not None:
                self.kill(slot, "no beat was confirmed", blameless=True)
        return jobs

    # -- life --------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what is due by the clock: bury dead workers, fill slots, replace workers of old code."""
        self._bury(now)
        if self._state.stopping:
            for slot in list(self._owed):
                self._tell_death(slot, "stopping")
            return
        for queue in self._queues.values():
            queue.suspects.settle(now, queue.places)
        for known in (self._respawn_at, self._deaths, self._unable):
            for slot in [slot for slot in known if slot.retired]:
                del known[slot]  # it may be gone for good
        for slot in self.slots():
            if slot.channel is None:
                self._fill(slot, now)
            elif not slot.ready and now - slot.started_at > self._state.config.ready_within and slot not in self._gone:
                self._never_ready(slot)
        self._roll(now)

    @property
    def urgent(self) -> bool:
        """Whether `tick` should be called at once."""
        return bool(self._gone)

    def next_at(self, now: float) -> float:
        """When `tick` must be called again (monotonic)."""
        starting = any(slot.channel is not None and not slot.ready for slot in self.slots())
        soon = now + EXIT_KNOWN_WITHIN / 5 if self._gone or self._rolling else now + 1.0 if starting else math.inf
        return min([soon, *self._respawn_at.values()])

    def _fill(self, slot: Slot, now: float) -> None:
        zygote = self._zygotes.current
        if slot.retired or self._state.fenced or zygote.gone or now < self._respawn_at.get(slot, 0.0):
            return
        self._respawn_at.pop(slot, None)
        try:
            output = self.outputs.open(slot)
        except OSError as e:
            self._no_room(slot, e, now)
            return
        channel = zygote.fork(slot.label, slot.serial + 1, alone=slot.alone, output=output)
        slot.open(channel, zygote)
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._on_channel(slot))

    def _no_room(self, slot: Slot, error: OSError, now: float) -> None:
        self._respawn_at[slot] = now + NO_ROOM_PAUSE
        self._last_death = f"worker {slot.label} cannot be started: {explain(error) or error}"
        if self._sometimes(slot.queue, now):
            log(f"{self._last_death}; it is tried again", level=logging.WARNING)

    def _on_channel(self, slot: Slot) -> None:
        if slot not in self._gone:  # since the wait for news ended
            self.outputs.read()  # what it wrote before it said that a job has ended
            self._hear(slot)
        self._is_ready(slot)

    def _hear(self, slot: Slot) -> bool:
        """Read what a worker has said, and act on it. Returns False if that is nothing, or if its process is gone."""
        try:
            return self._replies.hear(slot)
        except EOFError:
            self.lost(slot)
        except WorkerBroken as e:
            # Nothing that it says from here on counts, nor what it has said and nobody has read yet.
            if slot.killed_for is None:
                self.kill(slot, f"worker {slot.label} ({slot.pid}) {e}", blameless=False)
            self.lost(slot)
        return False

    def _is_ready(self, slot: Slot) -> None:
        if slot.ready:
            self._unable.pop(slot, None)
        if slot.ready and slot in self._owed:
            self._tell_death(slot, f"worker started in {1000 * (time.monotonic() - slot.started_at):.0f} ms")

    def _tell_death(self, slot: Slot, then: str) -> None:
        log(f"{self._owed.pop(slot)}; {then}", level=logging.WARNING)

    def watch_writes(self, slot: Slot) -> None:
        """Write what waits for a worker, and watch for it to take more if it does not read fast enough."""
        if slot.wants_to_write:
            slot.flush()
        if slot.channel is None or slot in self._gone:
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if slot.wants_to_write else 0)
        key = self._selector.get_key(slot.channel)
        if key.events != events:
            self._selector.modify(slot.channel, events, key.data)

    def _roll(self, now: float) -> None:
        """Drain workers of old code, a few at a time, so that new ones take their slots. As long as new ones cannot
        start, the old ones go on."""
        slots = [slot for slot in self.slots() if slot.channel is not None]
        empty = sum(slot.channel is None and not slot.retired for slot in self.slots())
        old = [slot for slot in slots if slot.zygote is not self._zygotes.current]
        if self._rolling and not old and not empty and all(slot.ready for slot in slots):
            self._rolling = False
            log(f"{counted(len(slots), 'worker')} replaced")
        absent = empty + sum(not s.ready or (s.draining and now - s.drained_at < ROLL_PATIENCE) for s in slots)
        waiting = sorted((s for s in old if not s.draining), key=lambda slot: len(slot.in_hand))
        for slot in waiting[: max(0, max(1, len(slots) // 4) - absent)]:
            slot.drain()

    def roll(self) -> None:
        """A new zygote has taken over. Its workers may start where those before could not."""
        self._rolling = True
        for known in (self._respawn_at, self._deaths, self._unable):
            known.clear()

    # -- orders ------------------------------------------------------------------------------------------------

    def stop(self, by: float, notice: float) -> None:
        """The pod stops: have every worker finish what it runs by then (monotonic), and tell the jobs that still run
        `notice` seconds before."""
        self._notice = by - notice if notice else math.inf, notice / 2
        for slot in self.slots():
            slot.say(frame_of({"do": "stopping"}))
            slot.drain()

    def scale(self, by: int) -> None:
        """Have one worker more, or less, in every queue that has any; never less than one."""
        for queue in self._queues.values():
            queue.add_workers(by)
        log(", ".join(f"{queue.name}: {counted(queue.size, 'worker')}" for queue in self._queues.values()))

    def tell_stacks(self) -> None:
        """Have every process log where its threads are, this one first."""
        for thread, where in stacks():
            log(thread, details=where)
        for zygote in self._zygotes.all():
            zygote.tell("stacks")
        for slot in self.slots():
            slot.say(frame_of({"do": "stacks"}))

    def enforce(self, slot: Slot, now: float, grace: float) -> float:
        """Stop those jobs of a worker that must stop. Returns when to call it again (monotonic)."""
        if slot.killed_for is None:
            overdue(slot, now)
            told_at, notice_grace = self._notice
            if now >= told_at:
                leave(slot, now, notice_grace)
            stop = press(slot, now, grace)
            if stop is not None:
                self.kill(slot, stop.why, blameless=True)
        at = [now + LOOK_EVERY, *(max(stop.next_at, now + 0.01) for stop in slot.stops.values())]
        return min([*at, self._notice[0]] if now < self._notice[0] else at)

    # -- death -------------------------------------------------------------------------------------------------

    def heard(self, zygote: ZygoteProcess, message: dict[str, Any]) -> None:
        """Take in what a zygote says of a worker."""
        if "forked" in message:
            self._forked(zygote, message)
        elif "exited" in message:
            for slot in self.slots():
                if slot.pid == message["exited"] and slot.zygote is zygote and slot.channel is not None:
                    self._exits[slot] = message["status"]
                    # A process that its handler started may hold the channel open: do not wait for its end.
                    while slot not in self._gone and self._hear(slot):
                        pass
                    self.lost(slot)

    def _forked(self, zygote: ZygoteProcess, message: dict[str, Any]) -> None:
        label, serial, pid = message["forked"], message["serial"], message["pid"]
        for slot in self.slots():
            if (slot.label, slot.serial) == (label, serial) and slot.zygote is zygote and slot.channel is not None:
                break
        else:
            kill_group(pid, zygote.process.pid)  # nobody waits for it any more
            return
        try:
            slot.forked(pid)
        except ProtocolError as e:
            self.kill(slot, f"worker {label} broke the protocol: {e}", blameless=False)
        if not pid:
            self.kill(slot, f"worker {label} could not be forked: {message['error']}", blameless=True)
        if slot.killed_for is not None:  # perhaps before it was known whom to kill
            self._kill_group(slot)
            self.lost(slot)
        self._is_ready(slot)

    def lost(self, slot: Slot) -> None:
        """The process of a worker is gone; `tick` deals with it."""
        if slot not in self._gone and slot.channel is not None:
            self._selector.unregister(slot.channel)
            self._gone[slot] = time.monotonic()
            slot.mark_lost()

    def kill(self, slot: Slot, why: str, *, blameless: bool) -> None:
        """Kill a worker with everything that its handlers started. `blameless`: not for anything that its jobs in hand
        did."""
        slot.mark_killed(why, blameless=blameless)
        self._kill_group(slot)

    def kill_all(self) -> None:
        """Kill all workers, at the end of the master."""
        for slot in self.slots():
            self._kill_group(slot)

    @staticmethod
    def _kill_group(slot: Slot) -> None:
        if slot.zygote is not None:
            kill_group(slot.pid, slot.zygote.process.pid, os.getpid())

    def _never_ready(self, slot: Slot) -> None:
        why = f"worker {slot.label} was not ready within {self._state.config.ready_within:g} s"
        slot.could_not_start(why)
        self.kill(slot, why, blameless=True)
        self.lost(slot)  # the zygote may never have forked it

    def _bury(self, now: float) -> None:
        """Deal with workers that are gone, once it is known how they ended: the zygote says so within a moment."""
        for slot, since in list(self._gone.items()):
            assert slot.zygote is not None
            if slot in self._exits or slot.zygote.gone or now - since > EXIT_KNOWN_WITHIN:
                del self._gone[slot]
                self._worker_gone(slot, self._exits.pop(slot, None), since)

    def _worker_gone(self, slot: Slot, status: int | None, now: float) -> None:
        """Close the slot of a worker that is gone, end or pass on the jobs that it had, and plan the next worker."""
        assert slot.zygote is not None
        queue, pid = self._queues[slot.queue], slot.pid
        if slot in self._owed:
            self._tell_death(slot, "worker started and died")
        young = not slot.ready or now - slot.started_at < YOUNG
        # By itself or because it took too long: not for anything that it has said or that the pod has come to.
        stillborn = bool(not slot.ready and pid and not slot.zygote.gone and slot.killed_for in (None, slot.failed))
        said = f": {slot.failed}" if slot.failed and not slot.ready else ""
        if slot.zygote.gone:
            self._kill_group(slot)  # what its handlers started; else the zygote has seen to that
        self.outputs.close(slot)
        left = slot.close()
        if slot.draining and not left:
            if slot.leaving is not None and not self._state.stopping:
                log(f"worker {slot.label} replaced after {slot.leaving}")
            queue.forget_retired()
            return
        why = slot.killed_for or f"worker {slot.label} ({pid}) {how_it_ended(status)}{said}"
        self._last_death = why
        if stillborn:
            self._unable[slot] = why
        fate = self._see_to(slot, queue, left, why, now)
        queue.forget_retired()
        if self._state.stopping or slot.retired:
            return
        pause = 0.0 if slot.zygote.gone else self._pause(slot, young, at_work=bool(left))
        self._respawn_at[slot] = now + pause
        if (left or not slot.zygote.gone) and not self._state.fenced:  # else that was said for all
            self._owed[slot] = f"{why}; {fate}"
            if pause or slot.zygote.gone:
                self._tell_death(slot, f"worker starts {f'in {pause:.1f} s' if pause else 'again'}")

    def _pause(self, slot: Slot, young: bool, at_work: bool) -> float:
        """Seconds until the slot has a worker again: longer with each one that died young."""
        self._deaths[slot] = deaths = self._deaths.get(slot, 0) + 1 if young else 0
        if at_work:
            deaths = max(0, deaths - NO_PAUSE_BY_JOBS)
        return min(0.1 * 2**deaths, LONGEST_PAUSE_BY_JOBS if at_work else LONGEST_PAUSE) if deaths else 0.0

    def _see_to(self, slot: Slot, queue: LocalQueue, left: list[Claim], why: str, now: float) -> str:
        """End the jobs that a dead worker had, or pass them on; `forge.master.workers.suspects` has the rules. Returns
        what became of them, in words."""
        assert slot.zygote is not None
        others = [claim for claim in left if claim.id.hex not in slot.stops]
        for claim in left:
            if (stop := slot.stops.get(claim.id.hex)) is not None:
                self._ended(self._stopped(claim, stop))
        most = 0 if slot.blameless else len(others) if slot.capacity > 1 else MOST_UNANSWERED + 1
        started, rest = others[:most], others[most:]  # by now, perhaps; and certainly not
        guilty = [claim for claim in started if self._is_guilty(slot, queue, claim, len(left) == 1, now)]
        for claim in guilty:
            queue.suspects.blame(claim.id)
            self._ended(Ending(claim, Released(ZYGOTE_DIED if slot.zygote.gone else why, crashed=True)))
        suspects = [claim for claim in started if claim not in guilty]
        if self._state.stopping or queue.closing or slot.blameless:
            for claim in (*suspects, *rest):
                self._ended(Ending(claim, Released()))
            return f"{counted(len(left), 'job')} released"
        alone, again = self._apart(suspects)
        for claim in again:
            queue.suspects.blame(claim.id)  # each runs alone, but those of a chain not at once
        unstarted, back = self._apart(rest)
        for claim in (*again, *back):
            self._ended(Ending(claim, Released()))
        queue.suspects.add(alone)
        queue.take_back(unstarted)
        return _fate(len(left) - len(alone) - len(unstarted), len(alone), len(unstarted))

    @staticmethod
    def _is_guilty(slot: Slot, queue: LocalQueue, claim: Claim, alone: bool, now: float) -> bool:
        assert slot.zygote is not None
        return queue.suspects.deaths.seen_by(claim.id, slot.head_since, now) if slot.zygote.gone else alone

    def _stopped(self, claim: Claim, stop: Stop) -> Ending:
        """The ending of a job that was told to stop, and whose worker had to be killed."""
        if stop.failed:
            return timed_out(claim, stop, self._zygotes.current.kinds)
        return Ending(claim, Released(None if stop.leaving else stop.why))  # its row says if it is cancelled


def _fate(released: int, suspects: int, unstarted: int) -> str:
    """What became of jobs, in words: `1 job released`, `3 jobs run again alone, 20 jobs given to others`."""
    parts = [
        (released, "released"),
        (suspects, "run again alone" if suspects != 1 else "runs again alone"),
        (unstarted, "given to others"),
    ]
    return ", ".join(f"{counted(n, 'job')} {what}" for n, what in parts if n) or f"{counted(0, 'job')} released"
