"""Where the next claim of a queue starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from forge.errors import ForgeError
from forge.job import Claim

__all__ = ["LowWater", "scan"]


class LowWater:
    """Where a queue's next claim starts: behind the last job claimed, so that the dead index entries of claimed jobs
    are not read again. Each dispatcher keeps one per queue.

    Jobs can also appear in front of the mark (a better priority, a retry, a late commit), so the scan starts over when
    a marked one came back short, when `forget` was called (a wake-up for a better priority), and on a timer. Both are
    held to a share of the time a whole scan takes, so that a claim stays cheap even when nothing can be vacuumed.
    """

    __slots__ = ("_scan_cost", "_scanned_at", "mark", "timer")

    CHEAP = 0.005  # seconds; a whole scan that takes less is not worth avoiding when there is little to do,
    SHARE_WHEN_SHORT = 10  # a dearer one takes at most 1/10 of the time when claims come back short,
    SHARE_ON_TIMER = 25  # and 1/25 of it under load
    CLAIM_COST = 20e-6  # seconds that claiming one job takes anyway, on two cores

    def __init__(self, timer: float = 0.25) -> None:
        self.timer = timer  # seconds between whole scans under load, at least
        self.mark: tuple[int, Any, UUID] | None = None  # (priority, run_at, id)
        self._scanned_at = 0.0
        self._scan_cost = 0.0

    def forget(self) -> None:
        """Start over at the next claim."""
        self.mark = None

    def ran_dry(self) -> None:
        """There is nothing left to claim: a lone job that comes next is found by one whole scan, if those are cheap,
        and not by one from the mark and another from the start (0.4 ms of 3 until it starts)."""
        if self._scan_cost <= self.CHEAP:
            self.mark = None

    def begin(self, now: float) -> tuple[int, Any, UUID] | None:
        """The mark to start from, or None for the start. `now` is monotonic time."""
        if self.mark is not None and now - self._scanned_at >= max(self.timer, self.SHARE_ON_TIMER * self._scan_cost):
            self.mark = None
        return self.mark

    def may_start_over(self, now: float) -> bool:
        """After a marked scan that came back short."""
        return self._scan_cost <= self.CHEAP or now - self._scanned_at >= self.SHARE_WHEN_SHORT * self._scan_cost

    def note(self, claims: Sequence[Claim], whole: bool, began: float, ended: float) -> None:
        """What a scan found, in claim order, and whether it was a whole one."""
        if whole:
            self._scanned_at = ended
            self._scan_cost = max(0.0, ended - began - len(claims) * self.CLAIM_COST)
        if claims:
            last = claims[-1]
            self.mark = (last.priority, last.run_at, last.id)


def scan(
    low_water: LowWater | None, n: int, once: Callable[[int, tuple[int, Any, UUID] | None], list[Claim]]
) -> list[Claim]:
    """Claim by `once(n, mark)` from the mark on, and over again from the start when that came back short."""
    water = low_water if low_water is not None else LowWater()
    began = time.monotonic()
    mark = water.begin(began)
    claims = once(n, mark)
    ended = time.monotonic()
    water.note(claims, mark is None, began, ended)
    if len(claims) < n and mark is not None and water.may_start_over(ended):
        try:
            more = once(n - len(claims), None)
        except ForgeError:
            if not claims:
                raise
            more = []  # what was claimed is ours, and must be run; who asks again hears of the trouble
        else:
            water.note(more, True, ended, time.monotonic())
        claims += more
    if len(claims) < n:
        water.ran_dry()
    return claims
