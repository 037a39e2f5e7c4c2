"""The values that every layer shares: a job as it is enqueued, claimed, ended and read back.

Nothing here does I/O or knows a database. Times are aware UTC datetimes; durations are seconds.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal, NamedTuple, cast
from uuid import UUID

__all__ = [
    "ACTIVE",
    "BAD_IN_NAME",
    "DEFAULT_ATTEMPTS",
    "DEFAULT_TIMEOUT",
    "ENDED",
    "LARGEST_PAYLOAD",
    "LONGEST_DELAY",
    "MAX_NAME",
    "MAX_PAYLOAD",
    "Cancelled",
    "Claim",
    "Counts",
    "Dead",
    "Deduped",
    "Done",
    "Ending",
    "Enqueued",
    "Failed",
    "Job",
    "JobFilter",
    "Line",
    "NewJob",
    "OnConflict",
    "Outcome",
    "Page",
    "Pod",
    "QueueSettings",
    "Receipt",
    "Released",
    "Snooze",
    "Status",
    "Throttled",
    "Written",
    "unstorable",
]


class Status(enum.StrEnum):
    """Where a job stands. The same words in SQL, JSON and on screen."""

    PENDING = "pending"
    FAILED = "failed"  # waiting to retry; not an end
    IN_PROGRESS = "in_progress"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


ACTIVE = frozenset({Status.PENDING, Status.FAILED, Status.IN_PROGRESS})
ENDED = frozenset({Status.DONE, Status.DEAD, Status.CANCELLED})

OnConflict = Literal["keep", "replace", "push"]

DEFAULT_ATTEMPTS = 5
DEFAULT_TIMEOUT = 600  # seconds
MAX_NAME = 255  # characters of the name of a queue, a kind and the like
BAD_IN_NAME = re.compile("[\x00-\x1f\x7f-\x9f,\ud800-\udfff]")  # lists of names are split at commas
MAX_PAYLOAD = 1024 * 1024  # bytes of JSON text that a payload may have, unless `max_payload` says otherwise
LARGEST_PAYLOAD = 15 * 1024 * 1024  # that `max_payload` can allow: see forge.protocol, whose lines follow from it
LONGEST_DELAY = 100 * 365.25 * 86_400.0  # seconds that a job can be put off; every database has such a date


class Line(NamedTuple):
    """Where a job waits that may not run whenever a worker is free: all jobs of a line wait for the same things.

    The name is made of these, budget and key first: a storage that finds one of them used up can pass over all lines
    that share it.
    """

    name: str
    rate_limit: str | None = None  # the budget that each job takes a token of before it is claimed
    concurrency_key: str | None = None  # of the claims with this key
    concurrency: int | None = None  # there are no more than so many at once

    @classmethod
    def of(
        cls,
        *,
        rate_limit: str | None = None,
        concurrency_key: str | None = None,
        concurrency: int | None = None,
        partition: str | None = None,
    ) -> Line:
        """The line of jobs that share all of these; those of one `partition` take turns with those of others."""
        parts = (rate_limit or "", concurrency_key or "", partition or "")
        name = "|".join(part.replace("%", "%25").replace("|", "%7C") for part in parts)
        return cls(name, rate_limit, concurrency_key, concurrency)


class NewJob(NamedTuple):
    """A job about to be stored; already checked and encoded (see `forge.codec`).

    A tuple, because bulk enqueue makes millions: a frozen dataclass of this size costs 2 µs more apiece.
    """

    id: UUID  # UUIDv7 of the client: the same id again is the same job
    kind: str  # names the handler
    payload: bytes  # JSON text
    queue: str = "default"
    priority: int = 0  # lower runs first
    run_at: datetime | None = None  # not before this; None: now, by the database's clock
    delay: float = 0.0  # seconds from the database's now; used when run_at is None
    max_attempts: int = DEFAULT_ATTEMPTS
    timeout: int = DEFAULT_TIMEOUT  # seconds a handler may take
    dedupe_key: str | None = None  # at most one active job has it
    unique_for: int | None = None  # seconds the key stays taken after the job ends
    on_conflict: OnConflict = "keep"  # what a taken key does to the job that has it
    tags: tuple[str, ...] = ()
    keep_result: int | None = None  # seconds the result can be read; None: not stored
    line: Line | None = None  # None: it waits for nothing but its turn


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The job is stored (or was already, under the same id)."""

    id: UUID


@dataclass(frozen=True, slots=True)
class Deduped:
    """Nothing was stored: the active job with this id has the dedupe key."""

    id: UUID


Receipt = Enqueued | Deduped


class Claim(NamedTuple):
    """One claimed job. (`id`, `token`) must accompany every write that ends or renews the claim.

    The order of the first three fields is the claim order, so a list of claims sorts by itself.
    """

    priority: int
    run_at: Any  # as the database has it; only for order
    id: UUID
    token: int  # pod number << 32 | number of the claim within the pod's life
    queue: str
    kind: str
    payload: bytes  # JSON text, undecoded
    attempt: int  # 1 at the first try
    max_attempts: int
    timeout: int
    keep_result: bool
    keyed: bool  # has a dedupe key to give back


# What a handler says happened. Returned or raised: each is an exception too, so it can leave from deep inside.


class Outcome(Exception):
    """Base of the outcomes a handler may return or raise."""

    error_type: str | None = None  # the name of the exception that it was made of, or of the handler's own class

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception pickles its positional arguments; a dataclass may have been given keywords.
        return type(self), tuple(getattr(self, f.name) for f in fields(cast(Any, self)))


@dataclass(eq=False)
class Done(Outcome):
    """The job is finished; `result` is kept if the task keeps results."""

    result: Any = None
    spare_result = False  # if the result cannot be stored, the job is done without it


@dataclass(eq=False)
class Written(Done):
    """Done, and in the database already: a transaction of the handler's wrote it. There is nothing to finalize."""


@dataclass(eq=False)
class Failed(Outcome):
    """This attempt failed; the job retries by its curve, or is dead when its attempts are used up."""

    message: str = "failed"


@dataclass(eq=False)
class Dead(Outcome):
    """No retry can help."""

    message: str = "dead"


def unstorable(why: str, what: str) -> Dead:
    """The end of a job whose result is refused: to run it again would repeat its work, and end the same way."""
    return Dead(
        f'{what}: {why}; it is not run again (with keep_result="if_possible" on its task such a job is done without '
        "its result, with keep_result=False none is kept)"
    )


@dataclass(eq=False)
class Cancelled(Outcome):
    """The handler saw the cancellation and stopped."""

    message: str = "cancelled by user"


@dataclass(eq=False)
class Throttled(Outcome):
    """The far end said slow down: the attempt is refunded and the queue cools down."""

    retry_after: float | None = None  # seconds; honoured where the queue says throttle = "hint"
    job_only: bool = False  # with "hint": spare the rest of the queue


@dataclass(eq=False)
class Snooze(Outcome):
    """Not now: run again after `seconds`; the attempt is refunded and nothing cools down."""

    seconds: float


@dataclass(eq=False)
class Released(Outcome):
    """Given back unrun or unfinished, as if never claimed: the attempt is refunded and the job keeps its place. With a
    delay it waits as `failed` instead (a kind that nobody here knows).

    `crashed` counts the death of the worker that had it: at `max_crashes` the job is dead.
    """

    message: str | None = None
    crashed: bool = False
    give_up_after: float | None = None  # seconds since it was enqueued: by then it is dead instead


class Ending(NamedTuple):
    """How one claim ends, as storage takes it."""

    claim: Claim
    outcome: Outcome
    delay: float = 0.0  # Failed: seconds until the retry, from the curve; below 0: so many unless the queue has a curve
    traceback: str | None = None
    result: bytes | None = None  # Done: JSON text to keep
    children: tuple[NewJob, ...] = ()  # Done: jobs that are stored with this ending or not at all


@dataclass(frozen=True, slots=True)
class Pod:
    """One running master, as others see it. `id` is issued by the database and never used again."""

    id: int
    name: str
    host: str
    pid: int
    queues: tuple[str, ...]
    started_at: datetime
    beat_at: datetime
    capacity: int = 1  # weighs its share of the workers of its queues; 0: it takes none
    label: str | None = None  # a name for people


@dataclass(frozen=True, slots=True)
class Job:
    """A job as stored, live or ended: what `get` and `list` answer."""

    id: UUID
    queue: str
    kind: str
    status: Status
    payload: Any
    priority: int
    attempts: int
    max_attempts: int
    crashes: int
    timeout: int
    run_at: datetime
    enqueued_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
    dedupe_key: str | None
    unique_for: int | None
    keep_result: int | None
    tags: tuple[str, ...]
    errors: tuple[Mapping[str, Any], ...]  # oldest first, at most 32
    result: Any
    cancel_requested_at: datetime | None
    pod: int | None  # who has, or last had, the claim
    progress: Mapping[str, Any] | None = None  # while it runs, if it said: percent, message, at
    line: Line | None = None

    @property
    def last_error(self) -> str | None:
        """The newest error's message."""
        return str(self.errors[-1]["message"]) if self.errors else None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """What to list. Empty means all; fields narrow together."""

    statuses: frozenset[Status] = frozenset()
    queues: Sequence[str] = ()
    kinds: Sequence[str] = ()
    tag: str | None = None


class Page(NamedTuple):
    """One page of a listing, newest job first. `cursor` continues it; None at the end."""

    jobs: list[Job]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Counts:
    """Live jobs of one queue by standing."""

    pending: int = 0  # due now
    scheduled: int = 0  # pending, due later
    in_progress: int = 0
    failed: int = 0  # waiting to retry
    oldest_pending_age: float = 0.0  # seconds the longest-waiting due job has been due


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """A queue's row: what operators set, and how the throttle stands."""

    name: str
    max_workers: int = 1  # over the whole cluster
    paused: bool = False
    backoff_enabled: bool = False  # retries of tasks without a curve, and throttle pauses, grow by the queue's
    backoff_base_seconds: int = 60
    backoff_max_seconds: int = 1800
    throttle: Literal["queue", "hint"] = "queue"
    retain_done_days: float = 7.0
    retain_dead_days: float = 30.0
    throttle_attempts: int = field(default=0, compare=False)
    throttled_until: datetime | None = field(default=None, compare=False)
