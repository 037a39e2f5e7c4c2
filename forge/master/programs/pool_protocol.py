"""What is said to a pool's child and back: one line each.

To it: `{"id", "kind", "queue", "attempt", "max_attempts", "deadline_ms", "payload"}`, of which it needs to understand
no more than `id` and `payload`. Back: `{"id", "status"}`; with the status `ok` a `result`, with `error` or `dead` a
`message`, with `throttled` the `retry_after_secs`. An `id` that is left out is trusted.
"""

from __future__ import annotations

import time
from typing import Any

import orjson

from forge.job import Claim, Dead, Done, Failed, Outcome, Throttled
from forge.master import message_checks
from forge.protocol import ProtocolError

__all__ = ["OutOfStep", "outcome_of", "request_line", "shown"]

MAX_MESSAGE = 8_000  # characters
DEFAULT_THROTTLE, LONGEST_THROTTLE = 60.0, 86_400.0  # seconds


class OutOfStep(ProtocolError):
    """A child broke the protocol; the message says how."""


def request_line(claim: Claim, seconds: float) -> bytes:
    """A job for a child. The payload is JSON already; a line end can only be between its parts, as white space."""
    request = {
        "id": str(claim.id),
        "kind": claim.kind,
        "queue": claim.queue,
        "attempt": claim.attempt,
        "max_attempts": claim.max_attempts,
        "deadline_ms": int((time.time() + seconds) * 1000),  # of the clock that both can read
        "payload": orjson.Fragment(claim.payload.replace(b"\n", b" ")),
    }
    return orjson.dumps(request) + b"\n"


def outcome_of(line: bytes, id: str) -> Outcome:
    """What a child's line says of the job with this id; `OutOfStep` if it says nothing that can be trusted."""
    try:
        reply = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise OutOfStep(f"its answer is not JSON: {shown(line)}") from None
    if not isinstance(reply, dict):
        raise OutOfStep(f"its answer is not a JSON object: {shown(line)}")
    if (echo := reply.get("id")) is not None and echo != id:
        raise OutOfStep(f"the id of its answer does not match (desync): got {_named(echo)}, want {id}")
    message = reply.get("message")
    text = _cut(message if isinstance(message, str) else _as_json(message), MAX_MESSAGE) if message else None
    match reply.get("status"):
        case "ok":
            return Done(reply.get("result"))
        case "error":
            return Failed(text or "worker reported error")
        case "dead":
            return Dead(text or "worker reported the job as dead")
        case "throttled":
            return Throttled(_pause(reply))
    raise OutOfStep(f"its answer has no status that is known: {shown(line)}")


def _pause(reply: dict[str, Any]) -> float:
    value = reply.get("retry_after_secs", reply.get("retry_after"))
    if value is None:
        return DEFAULT_THROTTLE
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise OutOfStep(f"its answer has a retry_after_secs that is no number of seconds: {_named(value)}")
    return float(min(value, LONGEST_THROTTLE))


def shown(line: bytes) -> str:
    """What a child wrote, short enough for a message."""
    return _cut(repr(line[:400].decode(errors="replace")))


def _named(value: object) -> str:
    return _cut(value) if isinstance(value, str) else message_checks.shown(value)


def _as_json(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # it reads deeper than it writes
        raise OutOfStep(f"its answer has a message that is nested too deeply: {message_checks.shown(value)}") from None


def _cut(text: str, most: int = 200) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
