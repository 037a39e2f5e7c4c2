"""Who reads the master's lines in a worker.

A main thread that runs one job after another reads them itself while it has nothing else to do: a job then starts in
the thread that received it. To have another thread read and pass it on took 0.1 ms a lone job, and switches between
two threads that want the same lock of the interpreter while jobs are short. When a job takes longer, or asks the
master something, a second thread stands in, so that orders and answers are heard meanwhile; it gives the reading back
with the next job. Where jobs run in other threads, or on an event loop, the second thread reads all the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Reading"]

TURN = 0.05  # seconds without reading after which the second thread stands in


class Reading:
    """One reads at a time: who has the role."""

    def __init__(
        self,
        hear: Callable[[], bool],
        tick: Callable[[], None],
        *,
        asked: Callable[[], bool],
        waiting: Callable[[], bool],
        shared: bool,
    ) -> None:
        """`hear` waits until something has come and takes it in, and answers whether jobs came. `tick` does what is to
        be done in time. `asked`: a handler waits for an answer. `waiting`: there are jobs that have not started.
        `shared`: the main thread reads too."""
        self._hear, self._tick, self._asked, self._waiting, self._shared = hear, tick, asked, waiting, shared
        self._role = threading.Lock()
        self._read_at = 0.0  # monotonic: when the main thread last had something
        self._main_reads = False
        self._resting = False  # the second thread, until it is nudged
        self._needed = False
        self._nudge = threading.Event()

    def start(self) -> None:
        """In the second thread, until the main one has had its first jobs."""
        threading.Thread(target=self._stand_in, name="reader", daemon=True).start()

    def by_main(self) -> bool:
        """In the main thread, which has nothing to do: wait for something and take it in. False: the other does."""
        if not self._shared or not self._role.acquire(blocking=False):
            return False
        self._main_reads = True
        try:
            if not self._waiting():  # the other may have had some in the last moment
                self._hear()
        finally:
            self._read_at = time.monotonic()
            self._main_reads = False
            self._role.release()
        if self._resting:
            self._resting = False
            self._nudge.set()
        return True

    def needed(self) -> None:
        """The main thread is about to wait for an answer."""
        if self._shared:
            self._needed = True
            self._nudge.set()

    def _stand_in(self) -> None:
        while True:
            with self._role:
                self._needed = False
                self._tick()
                while not (self._hear() and self._shared and not self._asked()):
                    pass
                self._read_at = time.monotonic()
            self._rest()

    def _rest(self) -> None:
        """Until the main thread has not read for a while, because it has something to do."""
        while not self._needed:
            self._nudge.clear()
            self._resting = self._main_reads
            # Looked at again: who stopped to read in between has seen either that this one rests, or nothing.
            patience = None if self._resting and self._main_reads else self._read_at + TURN - time.monotonic()
            if patience is not None and patience <= 0:
                return
            if not self._needed:
                self._nudge.wait(patience)
