"""What a storage must do, verb by verb. PostgreSQL and SQLite implement it; one suite tests both.

Storage knows nothing of processes: it never forks, signals or runs a handler. Every decision about time is made by the
database's clock. A verb either happens wholly or not at all, and raises `DatabaseError` when it cannot say which.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self
from uuid import UUID

from forge.job import Claim, Counts, Ending, Job, JobFilter, NewJob, Page, Pod, QueueSettings, Receipt, Status
from forge.storage.contract.budgets import BudgetStore
from forge.storage.contract.leases import LeaseStore
from forge.storage.contract.lines import LineStore
from forge.storage.contract.listener import Listener
from forge.storage.contract.metrics import MetricStore
from forge.storage.contract.schedules import ScheduleStore
from forge.storage.contract.schema import SchemaState
from forge.storage.contract.shares import ShareStore
from forge.storage.contract.statements import Plan, Step
from forge.storage.contract.values import (
    MAX_CRASHES,
    Cancellation,
    Deletion,
    Fates,
    Incarnation,
    Note,
    Pruned,
    Reaped,
    Want,
)
from forge.storage.shared.low_water import MOST_BYTES, LowWater

__all__ = ["Storage"]


class Storage(abc.ABC):
    """One database holding forge's tables. Safe to share between threads; never across a fork."""

    dialect: str
    url: str  # without password
    leases: LeaseStore
    schedules: ScheduleStore
    shares: ShareStore  # how the workers of queues are split over pods
    budgets: BudgetStore  # rates that pods share
    lines: LineStore  # how jobs are claimed that may not run whenever a worker is free
    metrics: MetricStore

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the database ------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def close(self) -> None:
        """Give back every connection."""

    @abc.abstractmethod
    def schema_state(self) -> SchemaState:
        """Which migrations are there and which are missing."""

    @abc.abstractmethod
    def migrate(self) -> list[tuple[int, str]]:
        """Apply what is missing and say what that was. Any number of processes may call it at once."""

    @abc.abstractmethod
    def check_schema(self) -> None:
        """Raise `SchemaError` unless this release can work on what is there."""

    @abc.abstractmethod
    def now(self) -> float:
        """The database's clock, seconds since 1970."""

    @abc.abstractmethod
    def connect(self) -> Any:
        """A fresh connection of the driver's to the same database, for a handler's own statements: the caller's to
        commit and close. psycopg: a transaction begins with the first statement. SQLite: with `begin immediate`."""

    @abc.abstractmethod
    def where(self) -> Step:
        """What asks any connection which database it is on; it begins no transaction that reads."""

    @abc.abstractmethod
    def elsewhere(self, answer: Sequence[Sequence[Any]]) -> str | None:
        """None: a connection that answers so is on this database. Else which one that is, for people."""

    # -- producing ---------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def enqueue(self, jobs: Iterable[NewJob]) -> list[Receipt]:
        """Store jobs, all or none, durably; one receipt each, in order. Safe to repeat with the same ids.

        They may be made on the way: an error in their making stores none."""

    @abc.abstractmethod
    def enqueue_plan(self, jobs: Sequence[NewJob]) -> Plan:
        """The same as statements, for a connection and transaction of the caller's."""

    # -- claiming and ending -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def claim(
        self,
        who: Incarnation,
        queue: str,
        n: int,
        low_water: LowWater | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> list[Claim]:
        """Claim up to n due plain jobs by (priority, run_at, id); none while the queue is paused or cooling down. The
        last one is that with which their payloads come to `most_bytes`: see `full`."""

    def offer(self, who: Incarnation, token: int, queue: str, channel: str, beat_within: float) -> bool:  # noqa: ARG002
        """Offer to take the next job of a queue: if it is enqueued by itself and due at once, the statement that stores
        it claims it too, with this token, and it comes by the listener of that channel. Of a pod that has not beaten
        for `beat_within` seconds no offer is taken. False: the storage takes none, or not now."""
        return False

    def withdraw(self, who: Incarnation, tokens: Sequence[int]) -> None:  # noqa: B027
        """Take offers back. Jobs for which some had been taken before are looked for and given back, as if their claims
        had not been answered: who hears of one later must not run it."""

    @abc.abstractmethod
    def finalize(
        self,
        endings: Sequence[Ending],
        *,
        max_crashes: int = MAX_CRASHES,
        fates: Fates | None = None,
        lock_wait: float | None = None,
    ) -> list[Ending]:
        """End claims in one round trip and one commit. Answers the stale ones, which changed nothing. What became of
        jobs that are not done is added to `fates`; those of a commit that was in doubt may be missing there.

        With `lock_wait` a row that somebody else has locked is waited for no longer than so many seconds: `RowsLocked`.

        The children of an accepted Done are stored in the same transaction (then it is a few round trips)."""

    def locked(self, endings: Sequence[Ending]) -> list[Ending]:  # noqa: ARG002
        """Those whose rows somebody else has locked at this moment."""
        return []

    def lock_holder(self, claim: Claim) -> str | None:  # noqa: ARG002
        """Who has locked the row of this claim, or perhaps what else its end needs, for people; None: nobody, or it
        cannot be told."""
        return None

    @abc.abstractmethod
    def try_writing(self, size: int = 0) -> None:
        """Write what an ending writes, with so many bytes, and undo it. It raises where any ending would be refused:
        the disk is full, the database takes no writes, a privilege is missing."""

    @abc.abstractmethod
    def claims_of(self, pod: int) -> list[Claim]:
        """The claims of a pod, with just enough of each to end it. Reads all jobs where there is no index for it."""

    @abc.abstractmethod
    def exchange(
        self, who: Incarnation, endings: Sequence[Ending], wants: Sequence[Want], *, max_crashes: int = MAX_CRASHES
    ) -> tuple[list[Ending], list[Claim]]:
        """`finalize` and then `claim`, in one transaction: (stale endings, claims)."""

    @abc.abstractmethod
    def complete_in(self, conn: Any, ending: Ending) -> bool:
        """End one claim that is Done, result and children and all, in the open transaction of a connection as `connect`
        makes them. False: the claim is not ours any more, nothing was changed, and the caller must roll back.

        Errors of its library pass through unchanged."""

    @abc.abstractmethod
    def progress(self, notes: Sequence[Note]) -> None:
        """Store how far running jobs are, where the token still holds. It goes when the claim ends."""

    @abc.abstractmethod
    def next_due(self, queues: Sequence[str], low_waters: Mapping[str, LowWater] | None = None) -> float | None:
        """Seconds until the earliest waiting job of these queues may be claimed (0 or less: now), None if none waits.
        A queue that cools down is not before that ends; a paused one does not count. Where a whole scan is dear, a job
        in front of the marks is overlooked; a claim will find it."""

    # -- pods --------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def register(
        self, name: str, queues: Sequence[str], host: str, pid: int, capacity: int = 1, label: str | None = None
    ) -> Incarnation:
        """Make a pod known, under a new number. `capacity` weighs its share of the workers; with 0 it takes none."""

    @abc.abstractmethod
    def beat(self, who: Incarnation) -> bool:
        """Say that the pod lives. False: it has been reaped, and none of its claims is its own any more."""

    @abc.abstractmethod
    def pulse(self, who: Incarnation) -> tuple[bool, list[tuple[UUID, int]]]:
        """`beat` and `cancel_requests` in one round trip: what a pod does every second."""

    @abc.abstractmethod
    def serve(self, who: Incarnation, queues: Sequence[str], capacity: int = 1) -> None:
        """The pod serves these queues from now on, with that capacity: for others to read."""

    @abc.abstractmethod
    def deregister(self, who: Incarnation) -> int:
        """Leave: remove the pod and give back what it still has, attempts refunded. Answers how many."""

    @abc.abstractmethod
    def pods(self) -> list[Pod]:
        """All pods that have not left or been reaped."""

    @abc.abstractmethod
    def release(self, pod: int, message: str | None = None, *, crashed: bool = False) -> int:
        """Give back all claims of a pod known to be dead, attempts refunded; `crashed` counts it against the jobs."""

    @abc.abstractmethod
    def reap(self, stale: float = 60.0, delay: float = 0.0, *, fates: Fates | None = None) -> Reaped:
        """Remove pods silent for `stale` seconds and fail their claims ("reaped after stale heartbeat"); now and then
        also claims of pods that nobody knows of. `delay` is how long such a job waits before its retry; `fates` is as
        for `finalize`."""

    # -- operating ---------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def cancel(self, ids: Collection[UUID]) -> dict[UUID, Cancellation]:
        """End what has not started, flag what runs. Unknown ids are not in the answer."""

    @abc.abstractmethod
    def cancel_requests(self, who: Incarnation) -> list[tuple[UUID, int]]:
        """(job, token) of this pod's claims that somebody wants cancelled."""

    @abc.abstractmethod
    def delete(self, ids: Collection[UUID]) -> dict[UUID, Deletion]:
        """Remove jobs, live or ended. A running one is cancelled instead; delete it again once it has ended."""

    @abc.abstractmethod
    def retry(self, ids: Collection[UUID]) -> set[UUID]:
        """Back to pending and due now, attempts reset. Answers which (not running ones, nor where the key is taken)."""

    @abc.abstractmethod
    def requeue(self, ids: Collection[UUID]) -> set[UUID]:
        """The same with attempts kept: a dead job gets one more try, a scheduled one runs now."""

    @abc.abstractmethod
    def get(self, ids: Collection[UUID]) -> dict[UUID, Job]:
        """Jobs by id, live or ended."""

    @abc.abstractmethod
    def find(self, where: JobFilter, limit: int = 50, cursor: str | None = None) -> Page:
        """One page of jobs, newest id first."""

    @abc.abstractmethod
    def counts(self) -> dict[str, Counts]:
        """Live jobs by queue."""

    @abc.abstractmethod
    def ended_counts(self) -> dict[str, dict[Status, int]]:
        """Ended jobs by queue and status. Reads all history: for people, not for a loop."""

    @abc.abstractmethod
    def queues(self) -> dict[str, QueueSettings]:
        """Queues that have settings."""

    @abc.abstractmethod
    def set_queue(self, name: str, **settings: Any) -> QueueSettings:
        """Change some settings of a queue, made with defaults if it was unknown."""

    @abc.abstractmethod
    def set_wake(self, queue: str, wake: bool) -> None:
        """Whether enqueues to this queue should notify: off while a dispatcher is saturated anyway."""

    @abc.abstractmethod
    def prune(self, n: int = 1000, after: str | None = None, *, term: int | None = None) -> Pruned:
        """One batch of retention, oldest first. With a term it is the leader's: `LostLease` if that is over."""

    @abc.abstractmethod
    def listen(self) -> Listener:
        """Wake-ups, on a connection of their own."""
