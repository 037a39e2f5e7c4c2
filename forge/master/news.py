"""News: what threads, signal handlers and the listener have to say to the loop. Small values that never change; the
loop takes them in one by one (`Master._take_in`), in the order they came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from forge.job import Claim
from forge.storage.contract import Incarnation

if TYPE_CHECKING:
    from forge.master.database_threads import DatabaseThread

__all__ = [
    "Beat",
    "CancelsFound",
    "ChannelChanged",
    "ErrandDone",
    "JobsPushed",
    "ListenerReady",
    "LookDue",
    "News",
    "Outage",
    "Post",
    "SharesFound",
    "SignalCame",
    "Then",
    "Trouble",
    "Woken",
]

Then = Callable[[Any, str | None], None]  # what an errand answered, or the error it ended in


class SignalCame(NamedTuple):
    """The process was sent a signal."""

    number: int


class ErrandDone(NamedTuple):
    """A database thread is back from an errand."""

    thread: DatabaseThread
    then: Then  # wants to know
    answer: Any  # None if it failed
    error: str | None  # why it did


class Beat(NamedTuple):
    """The database has taken a heartbeat."""

    began: float  # by the clock of `forge.fence`
    who: Incarnation  # another one than before: the pod had been reaped
    cancels: list[tuple[UUID, int]]  # (job, token)
    shares: dict[str, int]  # workers that the pod may have, by queue


class CancelsFound(NamedTuple):
    """Jobs of this pod that somebody wants cancelled."""

    jobs: list[tuple[UUID, int]]  # (job, token)


class SharesFound(NamedTuple):
    """How many workers the pod may have."""

    workers: dict[str, int]  # by queue


class LookDue(NamedTuple):
    """It is time to ask the database whether jobs are due, in case a wake-up was missed."""


class Outage(NamedTuple):
    """The database could not be used."""

    error: str
    writing: bool = False  # results could not be written


class Trouble(NamedTuple):
    """Something else went wrong that whoever runs the master should know."""

    error: str


class ListenerReady(NamedTuple):
    """The listener has a connection that the loop itself can hear."""

    fd: int
    read: Callable[[], bool]  # False: the connection is lost


class ChannelChanged(NamedTuple):
    """The listener hears another channel, or none."""

    channel: str | None


class JobsPushed(NamedTuple):
    """Jobs that were claimed for this pod, because of its offers."""

    claims: Sequence[Claim]


class Woken(NamedTuple):
    """Wake-ups: names of queues, `*` for any of them, and words such as `leader:` or `cancel:7`."""

    words: set[str]


News = (
    SignalCame
    | ErrandDone
    | Beat
    | CancelsFound
    | SharesFound
    | LookDue
    | Outage
    | Trouble
    | ListenerReady
    | ChannelChanged
    | JobsPushed
    | Woken
)
Post = Callable[[News], None]  # from any thread or signal handler
