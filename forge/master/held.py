"""The claimed jobs of a lane that no worker has yet, in line.

Nobody else can run what is here. A job waits here for a moment, until a worker of this pod has room for it. If all of
them are busy with long ones it would wait for as long as they take, while a worker of another pod may be idle: so the
line knows whether the jobs that were in it a while ago are still there, and the lane gives them back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from forge.job import Claim

__all__ = ["HeldJobs"]


class HeldJobs(deque[Claim]):
    """First in line first. Whoever takes one out in another way than by `take`, `remove` or `take_all` makes it seem
    older than it is, and does no other harm."""

    def __init__(self) -> None:
        super().__init__()
        self._gone = 0  # jobs that have left it, less those that came back
        self._back = 0  # jobs at its front that came back
        self._since = 0.0  # monotonic: when it was last noted who is there,
        self._until = 0  # and `_gone` when all of these will have left

    def take(self, n: int) -> list[Claim]:
        """The first n; there must be as many."""
        self._gone += n
        self._back = max(0, self._back - n)
        return [self.popleft() for _ in range(n)]

    def take_all(self) -> list[Claim]:
        """All of them."""
        return self.take(len(self))

    def remove(self, claim: Claim) -> None:
        """This one, wherever it is."""
        super().remove(claim)
        self._gone += 1

    def put_back(self, claims: Sequence[Claim]) -> None:
        """These had left: they are first in line again, behind those that came back before them. What a worker gives
        back comes in several pieces."""
        before = min(self._back, len(self))
        self.rotate(-before)
        self.extendleft(reversed(claims))
        self.rotate(before)
        self._back = before + len(claims)
        self._gone -= len(claims)

    def stands_still(self, now: float, patience: float) -> bool:
        """Whether some have been here for so many seconds, as far as was seen: it must be asked now and then."""
        if not self or self._gone >= self._until:
            self._since, self._until = now, self._gone + len(self)
        return bool(self) and now - self._since >= patience
