"""Threads that talk to the database so that the master's loop never waits for it.

Each does one kind of errand, one at a time, and posts what came of it to the loop. While the database is away results
are kept and tried again; claims are not made; nothing is lost and nothing spins.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from forge.errors import DatabaseError, ForgeError
from forge.storage.contract import Listener

__all__ = ["Beater", "Courier", "Ears"]

Post = Callable[..., None]  # kind of news, then its parts


class Courier(threading.Thread):
    """Runs errands in order. `busy` while one is under way or waiting."""

    def __init__(self, name: str, post: Post, *, patient: bool) -> None:
        super().__init__(name=name, daemon=True)
        self._post = post
        self._patient = patient  # an outage is waited out; else the errand fails
        self._errands: queue.SimpleQueue[tuple[str, Callable[[], Any], Any] | None] = queue.SimpleQueue()
        self.busy = 0

    def send(self, news: str, errand: Callable[[], Any], tag: Any = None) -> None:
        """Post `news` with the tag and what the errand answered, once it has run. Called by the loop."""
        self.busy += 1
        self._errands.put((news, errand, tag))

    def stop(self) -> None:
        """After the errands that are waiting."""
        self._errands.put(None)

    def run(self) -> None:
        while (item := self._errands.get()) is not None:
            news, errand, tag = item
            self._post(news, tag, *self._try(errand))

    def _try(self, errand: Callable[[], Any]) -> tuple[Any, str | None]:
        pause = 0.5
        while True:
            try:
                return errand(), None
            except DatabaseError as e:
                if not self._patient:
                    return None, str(e)
                self._post("outage", str(e))
                time.sleep(pause)
                pause = min(pause * 2, 5.0)
            except ForgeError as e:
                return None, str(e)


class Beater(threading.Thread):
    """Says that the pod lives, on a connection of its own, and asks which jobs are to be cancelled."""

    def __init__(self, every: float, errand: Callable[[], Any], post: Post) -> None:
        super().__init__(name="beat", daemon=True)
        self._every, self._errand, self._post = every, errand, post
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(self._every):
            try:
                self._post("beat", *self._errand())
            except DatabaseError as e:
                self._post("outage", str(e))


class Ears(threading.Thread):
    """Listens for wake-ups. A lost connection is made again; what was missed meanwhile is asked for."""

    def __init__(self, listener: Listener, post: Post) -> None:
        super().__init__(name="listen", daemon=True)
        self._listener, self._post = listener, post
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                woken = self._listener.wait(1.0)
            except DatabaseError:
                self.stopping.wait(1.0)
            else:
                if woken:
                    self._post("woken", woken)
        self._listener.close()
