"""What a command does before anything else: it takes passwords out of its title, and the master catches signals.

Without that, SIGHUP or SIGUSR1 in the first second would end `forge-master`, and `ps` would show whatever its
`--database` was. The `forge` package imports this first, because what takes time at the start of a command are its
imports; hence nothing here but what Python has loaded anyway. While the interpreter itself starts there is no Python
yet that could do anything.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["SIGNALS", "Leaving", "catch_signals", "caught", "hide_arguments", "take", "title"]

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


def title(words: list[str]) -> str:
    """A command line as everybody on the host may see it: a database is not shown, nor anything like a URL."""
    shown, hide = [], False
    for word in words:
        option, mark, value = word.partition("=")
        names_database = option.startswith("--d") and "--database".startswith(option)  # argparse takes it shortened
        if hide or (not option.startswith("-") and "://" in word):
            shown.append("***")
        elif names_database and mark:
            shown.append(f"{option}=***")
        else:
            shown.append(f"{option}=***" if "://" in value else word)
        hide = names_database and not mark
    return " ".join(shown)


def hide_arguments(command: str) -> None:
    """Have `ps` show this process by its title: always for the master, for others if there is anything to hide."""
    said, shown = " ".join(sys.argv[1:]), title(sys.argv[1:])
    if command == "forge-master" or said != shown:
        import setproctitle  # takes 1 ms, which other commands need not wait for

        setproctitle.setproctitle(f"{command} {shown}".rstrip())
        setproctitle.setthreadtitle(command)  # what `pgrep` goes by


_command = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
if _command in ("forge", "forge-master"):
    hide_arguments(_command)
if _command == "forge-master":
    catch_signals()
