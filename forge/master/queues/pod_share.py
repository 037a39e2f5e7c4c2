"""This pod's part of the cluster's workers: what it may have is told with its beats, and its queues follow."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from forge.config import Config
from forge.master.database_threads import DatabaseThread
from forge.master.pod.log import log
from forge.master.pod.presence import Presence, prepare
from forge.master.pod_state import PodState
from forge.master.queues.local_queue import LocalQueue
from forge.master.queues.local_queues import LocalQueues
from forge.storage import Storage

__all__ = ["PodShare"]


class PodShare:
    """Gives queues as many workers as the cluster lets this pod have. On the loop."""

    def __init__(
        self,
        storage: Storage,
        state: PodState,
        queues: LocalQueues,
        presence: Presence,
        side_thread: DatabaseThread,
        hurry: Callable[[], None],
    ) -> None:
        """`hurry` has the loop look at slots at once: there are more of them, or fewer."""
        self._storage, self._state, self._queues, self._presence = storage, state, queues, presence
        self._side_thread = side_thread
        self._hurry = hurry

    def apply(self, shares: Mapping[str, int]) -> bool:
        """Set how many workers this pod may have, by queue. Returns whether that has changed."""
        known = {name: workers for name, workers in shares.items() if name in self._queues}
        changed = [name for name, workers in known.items() if self._queues[name].share(workers)]
        if changed:
            self._hurry()
        return bool(changed)

    def told(self, shares: Mapping[str, int]) -> None:
        """Set how many workers this pod may have, by queue, while it serves: the log says what has changed, and queues
        that are gone from the database are stored again."""
        self._restore(shares)
        if self.apply(shares):
            log("share: " + ", ".join(f"{queue.limit} of {name}" for name, queue in sorted(self._queues.items())))

    def _restore(self, shares: Mapping[str, int]) -> None:
        """A queue that is not in the database any more, because somebody has emptied the table, is stored again as it
        is configured: without its row nothing is claimed."""
        gone = {n: queue.settings for n, queue in self._queues.items() if n not in shares and not queue.closing}
        if not gone or self._side_thread.busy:
            return
        if served := [
            name for name, settings in gone.items() if self._queues[name].limit
        ]:  # else it is about to be new
            log(f"{', '.join(served)}: no such queue in the database any more; stored again", level=logging.WARNING)
        self._side_thread.send(lambda: prepare(self._storage, gone), self._prepared)

    def woken(self, queues: Iterable[LocalQueue]) -> None:
        """These queues were woken. One without workers may have been paused and be resumed: ask for shares."""
        if not all(queue.limit for queue in queues):
            self._presence.ask_for_shares()

    def tick(self, now: float, in_programs: Mapping[str, int]) -> None:
        """Note how many workers there are; have more where work waits, and fewer where it does not."""
        held = {queue.name: queue.held(in_programs[queue.name]) for queue in self._queues.staffed}
        self._state.note_running({**dict.fromkeys(self._queues, 0), **held})
        if self._state.stopping:
            return
        for queue in self._queues.staffed:
            if queue.scale(now):
                self._ask_whether_work_waits(queue)

    def note(self, in_programs: int) -> None:
        """Note for the thread that beats whether jobs are in hand, and which queues could take some."""
        queues = self._queues.staffed
        in_queues = any(queue.claim_count for queue in queues)
        self._state.note_held(in_queues or in_programs > 0)
        self._state.note_idle([queue.name for queue in queues if queue.room and not queue.more_waits])

    def _ask_whether_work_waits(self, queue: LocalQueue) -> None:
        def answer(seconds: float | None, _: str | None) -> None:
            if seconds is not None and seconds <= 0:
                queue.work_waits(time.monotonic())
                self._hurry()

        if queue.waiting:
            answer(0.0, None)
        elif not self._side_thread.busy:
            marks = {queue.name: queue.low_water}
            self._side_thread.send(lambda: self._storage.next_due([queue.name], marks), answer)

    def leave(self) -> None:
        """Tell the database that the pod serves nothing any more, so that other pods may have its workers as its jobs
        end, before it is gone."""
        who = self._presence.who
        self._side_thread.send(lambda: self._storage.serve(who, []), lambda *_: self._presence.ask_for_shares())

    def reload(self, old: Config, new: Config) -> None:
        """Store queues that are new in the settings, after which there is a share of them. A `max_workers` that was
        changed there counts like `forge queue set`."""
        queues, before = new.declared_queues(), old.queues
        changed = {
            name: queue.max_workers
            for name, queue in queues.items()
            if name in before and before[name].max_workers != queue.max_workers
        }
        self._side_thread.send(lambda: prepare(self._storage, queues, changed), self._prepared)

    def _prepared(self, _: None, error: str | None) -> None:
        if error is not None:
            log(f"the queues' settings were not stored: {error}", level=logging.WARNING)
        self._presence.ask_for_shares()
