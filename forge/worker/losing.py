"""When a worker's handlers are to be told that their pod has lost its database: see `forge.fence`. Who reads the
master's lines asks, so it holds for a master that no longer moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from forge.app.running.context import Why
from forge.fence import Deadlines, clock

__all__ = ["LOST", "Losing"]

LOST = Why("the pod has lost its database, and others may take the job", "released")
LONGEST = 5.0  # seconds between two looks at the times: they may be nearer by now


class Losing:
    """Which step is next. Each beat that is confirmed begins anew."""

    def __init__(self, deadlines: Deadlines | None, now: Callable[[], float] = clock) -> None:
        """None: there is nobody who could take the jobs."""
        self._deadlines, self._clock = deadlines, now
        self._since = 0.0  # the time of which these are the steps
        self._steps = 0  # done

    def patience(self) -> int | None:
        """Milliseconds until it should be asked again; None: never."""
        found, now = self._deadlines, self._clock()
        if found is None:
            return None
        nearest = min((at - now for at in (found.tell_at, found.interrupt_at) if at > now), default=LONGEST)
        return int(min(nearest, LONGEST) * 1000) + 1

    def step(self) -> Literal["tell", "interrupt"] | None:
        """What is to be done now, once each."""
        found, now = self._deadlines, self._clock()
        if found is None or now < found.tell_at:
            return None
        if found.tell_at != self._since:
            self._since, self._steps = found.tell_at, 0
        if self._steps == 0:
            self._steps = 1
            return "tell"
        if self._steps == 1 and now >= found.interrupt_at:
            self._steps = 2
            return "interrupt"
        return None
