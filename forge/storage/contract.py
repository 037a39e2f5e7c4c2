"""What a storage must do, verb by verb. PostgreSQL and SQLite implement it; one suite tests both.

Storage knows nothing of processes: it never forks, signals or runs a handler. Every decision about time is made by the
database's clock. A verb either happens wholly or not at all, and raises `DatabaseError` when it cannot say which.
"""

from __future__ import annotations

import abc
import difflib
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self
from uuid import UUID

from forge.codec import check_name
from forge.errors import ForgeError, UsageError
from forge.job import Claim, Counts, Done, Ending, Job, JobFilter, NewJob, Page, Pod, QueueSettings, Receipt, Status
from forge.storage.budgets import Budgets
from forge.storage.leases import Leases
from forge.storage.lines import Lines
from forge.storage.listener import Listener
from forge.storage.low_water import MOST_BYTES, LowWater
from forge.storage.metrics import Metrics
from forge.storage.migrations import SchemaState
from forge.storage.notes import Note
from forge.storage.schedules import Schedules
from forge.storage.shares import Shares
from forge.storage.statements import Query

__all__ = [
    "RETRY_DELAYS",
    "Cancellation",
    "Deletion",
    "Fates",
    "Incarnation",
    "LowWater",
    "Note",
    "Plan",
    "Pruned",
    "Reaped",
    "RowsLocked",
    "Step",
    "Storage",
    "Want",
]

# Waits before a verb that met a passing conflict or a lost connection is tried again.
RETRY_DELAYS = (0.1, 0.3, 1.0)

ERRORS_KEPT = 32
# A success this long after a throttle window starts the curve over; sooner, a flapping limiter would reset it.
THROTTLE_GRACE_SECONDS = 120.0
MAX_CRASHES = 3


class RowsLocked(ForgeError):
    """Nothing was written: somebody else has locked what would have been."""


Fates = list[tuple[Ending, Status]]  # endings that were accepted, and what the job is since
Cancellation = Literal["cancelled", "requested", "ended"]  # requested: it runs, its owner has been told
Deletion = Literal["deleted", "requested"]


class Step(NamedTuple):
    """One statement of a plan."""

    query: Query
    params: Mapping[str, Any]


# A verb written once for every kind of connection: it yields statements and is sent their rows. `forge.app` runs one
# on a connection of the caller's, sync or async.
Plan = Generator[Step, Sequence[Sequence[Any]], list[Receipt]]


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


class Storage(abc.ABC):
    """One database holding forge's tables. Safe to share between threads; never across a fork."""

    dialect: str
    url: str  # without password
    leases: Leases
    schedules: Schedules
    shares: Shares  # how the workers of queues are split over pods
    budgets: Budgets  # rates that pods share
    lines: Lines  # how jobs are claimed that may not run whenever a worker is free
    metrics: Metrics

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


def run_plan(plan: Plan, execute: Callable[[Step], Sequence[Sequence[Any]]]) -> list[Receipt]:
    """Run a plan on a connection: `execute` runs one step and answers its rows."""
    try:
        step = next(plan)
        while True:
            step = plan.send(execute(step))
    except StopIteration as end:
        receipts: list[Receipt] = end.value
        return receipts


def accepted_children(endings: Sequence[Ending], stale: Sequence[Ending]) -> list[NewJob]:
    """The jobs that are to be stored with these endings: those of each Done that was not stale. Ordered by key, None
    last: two transactions must take keys in one order."""
    # By identity and count: one ending given twice is accepted once.
    refused = Counter(map(id, stale))
    found: dict[UUID, NewJob] = {}
    for ending in endings:
        if not ending.children or type(ending.outcome) is not Done:
            continue
        if refused[id(ending)]:
            refused[id(ending)] -= 1
        else:
            found |= {job.id: job for job in ending.children}
    return sorted(found.values(), key=lambda job: (job.dedupe_key is None, job.dedupe_key))


# Bounds of the numeric settings of a queue.
_BOUNDS: dict[str, tuple[float, float]] = {
    "max_workers": (0, 10_000),
    "backoff_base_seconds": (1, 86_400),
    "backoff_max_seconds": (1, 86_400),
    "retain_done_days": (0, 36_500),
    "retain_dead_days": (0, 36_500),
}
SETTINGS = ("max_workers", "paused", "backoff_enabled", "backoff_base_seconds", "backoff_max_seconds", "throttle",
            "retain_done_days", "retain_dead_days")  # fmt: skip


def check_settings(queue: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of a queue, None where it is left alone; a wrong name or value is a UsageError."""
    check_name(queue, "queue")
    for name, value in settings.items():
        if name not in SETTINGS:
            near = difflib.get_close_matches(name, SETTINGS, 1)
            raise UsageError(
                f"queue {queue}: no setting {name!r}; "
                + (f"did you mean {near[0]}?" if near else f"use one of {', '.join(SETTINGS)}")
            )
        if name in ("paused", "backoff_enabled"):
            if not isinstance(value, bool):
                raise UsageError(f"queue {queue}: {name} is true or false, not {value!r}")
        elif name == "throttle":
            if value not in ("queue", "hint"):
                raise UsageError(f"queue {queue}: throttle is 'queue' or 'hint', not {value!r}")
        else:
            low, high = _BOUNDS[name]
            whole = name == "max_workers" or name.endswith("_seconds")
            if (
                isinstance(value, bool)
                or not isinstance(value, int if whole else (int, float))
                or not low <= value <= high
            ):
                raise UsageError(f"queue {queue}: {name} is a number from {low:g} to {high:g}, not {value!r}")
    return {name: settings.get(name) for name in SETTINGS}
