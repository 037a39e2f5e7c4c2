"""Kinds whose jobs take long, as far as is known. Such a job is sent to a worker that has no other, and no job is sent
behind it: one that was would wait until it is recalled, and a handler that never releases the interpreter lets no job
be recalled.

A kind is known by its last jobs: each that was short again halves what is expected of the next one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from forge.job import Ending
from forge.master.queues.job_pace import LONG

__all__ = ["LongKinds", "long_ones"]

_DONE_LINE = re.compile(rb'^\{"id":"([0-9a-f]{32})","status":"ok","took":([0-9]{1,6}\.[0-9]{6})\}$', re.MULTILINE)

Took = tuple[Ending, float]  # a job that has ended, and the seconds it took


class LongKinds(dict[str, float]):
    """The long kinds of one queue, and how many seconds a job of each is expected to take."""

    def took(self, kind: str, seconds: float) -> None:
        """A job of this kind has taken so many seconds, or has run for so long and goes on."""
        if seconds > LONG:
            self[kind] = max(seconds, self.get(kind, 0.0))
        elif kind in self:
            self[kind] /= 2
            if self[kind] <= LONG:
                del self[kind]

    def learn(self, done: Sequence[Ending], long: Sequence[Took]) -> None:
        """These jobs have ended. Those in `long` took so many seconds; the others were short."""
        if self:
            slow = {id(ending) for ending, _ in long}
            for ending in done:
                if ending.claim.kind in self and id(ending) not in slow:
                    self.took(ending.claim.kind, 0.0)
        for ending, seconds in long:
            self.took(ending.claim.kind, seconds)


def long_ones(data: bytes, done: Sequence[Ending]) -> list[Took]:
    """Which of these jobs took long, by the lines of the worker that had them. Call it only if one did. It never
    raises, whatever is in the lines: these jobs are in nobody's hands, and must not get lost."""
    ended = {ending.claim.id.hex.encode(): ending for ending in done}
    lines = ((ended.get(line[1]), float(line[2])) for line in _DONE_LINE.finditer(data))
    return [(ending, seconds) for ending, seconds in lines if ending is not None and seconds > LONG]
