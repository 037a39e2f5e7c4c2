"""Signals that come before the master's loop does. Without this, SIGHUP or SIGUSR1 in the first second would end it.

The `forge` package imports this before anything else: what takes time at the start of `forge-master` are its imports.
Hence nothing here but what Python has loaded anyway. What comes before even that, while the interpreter itself starts,
finds no Python to catch it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["SIGNALS", "Leaving", "catch_signals", "caught", "take"]

SIGNALS = [signal.Signals[f"SIG{name}"] for name in ("TERM", "INT", "QUIT", "HUP", "TTIN", "TTOU", "USR1", "USR2")]
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)

_noted: list[int] = []  # for the loop, oldest first


class Leaving(SystemExit):
    """Told to stop before there was a loop to drain: what is open is closed on the way out, and the exit code is 0."""


def _note(number: int, _: FrameType | None) -> None:
    first = not any(each in STOPPING for each in _noted)
    _noted.append(number)
    if number in STOPPING and first:
        raise Leaving(0)


def catch_signals() -> dict[int, Any]:
    """Note them from here on. Answers who had them before."""
    _noted.clear()
    return {number: signal.signal(number, _note) for number in SIGNALS}


@contextmanager
def caught() -> Iterator[None]:
    """Signals are caught in here, and mean afterwards what they did before."""
    before = {} if signal.getsignal(signal.SIGHUP) is _note else catch_signals()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def take() -> list[int]:
    """What has come so far, for who catches signals now. A word to stop is among it if code that was interrupted has
    swallowed `Leaving`, as a destructor does."""
    noted = list(_noted)
    _noted.clear()
    return noted


if os.path.basename(sys.argv[0] if getattr(sys, "argv", None) else "") == "forge-master":
    catch_signals()
