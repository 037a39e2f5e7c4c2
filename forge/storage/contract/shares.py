"""How the workers of a queue are split over pods: what the leader reads and writes, and what each pod goes by.

A row of `share` is one queue of one pod. `workers` is the leader's word; `applied` and `running` are the pod's own: the
limit it goes by, and the workers it has (more than that while some let their last job end). A pod goes by no limit that
is not written down as applied, so the leader never has to guess what a pod may be doing.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from forge.storage.contract.values import Incarnation

__all__ = ["Cluster", "Member", "QueueSeen", "Share", "ShareChange", "ShareReport", "ShareStore"]


class Member(NamedTuple):
    """A live pod, as far as its part of the work goes."""

    id: int
    queues: tuple[str, ...]
    capacity: int


class Share(NamedTuple):
    """One queue of one pod."""

    pod: int
    queue: str
    workers: int | None  # what the leader gives it; None: no word yet
    applied: int
    running: int


class Cluster(NamedTuple):
    """All that the leader needs to know."""

    queues: Mapping[str, int]  # max_workers, paused or not: a pod heeds that itself
    pods: Sequence[Member]
    shares: Sequence[Share]


class ShareChange(NamedTuple):
    """A row that the leader writes; sorts in the order in which rows are locked."""

    pod: int
    queue: str
    workers: int | None  # None: the row goes


class QueueSeen(NamedTuple):
    """One queue as one of its pods sees it."""

    queue: str
    max_workers: int
    paused: bool
    declared: bool  # by this pod
    workers: int | None
    applied: int | None  # None: it has said nothing yet
    running: int | None
    others: int  # other pods that declare it; 0 also if that does not matter
    rivals: bool  # others have a part in it
    lines: bool = False  # there are, or have been, jobs in lines


class ShareReport(NamedTuple):
    """What a pod is going to go by, and what that follows from: if the leader's word has changed since, it is void."""

    queue: str
    workers: int | None
    applied: int
    running: int


class ShareStore(abc.ABC):
    """A storage's verbs about shares: `storage.shares`."""

    lined: frozenset[str] = frozenset()  # queues with lines, as of the last look; replaced as a whole
    shared: frozenset[str] = frozenset()  # queues that other pods may have workers of; the same

    @abc.abstractmethod
    def beat(self, who: Incarnation, running: Mapping[str, int]) -> dict[str, int] | None:
        """`Storage.beat` and `look` in one statement where nothing has changed. None: the pod has been reaped."""

    @abc.abstractmethod
    def look(self, who: Incarnation, running: Mapping[str, int]) -> dict[str, int]:
        """Say how many workers this pod has of each queue (none of those not named); be told how many it may have.

        A queue without settings is not in the answer. With no word from the leader yet it is the total over the pods
        that declare the queue, rounded up; alone, a pod may have all; of a paused queue, none."""

    @abc.abstractmethod
    def cluster(self) -> Cluster:
        """Queues, live pods and shares, in one statement."""

    @abc.abstractmethod
    def assign(self, term: int, changes: Sequence[ShareChange]) -> None:
        """Write them, if the lease still has this term; else `LostLease`, and nothing is written. Rows of pods that
        are gone or about to go are passed over."""

    @abc.abstractmethod
    def undeclared(self) -> dict[str, bool]:
        """Queues with settings or jobs that no live pod serves, and whether jobs wait in them."""
