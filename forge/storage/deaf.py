"""No wake-ups: for a database that can only be reached through a pooler."""

from __future__ import annotations

import threading

from forge.storage.contract import Listener

__all__ = ["Deaf"]


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
