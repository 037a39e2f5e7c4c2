"""How a pod hears that there is work: what every database offers, and what stands in where nobody wants to listen."""

from __future__ import annotations

import abc
import threading

from forge.job import Claim

__all__ = ["Deaf", "Listener"]


class Listener(abc.ABC):
    """Hints that there may be work. A lost one costs a poll, never a job. And jobs that were claimed for a pod that had
    offered to take them; if the connection is lost, such a one may be too, and its pod must look for it."""

    channel: str | None = None  # where such jobs are to be sent, once it listens; None: it takes none

    @abc.abstractmethod
    def wait(self, timeout: float) -> set[str]:
        """Queues that woke up, `back:<queue>` if jobs of it were given back, perhaps in front of marks, `cancel:<pod>`,
        `leader:` if nobody leads now, `drain:<budget>`, `schedule:` if one has come or changed, or nothing after
        `timeout` seconds. `*`: look everywhere."""

    def fileno(self) -> int | None:
        """What to watch instead of waiting: when it can be read, `wait(0)` has something to say. None: only wait."""
        return None

    def probe(self) -> None:
        """See whether anybody is at the other end; called every few seconds, from any thread, and waits for nothing. If
        there was no answer since the last time the connection is given up: it can be read then, and `wait` says so."""
        return

    def pushed(self) -> list[Claim]:
        """Jobs that have come during `wait`. Each is given once."""
        return []

    @abc.abstractmethod
    def close(self) -> None:
        """Stop listening."""


class Deaf(Listener):
    """Hears nothing and waits all the same, so that whoever listens goes by its own poll."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def wait(self, timeout: float) -> set[str]:
        """Nothing, after `timeout` seconds or when closed."""
        self._closed.wait(timeout)
        return set()

    def close(self) -> None:
        """End a wait in another thread."""
        self._closed.set()
