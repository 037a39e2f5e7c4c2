"""Where the next claim of a queue starts."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any
from uuid import UUID

from forge.errors import ForgeError
from forge.job import Claim

__all__ = ["MOST_BYTES", "LowWater", "Marks", "full", "payload_bytes", "scan"]

MOST_BYTES = 8 * 1024 * 1024  # of payloads in one claim: they are in memory three times when it comes

Marks = Mapping[int, tuple[Any, UUID]]  # by priority, the (run_at, id) behind which its next job is looked for

_NO_ID = UUID(int=0)
_PAYLOAD = attrgetter("payload")
_OVERHEAD = 8  # bytes that a storage may count for a payload beyond those that it has


def payload_bytes(claims: Iterable[Claim]) -> int:
    """Of all together."""
    return sum(map(len, map(_PAYLOAD, claims)))


def full(claims: Sequence[Claim], n: int, most_bytes: int, size: int | None = None) -> bool:
    """Whether a claim brought as much as it was allowed to: then there may be more. `size` is that of its payloads, if
    it is known."""
    if len(claims) >= n:
        return True
    return (payload_bytes(claims) if size is None else size) + _OVERHEAD * len(claims) >= most_bytes


class LowWater:
    """Where a queue's next claim starts: in each priority behind the last job claimed of it, so that the dead index
    entries of jobs that have ended are not read again. Each dispatcher keeps one per queue.

    A better priority is always looked at first. Only within a priority can a job appear in front of the mark: one that
    was given back, or committed late, or is to run at a time in the past. So there are two more kinds of scan: one
    from where the marks were a second or two ago, and a whole one from the start. Whole ones are made on a short timer
    and whenever there is nothing else to claim, as long as they are cheap. When nothing can be vacuumed they are not:
    then each kind takes a fiftieth of the time, and what is in front of the marks is found by the first claim that is
    made `MOST_APART` seconds after the last whole scan, at the latest.
    """

    __slots__ = ("_earlier", "_marks", "_moved_at", "_near", "_recent", "_settled_at", "_start_over", "_whole", "timer")

    CHEAP = 0.002  # seconds; a scan that takes less is not worth avoiding when there is little to do,
    SHARE = 50  # a dearer one takes at most 1/50 of the time,
    MOST_APART = 60.0  # but a whole one is made after so many seconds, whatever it takes
    NEAR = 1.0  # seconds that the marks of a near scan lie back, at least
    CLAIM_COST = 20e-6  # seconds that claiming one job takes anyway, on two cores

    def __init__(self, timer: float = 0.25) -> None:
        self.timer = timer  # seconds between whole scans under load, at least
        # Replaced as a whole, never changed: other threads read them.
        self._marks: Marks = {}
        self._recent: Marks = {}  # as they were at `_moved_at` (monotonic),
        self._earlier: Marks = {}  # and as they were `NEAR` seconds before that, or longer
        self._moved_at = 0.0
        self._whole, self._near = _Scans(), _Scans()
        self._start_over = True
        self._settled_at = 0.0  # monotonic

    @property
    def marks(self) -> Marks:
        """Where an ordinary claim starts."""
        return self._marks

    def forget(self) -> None:
        """Start over at the next claim."""
        self._start_over = True

    def ran_dry(self) -> None:
        """There is nothing left to claim: a lone job that comes next is found by one whole scan, if those are cheap,
        and not by one from the marks and another from the start (0.4 ms of 3 until it starts)."""
        if self._whole.cost <= self.CHEAP:
            self._start_over = True

    def begin(self, now: float) -> Marks | None:
        """The marks to start from, or None for the start. `now` is monotonic time."""
        if now - self._moved_at >= self.NEAR:
            self._earlier, self._recent, self._moved_at = self._recent, self._marks, now
        if self._start_over or not self._marks or self._whole.since(now) >= max(self.timer, self._pause):
            return None
        if self._earlier and self._near.since(now) >= max(self.NEAR, self.SHARE * self._near.cost):
            return self._earlier
        return self._marks

    def again(self, used: Marks | None, now: float) -> tuple[Marks | None] | None:
        """After a scan from these marks that came back short: those of another one, if it is time for that."""
        if used is None:
            return None
        if self._whole.cost <= self.CHEAP or self._whole.since(now) >= self._pause:
            return (None,)
        if self._earlier and used is not self._earlier and self._near.since(now) >= self.SHARE * self._near.cost:
            return (self._earlier,)
        return None

    def look(self, now: float) -> Marks:
        """Marks for somebody who only looks whether there is a job; none: whole scans are cheap. From any thread."""
        if self._whole.cost <= self.CHEAP:
            return {}
        return (self._recent if now - self._moved_at >= self.NEAR else self._earlier) or self._marks

    @property
    def _pause(self) -> float:
        return min(self.SHARE * self._whole.cost, self.MOST_APART)

    def note(self, claims: Sequence[Claim], used: Marks | None, full: bool, began: float, ended: float) -> None:
        """What a scan from these marks found, in claim order, and whether that was as many as it was asked for."""
        cost = max(0.0, ended - began - len(claims) * self.CLAIM_COST)
        if used is None:
            self._whole.note(cost, ended)
            self._near.note(min(cost, self._near.cost), ended)
            self._start_over = False
        elif used is self._earlier:
            self._near.note(cost, ended)
        if claims:
            self._move({c.priority: (c.run_at, c.id) for c in _last_ones(claims)}, full)

    def may_settle(self, took: float, now: float) -> bool:
        """Whether it is worth looking where jobs wait, after a last scan that came back short."""
        return took > self.CHEAP and now - self._settled_at >= self.NEAR

    def settle(self, firsts: Mapping[int, Any], now: float) -> None:
        """In these priorities nothing waits that was to run before then: what others have claimed until then need not
        be read again."""
        self._settled_at = now
        self._move({priority: (run_at, _NO_ID) for priority, run_at in firsts.items()}, False)

    def _move(self, last: Marks, full: bool) -> None:
        """Forward. Back only if a scan may have left jobs where it ended."""
        old = self._marks
        last = {p: mark for p, mark in last.items() if full or p not in old or mark > old[p]}
        if last:
            self._marks = {**old, **last}


class _Scans:
    """Scans of one kind: when the last one ended, and what it cost."""

    __slots__ = ("_at", "cost")

    def __init__(self) -> None:
        self._at = 0.0  # monotonic
        self.cost = 0.0

    def note(self, cost: float, at: float) -> None:
        self.cost, self._at = cost, at

    def since(self, now: float) -> float:
        return now - self._at


def _last_ones(claims: Sequence[Claim]) -> list[Claim]:
    """The last of each priority."""
    found = [claims[-1]]
    while (at := bisect_left(claims, found[-1].priority, key=_priority)) > 0:
        found.append(claims[at - 1])
    return found


def _priority(claim: Claim) -> int:
    return claim.priority


def scan(
    low_water: LowWater | None,
    n: int,
    most_bytes: int,
    once: Callable[[int, int, Marks | None], list[Claim]],
    look: Callable[[Marks, float], Mapping[int, Any]],
) -> list[Claim]:
    """Claim by `once(n, most_bytes, marks)` from the marks on, and over again from further in front when that came back
    short.

    `look(marks, margin)` answers where jobs wait, as `LowWater.settle` takes it: claimable or not (nothing is, while a
    queue is paused), and those that may still be committed, so many seconds late, as well."""
    water = low_water if low_water is not None else LowWater()
    began = time.monotonic()
    marks = water.begin(began)
    claims = once(n, most_bytes, marks)
    ended, whole = time.monotonic(), full(claims, n, most_bytes)
    water.note(claims, marks, whole, began, ended)
    try:
        while not whole and (more := water.again(marks, ended)) is not None:
            (marks,), began = more, ended
            found = once(n - len(claims), most_bytes - payload_bytes(claims), marks)
            claims += found
            ended, whole = time.monotonic(), full(claims, n, most_bytes)
            water.note(found, marks, whole, began, ended)
        if not whole:
            water.ran_dry()
            if water.may_settle(ended - began, ended):
                water.settle(look(water.marks, water.NEAR), ended)
    except ForgeError:
        if not claims:
            raise
        # What was claimed is ours, and must be run; who asks again hears of the trouble.
    return claims
