"""What the master says to whoever runs it: one line each."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Iterator

__all__ = ["Sometimes", "counted", "log", "stacks"]

_LOGGER = logging.getLogger("forge.master")


def log(text: str, who: str = "master", level: int = logging.INFO) -> None:
    """One line, written as `forge.logs` was set up to."""
    _LOGGER.log(level, "%s", text, extra={"who": who})


def counted(n: int, noun: str) -> str:
    """`1 job`, `2 jobs`"""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


class Sometimes:
    """Lets a thing be said once in so many seconds, for each of a bounded number of things."""

    MOST = 1000

    def __init__(self, every: float) -> None:
        self._every = every
        self._told: dict[str, float] = {}

    def __call__(self, what: str, now: float) -> bool:
        """Whether to say it now."""
        if now - self._told.get(what, -self._every) < self._every:
            return False
        if len(self._told) >= self.MOST:
            self._told.clear()
        self._told[what] = now
        return True


def stacks() -> Iterator[str]:
    """Where every thread of this process stands, a paragraph each."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        where = "".join(traceback.format_stack(frame)).rstrip()
        yield f"thread {names.get(ident, ident)}\n{where}"
