"""What goes into a database and what comes out: payloads as JSON text, names, and messages that must not be lost.

Everything a producer passes is checked here, before anything is stored: a refusal names the field and what to pass
instead. The rules are JSON's and PostgreSQL's together, so that a job enqueued on SQLite can move.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import math
import numbers
import uuid
from collections.abc import Callable
from typing import Any, get_args

import orjson

from forge.errors import InvalidJob
from forge.fastpath import check_json
from forge.job import BAD_IN_NAME, LONGEST_DELAY, MAX_NAME, MAX_PAYLOAD, Line, NewJob, OnConflict

__all__ = [
    "KEY_BYTES",
    "KEY_CHARS",
    "MAX_DEPTH",
    "TAG_CHARS",
    "UNREADABLE",
    "as_seconds",
    "as_text",
    "check_job",
    "check_name",
    "clean_text",
    "decode",
    "encode_payload",
    "type_name",
]

MAX_DEPTH = 64  # brackets within brackets
KEY_CHARS, KEY_BYTES = 1024, 2600  # of a dedupe key; bytes: what fits one entry of PostgreSQL's index
TAG_CHARS = 255
UNREADABLE = "(its message cannot be read)"

_INT64_MIN, _UINT64_MAX = -(2**63), 2**64 - 1

# What to pass instead of common values that JSON does not have. The first that fits is taken: a datetime is a date.
_INSTEAD: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (enum.Enum, "pass its .value"),
    (uuid.UUID, "pass str() of it"),
    ((datetime.date, datetime.time), "pass its .isoformat()"),
    (datetime.timedelta, "pass its .total_seconds()"),
    (decimal.Decimal, "pass str() of it"),
    ((bytes, bytearray, memoryview), "pass text, for example base64.b64encode(it).decode()"),
    ((set, frozenset), "pass sorted() or list() of it"),
    (tuple, "pass list() of it, or its ._asdict()"),
    (str, "pass str() of it"),
    (numbers.Integral, "pass int() of it"),
    (numbers.Real, "pass float() of it"),
    (dict, "pass dict() of it"),
    (list, "pass list() of it"),
)


def encode_payload(value: Any, *, limit: int = MAX_PAYLOAD, name: str = "payload") -> bytes:
    """The value as JSON text of at most `limit` bytes, or `InvalidJob` naming the part of it that cannot be stored.

    Taken: dict with str keys, list, tuple (comes back as a list), str, int of 64 bits, finite float, bool and None. A
    subclass of dict, list, str or int is taken if it equals what comes back.
    """
    if not check_json(value, MAX_DEPTH, limit):
        _Inspection(limit, name).look(value, (), MAX_DEPTH)
    try:
        data = orjson.dumps(value)
    except TypeError as error:  # only if another thread changes it meanwhile
        raise InvalidJob(f"{name} cannot be written as JSON: {error}") from None
    if len(data) > limit:
        raise InvalidJob(f"{name} is {len(data):,} bytes of JSON; {_over(limit)}")
    # orjson's own bytes sit in a block of a kilobyte or more: kept by the thousand, they touch fresh memory each time
    # (4.0 µs instead of 0.5 for a payload of 100 bytes). A copy is as large as its content.
    return b"%b" % data


def decode(data: bytes | str) -> Any:
    """What was stored. Only for what `encode_payload` wrote or a handler's runtime did: it raises on anything else."""
    return orjson.loads(data)


def check_name(value: object, field: str) -> str:
    """The name of a queue or kind as a plain str, or `InvalidJob`."""
    if not isinstance(value, str):
        raise InvalidJob(f"{field} must be a str, not {_type_name(value)}")
    text = value if type(value) is str else str.__str__(value)
    if not text:
        raise InvalidJob(f"{field} is empty; give it a name")
    if len(text) > MAX_NAME:
        raise InvalidJob(f"{field} has {len(text)} characters; the limit is {MAX_NAME}")
    if bad := BAD_IN_NAME.search(text):
        what = "a comma" if bad[0] == "," else f"the character U+{ord(bad[0]):04X}"
        raise InvalidJob(f"{field} {_short(text)} has {what} in it; names hold no comma and no control character")
    return text


def clean_text(text: str) -> str:
    r"""Text that every database can hold: NUL becomes the six characters \u0000, a lone surrogate its escape.

    For messages of failures, which are stored whatever they contain.
    """
    if type(text) is not str:
        text = str.__str__(text)
    if "\0" in text:
        text = text.replace("\0", "\\u0000")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def as_text(value: object, most: int) -> str:
    """Anything as text that every database can hold, of at most so many characters. It never raises, whatever the
    value's own methods do.

    Bytes are read as UTF-8; an exception is `Type: message`; of anything else it is what str() says, or repr()."""
    try:
        kind = type(value)
        if issubclass(kind, str):
            text = str.__str__(value)
        elif issubclass(kind, (bytes, bytearray, memoryview)):
            text = bytes(value).decode(errors="replace")  # type: ignore[call-overload]
        elif issubclass(kind, BaseException):
            said = _spoken(value, str)
            text = f"{type_name(value)}: {said}" if said else type_name(value)
        else:
            text = _spoken(value, str, repr)
        return _cut(clean_text(text), most)
    except BaseException:  # noqa: BLE001 (user code; even SystemExit is only what it has to say)
        return UNREADABLE


def _spoken(value: object, *ways: Callable[[object], str]) -> str:
    for say in ways:
        try:
            return clean_text(say(value))
        except BaseException:  # noqa: BLE001 (the same)
            continue
    return UNREADABLE


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def type_name(value: object) -> str:
    """The name of a value's class, whatever its metaclass says."""
    return clean_text(_name(type(value)))


_name = type.__dict__["__name__"].__get__


def as_seconds(value: object) -> float | None:
    """A number of seconds, 0 or more, no longer than any delay can be; None if it is no such number. It never raises.

    Infinity and NaN are none, nor is True, nor an integer that no float holds."""
    try:
        if not issubclass(type(value), numbers.Real) or type(value) is bool:
            return None
        seconds = float(value)  # type: ignore[arg-type]
        return min(seconds, LONGEST_DELAY) if math.isfinite(seconds) and seconds >= 0 else None
    except BaseException:  # noqa: BLE001 (a number of somebody's own)
        return None


_INT2, _INT4 = 2**15 - 1, 2**31 - 1
# Whole numbers of a job: their least and most, and whether there may be none.
_WHOLE = {
    "priority": (-_INT2 - 1, _INT2, False),
    "max_attempts": (1, _INT2, False),
    "timeout": (1, _INT4, False),
    "unique_for": (0, _INT4, True),
    "keep_result": (0, _INT4, True),
}


def check_job(job: NewJob) -> NewJob:
    """The job itself, if both databases can hold all of it but the payload, which is not looked at; else `InvalidJob`.

    For jobs that come from outside as a whole. What a producer passes is checked with more advice before."""
    if type(job) is not NewJob:
        raise InvalidJob(f"that is no job but {_type_name(job)}; make one with app.job(kind, payload)")
    if not isinstance(job.id, uuid.UUID):
        raise InvalidJob(f"id must be a UUID, not {_type_name(job.id)}")
    check_name(job.kind, "kind")
    check_name(job.queue, "queue")
    for field, (least, most, optional) in _WHOLE.items():
        _check_whole(getattr(job, field), field, least, most, optional)
    if as_seconds(job.delay) != job.delay:
        raise InvalidJob(f"delay must be a number of seconds from 0 to {LONGEST_DELAY:.0f}")
    if job.run_at is not None and _zone_of(job.run_at) is None:
        raise InvalidJob("run_at must be a datetime with a time zone")
    if job.dedupe_key is not None:
        _check_text(job.dedupe_key, "dedupe_key", KEY_CHARS)
        if len(job.dedupe_key.encode()) > KEY_BYTES:
            raise InvalidJob(f"dedupe_key has more than {KEY_BYTES} bytes")
    if job.on_conflict not in get_args(OnConflict):
        raise InvalidJob(f"on_conflict must be one of {', '.join(get_args(OnConflict))}")
    if type(job.tags) is not tuple:
        raise InvalidJob(f"tags must be a tuple of texts, not {_type_name(job.tags)}")
    for tag in job.tags:
        _check_text(tag, "a tag", TAG_CHARS)
    if job.line is not None:
        _check_line(job.line)
    return job


def _zone_of(at: object) -> datetime.timedelta | None:
    return at.utcoffset() if isinstance(at, datetime.datetime) else None


def _check_line(line: Line) -> None:
    if type(line) is not Line:
        raise InvalidJob(f"line must be a Line, not {_type_name(line)}")
    _check_text(line.name, "the name of a line", 4 * KEY_CHARS)
    for field in ("rate_limit", "concurrency_key"):
        if getattr(line, field) is not None:
            _check_text(getattr(line, field), field, KEY_CHARS)
    _check_whole(line.concurrency, "concurrency", 1, _INT2, optional=True)


def _check_whole(value: object, field: str, least: int, most: int, optional: bool) -> None:
    if value is None and optional:
        return
    if type(value) is not int or not least <= value <= most:
        raise InvalidJob(f"{field} must be a whole number from {least} to {most}")


def _check_text(value: object, field: str, most: int) -> None:
    if not isinstance(value, str) or len(value) > most or clean_text(value) != value:
        raise InvalidJob(f"{field} must be text of at most {most} characters that a database can hold")


class _Inspection:
    """The slow walk over a value that the quick one did not accept: finds the first fault and says where it is."""

    def __init__(self, limit: int, name: str) -> None:
        self.limit = limit
        self.name = name
        self.room = limit

    def look(self, value: Any, path: tuple[str | int, ...], depth: int) -> None:
        """Raise `InvalidJob` for the first fault in `value`, which stands at `path`."""
        plain = self._plain(value, path)
        self.room -= len(plain) + 2 if isinstance(plain, str) else 1
        if self.room < 0:
            raise InvalidJob(f"{self.name} is too long as JSON; {_over(self.limit)}")
        if isinstance(plain, str):
            self._look_at_text(plain, path, "")
        elif isinstance(plain, dict | list | tuple):
            if depth < 1:
                raise self._refusal(path, f"is nested deeper than {MAX_DEPTH} levels; pass a flatter value")
            for key, item in plain.items() if isinstance(plain, dict) else enumerate(plain):
                if isinstance(plain, dict):
                    self._look_at_key(key, path)
                self.look(item, (*path, key), depth - 1)
        elif isinstance(plain, int):
            if not _INT64_MIN <= plain <= _UINT64_MAX:
                raise self._refusal(path, "is an integer of more than 64 bits; pass it as a str")
        elif isinstance(plain, float) and plain - plain != 0.0:
            shown = "NaN" if plain != plain else "Infinity" if plain > 0 else "-Infinity"
            raise self._refusal(path, f"is {shown}; JSON has no such number, pass None or a str")

    def _plain(self, value: Any, path: tuple[str | int, ...]) -> Any:
        """The value itself, or for a subclass the plain value that JSON will make of it, if that is the same."""
        if value is None or type(value) in (str, int, float, bool, dict, list, tuple):
            return value
        plain = value
        if isinstance(value, enum.Enum):
            plain = value.value if isinstance(value, str | int) else None
        elif isinstance(value, str):
            plain = str.__str__(value)
        elif isinstance(value, int):
            plain = int.__pos__(value)
        elif isinstance(value, dict):
            plain = dict.copy(value)
        elif isinstance(value, list):
            plain = list.copy(value)
        if type(plain) in (str, int, dict, list) and plain == value:
            return plain
        instead = next((text for kind, text in _INSTEAD if isinstance(value, kind)), None)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            instead = "pass dataclasses.asdict() of it"
        instead = instead or "pass dict, list, str, int, float, bool or None"
        raise self._refusal(path, f"is of type {_type_name(value)}; {instead}")

    def _look_at_key(self, key: object, path: tuple[str | int, ...]) -> None:
        if type(key) is not str:
            raise self._refusal(
                path, f"has the key {_short(key)} of type {_type_name(key)}; keys are plain str, pass str() of it"
            )
        self._look_at_text(key, path, f"has the key {_short(key)}, which ")
        self.room -= len(key) + 3

    def _look_at_text(self, text: str, path: tuple[str | int, ...], where: str) -> None:
        if "\0" in text:
            raise self._refusal(path, where + "has a NUL character (U+0000) in it; databases cannot hold it, remove it")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            code = f"U+{ord(text[error.start]):04X}"
            what = f"{where}has a lone surrogate ({code}) in it; it is no text, decode it properly or remove it"
            raise self._refusal(path, what) from None

    def _refusal(self, path: tuple[str | int, ...], what: str) -> InvalidJob:
        return InvalidJob(f"{self.name}{_show(path)} {what}")


def _show(path: tuple[str | int, ...]) -> str:
    """`.items[3]["unit price"]`; a long one keeps both ends."""
    parts = []
    for step in path:
        plain = isinstance(step, str) and step.isidentifier() and len(step) <= 40
        parts.append(f".{step}" if plain else f"[{_short(step)}]")
    if len(parts) > 12:
        parts[6:-6] = ["…"]
    return "".join(parts)


def _short(value: object) -> str:
    """For a message of one line: ASCII only, so that it can be printed anywhere."""
    shown = ascii(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}…"


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _over(limit: int) -> str:
    return f"the limit is {limit:,} bytes: store the data elsewhere and pass where it is"
