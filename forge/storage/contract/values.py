"""What the verbs of a storage take and answer, those about jobs and pods."""

from __future__ import annotations

import itertools
from typing import Literal, NamedTuple
from uuid import UUID

from forge.errors import ForgeError
from forge.job import Ending, Pod, Status
from forge.storage.shared.low_water import LowWater

__all__ = [
    "MAX_CRASHES",
    "Cancellation",
    "Deletion",
    "Fates",
    "Incarnation",
    "Note",
    "Pruned",
    "Reaped",
    "RowsLocked",
    "Want",
]

MAX_CRASHES = 3  # after so many a job is dead, unless the caller says otherwise

# (job, token, percent, message): how far a running job is.
Note = tuple[UUID, int, float, str | None]


class RowsLocked(ForgeError):
    """Nothing was written: somebody else has locked what would have been."""


Fates = list[tuple[Ending, Status]]  # endings that were accepted, and what the job is since
Cancellation = Literal["cancelled", "requested", "ended"]  # requested: it runs, its owner has been told
Deletion = Literal["deleted", "requested"]


class Incarnation:
    """One life of a pod: made by `register`, after the process started. Mints the tokens of its claims.

    A token is unique per claim, not only per attempt: a crash of the database can undo an unsynced claim and let the
    same pod claim the same attempt again. So the number comes from here, which no crash of the database sets back.
    """

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        # Tokens of claims whose answer was lost: what they claimed, if anything, is to be found and given back. By
        # token, the monotonic times of the looks to come.
        self.doubtful: dict[int, list[float]] = {}
        self._numbers = itertools.count(1)

    def mint(self) -> int:
        """A token never used before."""
        return self.pod.id << 32 | next(self._numbers)


class Want(NamedTuple):
    """A claim to be made: up to `n` jobs of `queue`."""

    queue: str
    n: int
    low_water: LowWater


class Reaped(NamedTuple):
    """What one pass of the reaper did."""

    pods: list[int]  # that were gone
    jobs: int  # claims taken from them, or from nobody


class Pruned(NamedTuple):
    """One batch of retention: how many rows it looked at and deleted, and where the next batch starts."""

    walked: int
    deleted: int
    after: str | None  # pass to the next call; None: nothing left
    floor: str | None = None  # below this it left nothing: a later pass may start there; None: it is not known
