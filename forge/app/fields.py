"""What an enqueue may say about a job, checked field by field. Each refusal names the field and its limit.

Knows no task, app or database: it turns options into the fields of a `NewJob`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, get_args
from uuid import UUID

from forge.app.line_rules import LineOptions
from forge.codec import KEY_BYTES, KEY_CHARS, TAG_CHARS, check_name
from forge.config import suggest
from forge.errors import InvalidJob, UsageError
from forge.job import DEFAULT_ATTEMPTS, DEFAULT_TIMEOUT, LONGEST_DELAY, Line, OnConflict

__all__ = [
    "IF_POSSIBLE",
    "EnqueueOptions",
    "Fields",
    "KeepResult",
    "Seconds",
    "TaskKeepResult",
    "check_fields",
    "check_id",
    "check_key",
    "check_options",
]

Seconds = int | timedelta  # whole seconds
KeepResult = bool | int | timedelta | None
IF_POSSIBLE: Final = "if_possible"  # kept as by True; a result that cannot be stored is left out
TaskKeepResult = KeepResult | Literal["if_possible"]

DAY = 86_400
LONGEST_TIMEOUT = 7 * DAY
LONGEST_HOLD = 3650 * DAY  # of a result or a key: it fits a 32-bit column with room to spare
DEFAULT_KEEP = 7 * DAY
# PostgreSQL answers in the session's time zone, and Python cannot read the year 10000 of any zone.
LATEST = datetime(9999, 12, 30, tzinfo=UTC)
TAG_COUNT = 100


class EnqueueOptions(LineOptions, total=False):
    """Options of one enqueue. Left out, or None: as the task says, else forge's default."""

    queue: str | None  # else the task's, else the router's, else "default"
    priority: int | None  # lower runs first
    run_at: datetime | None  # aware; not before this
    delay: float | timedelta  # seconds from the database's now
    max_attempts: int | None
    timeout: Seconds | None  # seconds a handler may take
    dedupe_key: str | None  # at most one active job has it
    unique_for: Seconds | None  # how long the key stays taken after the job ends
    on_conflict: OnConflict  # keep | replace (the payload) | push (run_at)
    tags: Iterable[str]
    keep_result: KeepResult  # True: 7 days; seconds; False: not at all
    id: UUID | str | None  # the same id again is the same job


class Fields(NamedTuple):
    """The fields of a `NewJob` behind its payload, checked and in its order."""

    queue: str
    priority: int
    run_at: datetime | None
    delay: float
    max_attempts: int
    timeout: int
    dedupe_key: str | None
    unique_for: int | None
    on_conflict: OnConflict
    tags: tuple[str, ...]
    keep_result: int | None
    line: Line | None


def check_fields(
    *,
    queue: str,
    priority: int = 0,
    run_at: datetime | None = None,
    delay: float | timedelta = 0,
    max_attempts: int = DEFAULT_ATTEMPTS,
    timeout: Seconds = DEFAULT_TIMEOUT,
    dedupe_key: str | None = None,
    unique_for: Seconds | None = None,
    on_conflict: OnConflict = "keep",
    tags: Iterable[str] = (),
    keep_result: KeepResult = None,
    keyed: bool = False,
    line: Line | None = None,
) -> Fields:
    """The fields, or `InvalidJob` for the first that cannot be stored. `keyed`: a dedupe key will come later."""
    if run_at is not None and delay:
        raise InvalidJob("run_at and delay are both given; give one")
    if unique_for is not None and dedupe_key is None and not keyed:
        raise InvalidJob("unique_for needs a dedupe_key to hold")
    if on_conflict not in get_args(OnConflict):
        raise InvalidJob(f"on_conflict must be one of {', '.join(get_args(OnConflict))}, not {on_conflict!r}")
    return Fields(
        queue=check_name(queue, "queue"),
        priority=_integer(priority, "priority", -32_768, 32_767),
        run_at=None if run_at is None else _moment(run_at),
        delay=_delay(delay),
        max_attempts=_integer(max_attempts, "max_attempts", 1, 32_767),
        timeout=_seconds(timeout, "timeout", LONGEST_TIMEOUT),
        dedupe_key=None if dedupe_key is None else check_key(dedupe_key),
        unique_for=None if unique_for is None else _seconds(unique_for, "unique_for", LONGEST_HOLD),
        on_conflict=on_conflict,
        tags=_tags(tags),
        keep_result=_keep_seconds(keep_result),
        line=line,
    )


def check_options(options: Mapping[str, object], known: type, where: str) -> None:
    """Refuse an option that `known`, a TypedDict, does not have: a misspelt one must not be dropped in silence."""
    names = known.__annotations__
    for name in options:
        if name not in names:
            raise UsageError(f"{where}: no option {name}{suggest(name, names)}")


def check_key(value: str) -> str:
    """A dedupe key."""
    return _text(value, "dedupe_key", KEY_CHARS, KEY_BYTES)


def check_id(value: UUID | str) -> UUID:
    """An id in either spelling."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise InvalidJob(f"id must be a UUID, not {_shown(value)}") from None


def _keep_seconds(value: KeepResult) -> int | None:
    """`keep_result=` in seconds; None: the result is not stored."""
    if value is None or value is False:
        return None
    if value == IF_POSSIBLE:
        raise InvalidJob(f'keep_result="{IF_POSSIBLE}" is said by the task; an enqueue says for how long, or False')
    return DEFAULT_KEEP if value is True else _seconds(value, "keep_result", LONGEST_HOLD)


def _integer(value: Any, field: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidJob(f"{field} must be a whole number, not {_shown(value)}")
    if not low <= value <= high:
        raise InvalidJob(f"{field} must be {low} to {high}, not {_shown(value)}")
    return int(value)


def _seconds(value: Any, field: str, high: int) -> int:
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        if not seconds.is_integer():
            raise InvalidJob(f"{field} must be whole seconds, not {value}")
        value = int(seconds)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidJob(f"{field} must be whole seconds or a timedelta, not {_shown(value)}")
    if not 1 <= value <= high:
        raise InvalidJob(f"{field} must be 1 to {high} seconds ({high // DAY} days), not {_shown(value)}")
    return int(value)


def _delay(value: Any) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidJob(f"delay must be seconds or a timedelta, not {_shown(value)}")
    if not (math.isfinite(value) if isinstance(value, float) else True) or not 0 <= value <= LONGEST_DELAY:
        raise InvalidJob(f"delay must be 0 to {LONGEST_DELAY:.0f} seconds (100 years), not {_shown(value)}")
    return float(value)


def _moment(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise InvalidJob(f"run_at must be a datetime, not {_shown(value)}")
    if value.utcoffset() is None:
        raise InvalidJob(f"run_at {value.isoformat()} has no time zone; add one, such as tzinfo=datetime.UTC")
    try:
        moment = value.astimezone(UTC)
    except OverflowError:
        moment = datetime.min.replace(tzinfo=UTC)
    if moment.year < 1970:
        raise InvalidJob(f"run_at must be in the years 1970 to 9999 (UTC), not {value.isoformat()}")
    return min(moment, LATEST)


def _text(value: Any, field: str, chars: int, size: int | None = None) -> str:
    if not isinstance(value, str):
        raise InvalidJob(f"{field} must be a string, not {_shown(value)}")
    if not value or len(value) > chars:
        raise InvalidJob(f"{field} must have 1 to {chars} characters, not {len(value)}")
    if "\0" in value:
        raise InvalidJob(f"{field} must not hold a NUL character")
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        raise InvalidJob(f"{field} must not hold a lone surrogate") from None
    if size is not None and len(encoded) > size:
        raise InvalidJob(f"{field} must have at most {size} bytes in UTF-8, not {len(encoded)}")
    return value


def _tags(value: Any) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InvalidJob(f"tags must be a list of strings, not {_shown(value)}")
    tags = tuple(value)
    if len(tags) > TAG_COUNT:
        raise InvalidJob(f"tags must be at most {TAG_COUNT}, not {len(tags)}")
    return tuple([_text(tag, "tags: each", TAG_CHARS) for tag in tags])


def _shown(value: object) -> str:
    """The value as an error can show it: never a page of it."""
    if isinstance(value, int) and value.bit_length() > 128:  # past 4300 digits repr itself would refuse
        return "a larger number" if value > 0 else "a smaller number"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
