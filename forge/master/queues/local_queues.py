"""All queues of this pod, as the settings and the cluster have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forge.config import Config
from forge.master.programs.places import Places
from forge.master.queues.local_queue import LocalQueue
from forge.master.workers.suspects import ZygoteDeaths

__all__ = ["LocalQueues"]

# A queue is claimed from when something says that there are jobs: a wake-up, or the look at all queues that is made
# every poll_interval. A claim that nothing asks for is made this often, and all of them together once in two seconds
# at most: with many queues, idle ones would be most of what the database does.
CLAIM_ANYWAY = 10.0


class LocalQueues(dict[str, LocalQueue]):
    """By name. A turn of the loop goes over `staffed` alone: queues that are paused, or that this pod has no share of,
    cost nothing however many they are."""

    def __init__(self) -> None:
        super().__init__()
        self.staffed: list[LocalQueue] = []

    def look(self, in_programs: Mapping[str, int]) -> None:
        """Find out which have workers or jobs, `in_programs` included. To be called at each tick: whatever gives a
        queue its first worker asks for one."""
        self.staffed = [
            queue
            for name, queue in self.items()
            if queue.slots
            or queue.waiting
            or queue.claiming
            or queue.closing
            or queue.suspects.slots
            or queue.suspects.waiting
            or in_programs.get(name)
        ]

    def free_places(self, name: str) -> int:
        """How many places of that queue its workers leave to programs."""
        queue = self.get(name)
        return queue.places - queue.working if queue is not None else 0

    def arrange(
        self, config: Config, places: Places, deaths: ZygoteDeaths, *, serving: bool = False
    ) -> Sequence[LocalQueue]:
        """Have the queues that the settings name. Answers those that they do not name any more, which are to drain.

        `serving`: the pod does already, so that a new queue waits for its share before it has workers."""
        declared = config.declared_queues()
        look_every = max(CLAIM_ANYWAY, config.poll_interval, 2.0 * len(declared))
        for name, settings in declared.items():
            if name not in self:
                self[name] = LocalQueue(name, settings, look_every, deaths, places)
                if serving:
                    self[name].share(0)
            self[name].configure(settings, look_every)
        left = [queue for name, queue in self.items() if name not in declared]
        for queue in left:
            queue.close()
        return left
