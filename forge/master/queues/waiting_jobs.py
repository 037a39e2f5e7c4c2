"""The claimed jobs of a queue that no worker has yet, in the order in which workers get them.

No other pod can run what is here. A job waits here for a moment, until a worker of this pod has room for it. If all
workers are busy with long jobs it would wait for as long as these take, while a worker of another pod may be idle: so
it is known here whether jobs of a while ago are still waiting, and the queue gives them back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Sequence
from itertools import islice
from uuid import UUID

from forge.job import Claim
from forge.master.workers.slot import Slot

__all__ = ["WaitingJobs"]


class WaitingJobs(deque[Claim]):
    """The oldest first. Jobs must be taken out by `take`, `remove` or `take_all`: else `stands_still` takes them for
    older than they are."""

    def __init__(self) -> None:
        super().__init__()
        self._gone = 0  # jobs that have left, less those that came back
        self._back = 0  # jobs at the front that came back
        self._since = 0.0  # monotonic: when it was last noted which jobs are here
        self._until = 0  # what `_gone` will be when all of those have left
        # Jobs that go to the same worker right behind one of these, by its id: see `forge.master.queues.chains`.
        self._behind: dict[UUID, list[Claim]] = {}
        self.behind = 0  # how many those are

    def chain(self, first: Claim, rest: list[Claim]) -> None:
        """The jobs in `rest` go to the same worker right behind `first`, which is here or about to come."""
        self._behind[first.id] = rest
        self.behind += len(rest)

    def unchain(self, first: Claim) -> list[Claim]:
        """Take the jobs apart that were to go right behind `first`. Returns them."""
        rest = self._behind.pop(first.id, [])
        self.behind -= len(rest)
        return rest

    def with_it(self, first: Claim) -> Sequence[Claim]:
        """The jobs that go to the same worker right behind `first`."""
        return self._behind.get(first.id, ()) if self._behind else ()

    def everyone(self) -> Iterator[Claim]:
        """All jobs, also those that go right behind others."""
        for claim in self:
            yield claim
            yield from self.with_it(claim)

    def clear(self) -> None:
        """Drop all jobs."""
        super().clear()
        self._behind.clear()
        self.behind = 0

    def take(self, n: int) -> list[Claim]:
        """Take out the first n jobs. There must be as many."""
        self._gone += n
        self._back = max(0, self._back - n)
        return [self.popleft() for _ in range(n)]

    def share_out(self, room: dict[Slot, int], left: int) -> dict[Slot, list[Claim]]:
        """Take out so many jobs, or as many as there is room for, and divide them among slots: as if each in turn went
        to the slot with the fewest, but many at a time."""
        shares: dict[Slot, list[Claim]] = {}
        if self._behind:
            return self._share_out_chains(room, left)
        room, hands = dict(room), {slot: len(slot.in_hand) for slot in room}
        while left > 0 and room:
            fewest = min(hands[slot] for slot in room)
            emptiest = [slot for slot in room if hands[slot] == fewest]
            others = [hands[slot] - fewest for slot in room if hands[slot] > fewest]
            each = min([*others, *(room[slot] for slot in emptiest), -(-left // len(emptiest))])
            part = self.take(min(left, each * len(emptiest)))
            for i, slot in enumerate(emptiest):
                if mine := part[i :: len(emptiest)]:
                    shares.setdefault(slot, []).extend(mine)
                    hands[slot] += len(mine)
                    room[slot] -= len(mine)
            left -= len(part)
            room = {slot: n for slot, n in room.items() if n}
        return shares

    def _share_out_chains(self, room: dict[Slot, int], left: int) -> dict[Slot, list[Claim]]:
        """The same where some jobs go together: each in turn goes to the slot with the fewest, the rest of its chain
        behind it."""
        shares: dict[Slot, list[Claim]] = {}
        hands = {slot: len(slot.in_hand) for slot in room}
        full = {slot: hands[slot] + n for slot, n in room.items()}
        for _ in range(left):
            slot = min(hands, key=hands.__getitem__, default=None)
            if slot is None:
                break
            (first,) = self.take(1)
            together = [first, *self.unchain(first)]
            shares.setdefault(slot, []).extend(together)
            hands[slot] += len(together)
            if hands[slot] >= full[slot]:
                del hands[slot]
        return shares

    def before(self, kinds: Container[str], most: int) -> int:
        """How many of the first `most` jobs come before the first one of these kinds."""
        return next((n for n, claim in enumerate(islice(self, most)) if claim.kind in kinds), min(most, len(self)))

    def take_all(self) -> list[Claim]:
        """Take out all jobs. Returns them."""
        found = list(self.everyone()) if self._behind else None
        first = self.take(len(self))
        self._behind.clear()
        self.behind = 0
        return found or first

    def remove(self, claim: Claim) -> None:
        """Take out this job, wherever it is."""
        super().remove(claim)
        self._gone += 1

    def put_back(self, claims: Sequence[Claim]) -> None:
        """Jobs that had been taken out come back to the front, behind those that came back before them: what a worker
        gives back comes in several pieces."""
        before = min(self._back, len(self))
        self.rotate(-before)
        self.extendleft(reversed(claims))
        self.rotate(before)
        self._back = before + len(claims)
        self._gone -= len(claims)

    def stands_still(self, now: float, patience: float) -> bool:
        """Whether some jobs have been here for so many seconds, as far as was seen. Must be called now and then."""
        if not self or self._gone >= self._until:
            self._since, self._until = now, self._gone + len(self)
        return bool(self) and now - self._since >= patience
