"""One queue in this pod: how many of its jobs may be claimed, and which worker gets the next one."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from uuid import UUID

from forge.config import QueueConfig
from forge.job import Claim
from forge.master.programs.places import Places
from forge.master.queues.job_pace import AHEAD, JobPace
from forge.master.queues.long_kinds import LongKinds
from forge.master.queues.waiting_jobs import WaitingJobs
from forge.master.queues.worker_count import WorkerCount
from forge.master.workers import stop_job
from forge.master.workers.slot import Slot
from forge.master.workers.suspects import Suspects, ZygoteDeaths
from forge.storage.contract import LowWater
from forge.storage.contract.lines import Turns
from forge.storage.shared.low_water import payload_bytes

__all__ = ["LocalQueue"]

# The master itself keeps as many as its workers run in this time, so that the next is there when one ends: 8 workers
# ran 3,000 jobs of 2 ms a second with it, and 980 without.
STOCK = 0.01
# Jobs, however short they are: the less often one worker and the database take turns on a core, the better. With 1000 a
# backlog of no-ops took 9 % longer.
MOST_AHEAD = 3000
BYTES_AHEAD = 16 * 1024 * 1024  # of payloads: a thousand of the largest would be a gigabyte in each worker
# Jobs whose payloads have no more bytes than this on average are counted and not weighed: 6000 of them have 6 MB.
LIGHT = 1024
WEIGH_EVERY = 2e-5  # seconds for each job held, between two weighings: they take a fiftieth of the time
BATCH = 3000  # jobs claimed at once at most
# Jobs of a concurrency key that share a place. The more, the more seldom its jobs wait for the disk: 64 wait once.
MOST_BEHIND = 64
RECALL_AFTER = 0.05  # seconds that jobs sent ahead wait for the one that runs, while another worker is idle
RECALL_ANYWAY_AFTER = 0.1  # seconds that they wait if no worker is idle, but one could come to them sooner
GIVE_BACK_AFTER = 0.2  # seconds that jobs which no worker here has room for wait before they go back, for other pods
QUIET = 1.0  # seconds for which a queue that gave jobs back claims nothing, unless a job has ended or could start


class LocalQueue:
    """A queue as this pod sees it: its workers here, and its claimed jobs that no worker has yet."""

    def __init__(
        self,
        name: str,
        settings: QueueConfig,
        look_every: float,
        deaths: ZygoteDeaths | None = None,
        places: Places | None = None,
    ) -> None:
        """`deaths` and `places`, which jobs in programs take, are the pod's, for all its queues."""
        self.name = name
        self.settings = settings
        self.look_every = look_every  # seconds between claims that nothing but time asks for
        self.slots: list[Slot] = []
        self.closing = False  # the queue is not served any more
        self.waiting = WaitingJobs()
        self.suspects = Suspects(name, deaths or ZygoteDeaths())
        self._in_programs = places or Places(lambda _: 0, lambda _: None)
        self.low_water = LowWater()
        self._returned: list[Claim] = []  # jobs that were to run behind a long one: for the database, at once
        self._came_back = False  # jobs were given back to the database, perhaps in front of the marks
        self.turns: Turns | None = None  # None: there are no lines in this queue, as far as is known
        self.claiming = False
        self.more_waits = False  # the last claim was full: there is more
        self.room = 0  # jobs that workers could take, at the last look
        self._look_at = 0.0  # monotonic: claim again then, woken or not
        self._not_before = 0.0  # monotonic: claim nothing before
        self._quiet_until = 0.0  # monotonic: claim nothing before, unless a job has ended or could start
        self._pace = JobPace()
        self.long_kinds = LongKinds()
        self._average = 0  # bytes of the payloads that came of late
        self.heavy = False  # some of the jobs held may have a large payload
        self._weight = 0  # bytes of those that are held, when they were weighed last, and of those that came since
        self._weighed_at = 0.0  # monotonic
        self.limit = settings.max_workers  # workers that the cluster lets this pod have
        self.offset = 0  # more or fewer than that, by an operator's word to this pod
        self._worker_count = WorkerCount(settings.min_workers or 0)
        self.settle()

    # -- its workers -------------------------------------------------------------------------------------------

    def all_slots(self) -> Iterator[Slot]:
        """The slots of its workers, and those of the workers that run suspects."""
        yield from self.slots
        yield from self.suspects.slots

    def claims(self) -> Iterator[Claim]:
        """All claimed jobs that it holds: those that wait, and those that workers have."""
        yield from self.waiting.everyone()
        yield from self.suspects.waiting
        for slot in self.all_slots():
            yield from (claim for claim, _ in slot.in_hand.values())

    @property
    def claim_count(self) -> int:
        """How many claimed jobs it holds."""
        waiting = len(self.waiting) + self.waiting.behind + len(self.suspects.waiting)
        return waiting + sum(len(slot.in_hand) for slot in self.all_slots())

    @property
    def size(self) -> int:
        """How many workers it is meant to have."""
        return sum(not slot.retired for slot in self.slots)

    @property
    def most(self) -> int:
        """How many workers it may have. An operator can take all but the last one away."""
        return max(1, self.limit + self.offset) if self.limit else 0

    def share(self, workers: int) -> bool:
        """Set how many workers the cluster lets this pod have. Returns whether that has changed."""
        if self.closing or self.limit == workers:
            return False
        self.limit = workers
        self.settle()
        return True

    def add_workers(self, by: int) -> None:
        """Have so many workers more, or fewer, by an operator's word: at least one, and none where the pod has no
        share."""
        if self.limit:
            self.offset = max(self.offset + by, 1 - self.limit)
            self.settle()

    def configure(self, settings: QueueConfig, look_every: float) -> None:
        """Put other settings in force. Workers that an operator has added go."""
        self.settings, self.look_every, self.closing, self.offset = settings, look_every, False, 0
        self.settle()

    def close(self) -> None:
        """The queue is not served here any more: its workers leave as their jobs end."""
        self.closing, self.limit = True, 0
        self.settle()

    def settle(self) -> None:
        """Have as many workers as it may, or, with `min_workers`, as are worth having."""
        least = self.settings.min_workers
        self.resize(self.most if least is None else min(max(self._worker_count.size, least), self.most))

    def scale(self, now: float) -> bool:
        """Change the number of workers by how many are busy. Returns whether the caller should ask if jobs wait that no
        worker is free for."""
        least = self.settings.min_workers
        if least is None or self.closing:
            return False
        slots = [slot for slot in self.slots if not slot.retired]
        busy = sum(bool(s.in_hand) if s.capacity == 1 else len(s.in_hand) / s.capacity for s in slots)
        full = all(slot.ready and len(slot.in_hand) >= slot.capacity for slot in slots)
        asks = self._worker_count.look(now, least, self.most, self.settings.idle_shrink, math.ceil(busy), full)
        if self._worker_count.size != len(slots):
            self.settle()
        return asks

    def work_waits(self, now: float) -> None:
        """Jobs wait that no worker is free for: have more workers."""
        self._worker_count.told(now, self.most)
        self.settle()

    def held(self, in_programs: int) -> int:
        """How many workers count against the pod's share: those that run, or as many as jobs in programs take the
        places of; but not those that an operator has added."""
        processes = sum(slot.channel is not None for slot in self.slots)
        jobs = -(-(self.working + in_programs) // self._at_once)
        return max(0, max(processes, jobs) - max(0, self.offset))

    def resize(self, workers: int) -> None:
        """Have so many slots. The ones with the highest numbers go first, when their jobs have ended."""
        for slot in [slot for slot in self.slots if slot.retired][: max(0, workers - self.size)]:
            slot.keep()
        while self.size < workers:
            self.slots.append(Slot(self.name, len(self.slots)))
        for slot in reversed([slot for slot in self.slots if not slot.retired][workers:]):
            slot.retire()
        self.forget_retired()

    def forget_retired(self) -> None:
        """Drop slots that have no process and are to have none: only the last ones, so that the others keep their
        numbers."""
        while self.slots and self.slots[-1].retired and self.slots[-1].channel is None:
            self.slots.pop()

    @property
    def in_programs(self) -> int:
        """How many of its jobs programs have, running or waiting."""
        return self._in_programs.taken.get(self.name, 0)

    def outside(self) -> int:
        """How many places jobs in programs take, or are to take next."""
        return self._in_programs.outside(self.name)

    @property
    def places(self) -> int:
        """How many jobs may run at the same time, in workers and in programs."""
        return self.most * self._at_once

    @property
    def _at_once(self) -> int:
        return 1 if self.settings.worker == "process" else self.settings.concurrency

    @property
    def working(self) -> int:
        """How many places its workers take."""
        if self.settings.worker == "process":
            return sum(1 for slot in self.all_slots() if slot.in_hand)
        return sum(len(slot.in_hand) for slot in self.all_slots())

    @property
    def window(self) -> int:
        """How many jobs a worker of type process may have in hand."""
        if self.outside():
            return 1
        return max(1, int(self._worth(AHEAD)))

    @property
    def behind(self) -> int:
        """How many jobs of a concurrency key may share a place, because one worker runs them one after the other."""
        return min(self.window, MOST_BEHIND) if self.settings.worker == "process" else 1

    def _worth(self, seconds: float) -> float:
        """How many jobs a place runs in so many seconds, as far as is known, and no more than are good to hold."""
        return min(self._pace.jobs_in(seconds), MOST_AHEAD, BYTES_AHEAD / max(self._average, 1))

    def _rooms(self, slots: Iterable[Slot], now: float) -> dict[Slot, int]:
        """The slots that can take more jobs, and how many. Threads and event loops take as many as they run; a process
        takes some ahead, but none behind a long job."""
        ahead = self.window if self.settings.worker == "process" else 0
        rooms = {slot: (ahead or slot.capacity) - len(slot.in_hand) for slot in slots if slot.free}
        return {slot: n for slot, n in rooms.items() if n > 0 and not self._is_taken(slot, now)}

    def _is_taken(self, slot: Slot, now: float) -> bool:
        """Whether the worker has a long job, so that no other may wait behind it."""
        return slot.runs_long(now, RECALL_AFTER) or (
            bool(self.long_kinds) and slot.capacity == 1 and slot.head is not None and slot.head.kind in self.long_kinds
        )

    def note(self, seconds: float) -> None:
        """A job has ended, after so many seconds."""
        self.note_all(1, seconds, seconds)

    def note_all(self, n: int, total: float, longest: float) -> None:
        """So many jobs have ended, which took `total` seconds together; the longest of them took `longest`."""
        self._quiet_until = 0.0
        self._pace.note(n, total, longest)

    # -- claiming ----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Claim as soon as there is room: there may be jobs."""
        self._look_at = 0.0

    def due_in(self, seconds: float, now: float) -> None:
        """Claim then at the latest: a job will be due in so many seconds."""
        self._look_at = min(self._look_at, now + max(0.0, seconds))

    def pause(self, until: float) -> None:
        """Claim nothing before that time (monotonic), not even when woken."""
        self._not_before = until

    def form_lines(self) -> None:
        """Claim by turns from now on, because some of its jobs are in lines."""
        if self.turns is None:
            self.turns = Turns()
            self.wake()

    def jobs_came_back(self) -> None:
        """Jobs were given back to the database, perhaps in front of the marks: the next claim starts from the front."""
        self._came_back = True

    def forget_marks(self) -> None:
        """Start the next claim from the front, if jobs came back. Must not be called while a claim is under way, which
        would set the marks again."""
        if self._came_back:
            self._came_back = False
            self.low_water.forget()

    def wanted(self, now: float) -> int:
        """How many jobs to claim now; 0 if it is not time."""
        room = sum(self._rooms(self._fed(now), now).values())
        stock = int(self._worth(STOCK) * sum(s.capacity for s in self.slots if s.free and not self._is_taken(s, now)))
        if self.in_programs:
            more = self._in_programs.more(self.name, self.places)  # may come to wait for programs
            room = max(more, min(room, self.places - self.working - self.in_programs))
        elif room or len(self.waiting) <= stock // 2:
            room += stock
        quiet = now < self._quiet_until and not self.takes
        self.room = 0 if self.closing or quiet else max(0, room - len(self.waiting) - self.waiting.behind)
        if self.claiming or not (self.more_waits or now >= self._look_at) or now < self._not_before:
            return 0
        return min(BATCH, self.room)

    @property
    def takes(self) -> bool:
        """Whether a job that came now would start at once."""
        if self.closing or self.waiting or self.outside() or self.in_programs or self.suspects.slots:
            return False
        return any(slot.free and len(slot.in_hand) < slot.capacity for slot in self.slots)

    @property
    def idle(self) -> bool:
        """Whether a job that came now would start at once, and none waits in the database, as far as is known."""
        return not self.claiming and not self.more_waits and self.takes

    def is_due(self, now: float) -> bool:
        """Whether time, or something that has happened, asks for a claim, and not only that the last one was full."""
        return now >= self._look_at

    def begin(self, now: float) -> None:
        """A claim is under way. A wake-up that comes before its answer leads to another claim."""
        self.claiming = True
        self._look_at = now + self.look_every * random.uniform(0.5, 1.5)

    def capped(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """The claims with their timeouts no longer than the queue allows."""
        cap = self.settings.timeout
        return claims if cap is None else [c if c.timeout <= cap else c._replace(timeout=cap) for c in claims]

    def claimed(self, claims: Sequence[Claim], asked: int, found: int, chains: Sequence[Sequence[Claim]] = ()) -> None:
        """A claim has brought `found` jobs of the `asked` ones; these `claims` among them are for workers. Those of a
        chain go to one worker together."""
        self.claiming = False
        self.take_in(self._chained(claims, chains) if chains else claims)
        self.more_waits = found >= asked

    def take_in(self, claims: Sequence[Claim]) -> None:
        """Add jobs behind those that wait for workers. A job that must run alone goes to the suspects."""
        self.waiting.extend(self.suspects.sift(claims))

    def _chained(self, claims: Sequence[Claim], chains: Sequence[Sequence[Claim]]) -> Sequence[Claim]:
        """The claims without those that go to a worker behind another. Some jobs of a chain may not be among the
        claims."""
        found = {claim.id: claim for claim in claims}
        for chain in chains:
            here = [found[claim.id] for claim in chain if claim.id in found]
            if len(here) > 1:
                self.waiting.chain(here[0], here[1:])
                for claim in here[1:]:
                    del found[claim.id]
        return list(found.values())

    def weigh_in(self, n: int, size: int) -> None:
        """Count the payloads of jobs that have come, for workers and programs: n of them, with so many bytes."""
        self._average = max(self._average // 2, size // max(n, 1))
        self.heavy = self.heavy or size > LIGHT * (n + 16)
        self._weight += size

    def full(self) -> None:
        """Claim nothing until jobs have ended: too many bytes of payloads are held."""
        self.room = 0

    def most_of(self, size: int) -> int:
        """How many jobs have so many bytes of payload, by those that came last; at least one."""
        return max(1, size // max(self._average, 1))

    def weight(self, now: float) -> int:
        """Bytes of the payloads of the jobs that it holds; 0 if all are small."""
        if not self.heavy:
            return 0
        held = self.claim_count
        if now >= self._weighed_at + held * WEIGH_EVERY:
            self._weighed_at = now
            self._weight = payload_bytes(self.claims()) + self._in_programs.bytes[self.name]
            self.heavy = self._weight > LIGHT * (held + self.in_programs + 16)
        return self._weight

    def next_look(self) -> float | None:
        """When it wants to claim again (monotonic). None: not before something else has happened."""
        if self.claiming or not self.room:
            return None
        return max(0.0 if self.more_waits else self._look_at, self._not_before)

    # -- dispatching -------------------------------------------------------------------------------------------

    def dispatch(self, now: float) -> bool:
        """Give waiting jobs to workers, to those with the fewest first. Returns whether any was given."""
        given = bool(self.suspects.slots) and self.suspects.dispatch(now, self.places - self.working - self.outside())
        if not self.waiting:
            return given
        room = self._rooms(self._fed(now), now)
        left = min(self._places_left(now), len(self.waiting))
        if self.long_kinds and self.settings.worker == "process":
            return self._dispatch_apart(room, left, now) or given
        return self._send(room, left, now) > 0 or given

    def _send(self, room: dict[Slot, int], left: int, now: float) -> int:
        """Give the next `left` jobs to slots, as far as there is room. Returns how many were given."""
        shares = self.waiting.share_out(room, left)
        for slot, claims in shares.items():
            slot.send(claims, now)
        return sum(map(len, shares.values()))

    def _dispatch_apart(self, room: dict[Slot, int], left: int, now: float) -> bool:
        """Dispatch where some jobs are of a kind that takes long: each of these goes to a worker that has none, and
        those behind it wait until there is one. That takes no longer than what was sent ahead."""
        given = False
        while left > 0 and room:
            short = self.waiting.before(self.long_kinds, min(left, sum(room.values())))
            if short:
                sent = self._send(room, short, now)
                room = self._rooms(room, now)
            elif (idle := next((slot for slot in room if not slot.in_hand), None)) is not None:
                (first,) = self.waiting.take(1)
                idle.send([first], now)
                self._returned += self.waiting.unchain(first)
                del room[idle]
                sent = 1
            else:
                break
            left, given = left - sent, True
        return given

    def _places_left(self, now: float) -> int:
        """How many jobs may be given to workers now, by the places that programs and suspects leave."""
        reserved = 0
        if self.suspects.slots and self.settings.worker != "process":
            reserved = self.suspects.places(now) - self.suspects.running
        elif not self.outside():
            return len(self.waiting)
        return self.places - self.working - self.outside() - reserved

    def _fed(self, now: float) -> list[Slot]:
        """The slots that may be given jobs. While suspects take places in processes of their own, as many workers get
        none: those that have the fewest jobs, which are idle first."""
        if not self.suspects.slots or self.settings.worker != "process":
            return self.slots
        lent = max(0, self.suspects.places(now) - (self.most - self.size))
        return sorted(self.slots, key=lambda slot: len(slot.in_hand))[lent:]

    def take_out(self) -> list[Claim]:
        """Take out the jobs that wait. Returns them."""
        return self.waiting.take_all()

    def take_returned(self) -> list[Claim]:
        """Take out the jobs that were to run behind one that proved to be of a long kind. They go back to the database
        at once."""
        returned, self._returned = self._returned, []
        return returned

    def take_back(self, claims: Sequence[Claim]) -> None:
        """Take jobs that a worker gave back unstarted: they are the next ones again."""
        self.waiting.put_back(claims)

    def cancel(self, wanted: Collection[tuple[UUID, int]], now: float) -> list[Claim]:
        """Stop these jobs (id and token). Returns those that no worker has yet, which leave the queue."""
        gone: list[Claim] = []
        for first in list(self.waiting):
            together = [first, *self.waiting.with_it(first)]
            if any((claim.id, claim.token) in wanted for claim in together):
                self.waiting.remove(first)
                gone += [first, *self.waiting.unchain(first)]  # the others of a chain come again
        found = [claim for claim in self.suspects.waiting if (claim.id, claim.token) in wanted]
        for claim in found:
            self.suspects.waiting.remove(claim)
        gone += found
        for slot in self.all_slots():
            for id, (claim, _) in slot.in_hand.items():
                if (claim.id, claim.token) in wanted:
                    stop_job.cancel(slot, id, now)
        return gone

    def recall(self, now: float, shared: bool) -> None:
        """Ask workers for jobs that were sent ahead and wait behind a long one, if somebody else could run them: a
        worker here whose own job is not a long one so far, or, if the queue is `shared`, one of another pod."""
        long = [slot for slot in self.slots if slot.runs_long(now, RECALL_AFTER)]
        for slot in long:
            if len(slot.in_hand) == 1 and slot.head is not None:  # else it may be another that runs
                self.long_kinds.took(slot.head.kind, now - slot.head_since)
        stuck = [slot for slot in long if _sent_ahead(slot)]
        if not stuck:
            return
        others = [slot for slot in self.slots if slot.free and not self._is_taken(slot, now)]
        at_once = self.window == 1 or any(not slot.in_hand for slot in others)
        for slot in stuck:
            if at_once or ((others or shared) and slot.runs_long(now, RECALL_ANYWAY_AFTER)):
                self._pace.note(1, now - slot.head_since, now - slot.head_since)
                slot.recall()

    def left_over(self, now: float, shared: bool) -> list[Claim]:
        """Take out jobs that have waited here for a while, because another pod may have a worker for them. Not those
        that tokens may have been spent for: whoever claimed them next would have to spend some again."""
        spends = self.turns is not None and bool(self.turns.scopes)
        if not self.waiting.stands_still(now, GIVE_BACK_AFTER) or spends or not shared:
            return []
        self._quiet_until = now + QUIET
        return self.take_out()

    @property
    def watched(self) -> bool:
        """Whether jobs wait here, or in workers behind others, so that it must be looked often for who can run them."""
        return bool(self.waiting) or any(_sent_ahead(slot) for slot in self.slots)


def _sent_ahead(slot: Slot) -> bool:
    return slot.capacity == 1 and len(slot.in_hand) > 1 and not slot.recalled and not slot.draining
