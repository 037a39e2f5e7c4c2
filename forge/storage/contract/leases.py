"""The lease that says which pod leads: one row, terms issued by the database, times by its clock.

`forge.cluster.lease` says what may be relied on, and why.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

__all__ = ["Holder", "Leader", "LeaseAnswer", "LeaseStore"]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who asks for the lease."""

    key: str  # of this asker alone: who asks again under it is the same one
    pod: int | None  # None: no pod, but a command
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, as others see it."""

    term: int
    pod: int | None
    host: str
    pid: int
    since: datetime
    until: datetime  # unless it is renewed


class LeaseAnswer(NamedTuple):
    """What came of asking."""

    term: int | None  # None: another one leads
    left: float  # seconds until the lease that stands lapses, unless it is renewed


class LeaseStore(abc.ABC):
    """The lease. A write that only the leader may do takes its term and is refused once that is over: `LostLease`."""

    @abc.abstractmethod
    def acquire(self, holder: Holder, ttl: float) -> LeaseAnswer:
        """Lead for `ttl` seconds under a new term, higher than any before, if nobody else does: the lease was given
        back or has lapsed, is the holder's own, or its pod is no more."""

    @abc.abstractmethod
    def renew(self, term: int, holder: Holder, ttl: float) -> bool:
        """Lead for `ttl` seconds from now. False: the term is over."""

    @abc.abstractmethod
    def release(self, term: int) -> None:
        """End the term now, if it is not over already."""

    @abc.abstractmethod
    def leader(self) -> Leader | None:
        """Who leads now."""

    @abc.abstractmethod
    def check(self, term: int) -> None:
        """`LostLease` if the term is over. What holds now need not hold for the next statement: a write checks in its
        own transaction."""
