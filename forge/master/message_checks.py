"""What children say, looked at before anybody acts on it. Nothing is believed: a line is a JSON object with the fields
that its kind has, of their types and within their bounds, or it is a `ProtocolError` and the child is killed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import orjson

from forge.codec import check_name, clean_text
from forge.errors import ExitCode
from forge.job_messages import new_job_of
from forge.protocol import MAX_LINE, ProtocolError
from forge.retry import Curve
from forge.storage.contract.schedules import CatchUp, NewSchedule, Source

__all__ = ["listed", "message_of", "number", "schedule", "shown", "text", "whole", "zygote_message"]

MAX_PID = 2**22  # of Linux; a process number is never larger, on whatever system
MAX_NUMBER = 2**53  # of a question, a start: what every JSON has exactly
SHOWN = 200  # characters of what was said that a message has
TEXT = 65_536  # characters of one text


def message_of(line: bytes) -> dict[str, Any]:
    """The JSON object in a line; `ProtocolError` if there is none."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise ProtocolError(f"no JSON: {shown(line)}") from None
    if type(found) is not dict:
        raise ProtocolError(f"no JSON object: {shown(line)}")
    return found


def shown(said: object) -> str:
    """What a child wrote, for a message. Whatever it is, this is short and does not raise."""
    if isinstance(said, bytes):
        said = said[: 2 * SHOWN].decode(errors="replace")
    try:
        text = repr(said)
    except RecursionError:  # of a JSON that is nested for hundreds of levels
        text = f"a {type(said).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


# -- fields --------------------------------------------------------------------------------------------------------


def whole(message: dict[str, Any], name: str, low: int, high: int) -> int:
    """An integer field of a message; `ProtocolError` if it is none, or not within these bounds."""
    value = message.get(name)
    if type(value) is not int or not low <= value <= high:
        raise ProtocolError(f"{name} is {shown(value)}")
    return value


def number(message: dict[str, Any], name: str, low: float, high: float) -> float:
    """A numeric field of a message; `ProtocolError` if it is none, or not within these bounds."""
    value: Any = message.get(name)
    if type(value) not in (int, float) or not low <= value <= high:  # no JSON has an infinity, nor NaN
        raise ProtocolError(f"{name} is {shown(value)}")
    return float(value)


def text(message: dict[str, Any], name: str, most: int = TEXT) -> str:
    """A text field of a message, cut at `most` characters and such that databases and logs can hold it; `ProtocolError`
    if it is none."""
    value = message.get(name)
    if type(value) is not str:
        raise ProtocolError(f"{name} is {shown(value)}")
    return clean_text(value[:most])


def listed(message: dict[str, Any], name: str, kind: type) -> list[Any]:
    """A list field of a message; `ProtocolError` if it is none, or if one of its items is not of this type."""
    value = message.get(name)
    if type(value) is not list or not all(type(item) is kind for item in value):
        raise ProtocolError(f"{name} is {shown(value)}")
    return value


def schedule(record: dict[str, Any]) -> NewSchedule:
    """The schedule in a record of a zygote, from the user's modules or settings; `ProtocolError` if it cannot be
    one."""
    names = NewSchedule.__dataclass_fields__
    _only(record, tuple(names), set(names))
    own = ("name", "expression", "timezone", "project", "catch_up", "source")
    texts = {name: text(record, name, 1000) for name in own}
    # What every job has is checked as if this were one; what only some have may be None.
    job = {name: value for name, value in record.items() if name not in own and name != "jitter" and value is not None}
    try:
        payload = orjson.loads(text(record, "payload", MAX_LINE))
        found = new_job_of({**job, "id": "0" * 32, "payload": payload})
        check_name(texts["name"], "schedule")
    except ValueError as e:
        raise ProtocolError(f"a schedule cannot be: {e}") from None
    if texts["catch_up"] not in get_args(CatchUp) or texts["source"] not in get_args(Source):
        raise ProtocolError(f"a schedule is {shown(texts)}")
    return NewSchedule.of_message(
        {**record, **texts, "jitter": number(record, "jitter", 0, 86_400), "tags": list(found.tags)}
    )


def _only(record: dict[str, Any], known: tuple[str, ...], needed: set[str]) -> None:
    if not needed <= set(record) <= set(known):
        raise ProtocolError(f"a record has the fields {shown(sorted(record))}")


# -- what a zygote says --------------------------------------------------------------------------------------------


def zygote_message(line: bytes) -> dict[str, Any]:
    """The message in a line of a zygote, its fields checked; `ProtocolError` if a zygote may not say it."""
    message = message_of(line)
    kinds = [name for name in _ZYGOTE if name in message]
    if len(kinds) != 1:
        raise ProtocolError(f"no message that there is: {shown(line)}")
    _ZYGOTE[kinds[0]](message)
    return message


def _forked(message: dict[str, Any]) -> None:
    text(message, "forked")
    whole(message, "serial", 0, MAX_NUMBER)
    _pid_or_error(message)


def _started(message: dict[str, Any]) -> None:
    whole(message, "started", 1, MAX_NUMBER)
    _pid_or_error(message)


def _pid_or_error(message: dict[str, Any]) -> None:
    if whole(message, "pid", 0, MAX_PID) == 1:
        raise ProtocolError("pid is 1")
    if message["pid"] == 0:
        message["error"] = text(message, "error", SHOWN)


def _exited(message: dict[str, Any]) -> None:
    whole(message, "exited", 2, MAX_PID)
    whole(message, "status", -128, 255)


def _failed(message: dict[str, Any]) -> None:
    text(message, "failed")
    if whole(message, "code", 1, 255) not in [int(code) for code in ExitCode]:
        raise ProtocolError(f"code is {message['code']}")


def _ready(message: dict[str, Any]) -> None:
    kinds = message.get("kinds")
    if message["ready"] is not True or type(kinds) is not dict:
        raise ProtocolError(f"kinds are {shown(kinds)}")
    for about in kinds.values():
        if type(about) is not dict or about.get("curve") not in (None, *get_args(Curve)):
            raise ProtocolError(f"a kind is {shown(about)}")
        for name in ("base", "cap") if "curve" in about else ():
            number(about, name, 0, 86_400)
    for name in ("unsafe", "remarks"):
        message[name] = [clean_text(each) for each in listed(message, name, str)]
    message["schedules"] = tuple(schedule(each) for each in listed(message, "schedules", dict))


def _pong(message: dict[str, Any]) -> None:
    if message["pong"] is not True:
        raise ProtocolError(f"pong is {shown(message['pong'])}")


_ZYGOTE: dict[str, Callable[[dict[str, Any]], None]] = {
    "forked": _forked,
    "started": _started,
    "exited": _exited,
    "failed": _failed,
    "ready": _ready,
    "pong": _pong,
}
