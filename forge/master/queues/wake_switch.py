"""Whether producers should notify this pod.

A notification makes commits wait for each other, and a queue whose claims come back full needs none: it claims again
anyway. So while a queue is saturated its producers are told not to notify, and to notify again before the pod waits.

- The switch is the queue's, for all pods. Another pod's idle worker would hear of new jobs only by its poll; so it is
  used only where no other live pod declares the queue, and given back when one appears.
- A job that was stored between the last claim and the switching on has woken nobody: the queue claims once more after.
- A crash while it is off costs others a poll; whoever starts next switches it on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forge.job import Pod
from forge.master.database_threads import DatabaseThread
from forge.master.queues.local_queue import LocalQueue
from forge.storage import Storage

__all__ = ["WakeSwitch"]

SATURATED_FOR = 1.0  # seconds of full claims before producers are told not to notify
CHANGE_EVERY = 1.0  # seconds between two changes of a queue's switch, at least
LOOK_EVERY = 5.0  # seconds between two looks at which other pods there are, at least


class WakeSwitch:
    """Switches notifications of queues off and on."""

    def __init__(self, storage: Storage, side_thread: DatabaseThread) -> None:
        self._storage, self._side_thread = storage, side_thread
        self._off: set[str] = set()  # queues, as far as the database has been told
        self._changed_at: dict[str, float] = {}
        self._saturated_since: dict[str, float] = {}
        self._looked_at = 0.0
        self._shared: set[str] | None = None  # queues that other pods declare too; None: not known

    def tick(self, queues: Iterable[LocalQueue], own: int, now: float) -> None:
        """Look which queues are saturated, and switch where that has changed. `own` is this pod's number."""
        if self._storage.dialect == "sqlite" or self._side_thread.busy:
            return  # SQLite's listener sees commits, whoever makes them
        for queue in queues:
            if not queue.more_waits:
                self._saturated_since.pop(queue.name, None)
            since = self._saturated_since.setdefault(queue.name, now) if queue.more_waits else now
            saturated = now - since >= SATURATED_FOR
            if saturated and now - self._looked_at >= LOOK_EVERY:
                self._looked_at = now
                self._side_thread.send(self._storage.pods, lambda pods, _: self._saw(pods, own))
            off = saturated and self._shared is not None and queue.name not in self._shared
            if off != (queue.name in self._off) and now - self._changed_at.get(queue.name, 0.0) >= CHANGE_EVERY:
                self._change(queue, off, now)

    def _saw(self, pods: Sequence[Pod] | None, own: int) -> None:
        known = None if pods is None else {queue for pod in pods if pod.id != own for queue in pod.queues}
        self._shared = known

    def _change(self, queue: LocalQueue, off: bool, now: float) -> None:
        self._changed_at[queue.name] = now
        if off:
            self._off.add(queue.name)
        else:
            self._off.discard(queue.name)

        def done(_: None, error: str | None) -> None:
            if not off:
                queue.wake()  # for what came in between
            if error is not None:  # not known: have it said again
                (self._off.discard if off else self._off.add)(queue.name)

        self._side_thread.send(lambda: self._storage.set_wake(queue.name, not off), done)

    def restore(self) -> None:
        """Switch all notifications on again, before the pod leaves. Waits for the database, on the loop, which has
        nothing else to do then."""
        for name in sorted(self._off):
            self._storage.set_wake(name, True)
