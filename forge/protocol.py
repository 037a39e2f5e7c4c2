"""The line protocol between a master and its workers: one JSON object per line, over a socket pair.

To a worker: a job (`id`, `kind`, `payload`, `attempt` …), an order (`do`), or the answer to a question (`answer`).

- `{"do": "drain"}`: give back what has not started, finish what has, and leave.
- `{"do": "recall"}`: give back what has not started; more may come.
- `{"do": "cancel", "id": …, "why": …, "ends": …}`: tell the handler to stop; unless it is done by then, its job ends
  `cancelled`, `failed` (past its timeout) or `released` (the pod stops). `{"do": "interrupt", "id": …}`: raise in it.
- `{"do": "stopping"}`: the pod stops; handlers may look whether it does.
- `{"do": "stacks"}`: write the stacks of all threads to the log.
- `{"do": "ping"}`, to a zygote alone: it answers `{"pong": true}`.
- `{"answer": n, …}`: to the question with that number; `error` if it could not be answered.

Back: `{"hello": pid, "capacity": n}` once: so many jobs run at the same time. Then one reply per job, in any order:
`id`, `status` and what belongs to it (`written`: the job's end is in the database already; `delay`: seconds until a
failed job is tried again, with `by_queue` unless its queue has a curve; `spare_result`: if the database refuses the
result, the job is done without it). And in between:

- `{"say": "progress", "id": …, "percent": …, "message": …}`
- `{"say": "delay", "id": …, "seconds": …}`: what the task's own backoff says of a job that is past its timeout, for the
  case that the worker has to be killed for it.
- `{"say": "leaving", "why": …}`: send no more; what has not started comes back. It goes when it is told to drain.
- `{"say": "failed", "why": …}`: a function of `on_worker_start` has, and it ends instead of saying hello; or, as it
  leaves, one of `on_worker_stop`.
- `{"ask": n, "for": "enqueue", "id": …, "jobs": […]}`: answered with `receipts`, one `[stored, id]` each.
- `{"ask": n, "for": "acquire", "id": …, "scope": …, "tokens": …}`: answered with `granted`, or `retry_after` seconds.
- `{"ask": n, "for": "drain", "scope": …}`: the budget's tokens are gone; answered with nothing.

A payload is passed on as the text it was stored as.
"""

from __future__ import annotations

import socket
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from forge import fastpath
from forge.codec import MAX_DEPTH, as_seconds, as_text, check_job, clean_text
from forge.config import LARGEST_PAYLOAD
from forge.errors import InvalidJob
from forge.job import (
    Cancelled,
    Claim,
    Dead,
    Done,
    Ending,
    Failed,
    Line,
    NewJob,
    Outcome,
    Released,
    Snooze,
    Throttled,
    Written,
)

__all__ = [
    "MAX_LINE",
    "MOST_UNANSWERED",
    "FrameSplitter",
    "ProtocolError",
    "channel_of",
    "channel_pair",
    "ending_of",
    "job_line",
    "line_of",
    "new_job_of",
    "order_line",
    "record_of",
    "reply_line",
    "seconds_taken",
    "within_limit",
]

# Bytes of a line: the largest payload that can be configured, and what is around it. That is a few names and numbers in
# a job, and in a job to be enqueued its key and tags too; a result has no more, and a traceback much less.
MAX_LINE = LARGEST_PAYLOAD + 1024 * 1024
# Replies that a worker keeps to itself at most. So of the jobs in a dead worker's hands no more than these, and the one
# after them, can have been started.
MOST_UNANSWERED = 500

_STATUS: dict[type[Outcome], str] = {
    Done: "ok",
    Written: "written",
    Failed: "error",
    Dead: "dead",
    Cancelled: "cancelled",
    Throttled: "throttled",
    Snooze: "snoozed",
    Released: "released",
}


class ProtocolError(ValueError):
    """What a peer says is no message, or none that it may send: in which way. Whoever reads it ends the peer."""


def within_limit(rest: bytes) -> bytes:
    """The beginning of a line whose end has not come. Past the limit the peer has lost its mind."""
    if len(rest) > MAX_LINE:
        raise ProtocolError(f"a line of more than {MAX_LINE:,} bytes")
    return rest


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a channel. They block, whatever somebody has said by `socket.setdefaulttimeout`."""
    ours, theirs = socket.socketpair()
    ours.setblocking(True)
    theirs.setblocking(True)
    return ours, theirs


def channel_of(fd: int) -> socket.socket:
    """The end of a channel that this process was given. It blocks, as above."""
    channel = socket.socket(fileno=fd)
    channel.setblocking(True)
    return channel


class FrameSplitter:
    """Bytes as they come, cut into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = within_limit(rest)
        return lines


def job_line(claim: Claim) -> bytes:
    """A claimed job for a worker."""
    return fastpath.job_lines([claim], {}, 0.0)


def line_of(**message: Any) -> bytes:
    """Any message as its line."""
    return orjson.dumps(message) + b"\n"


def order_line(order: str, **details: Any) -> bytes:
    """An order to a worker; see above."""
    return line_of(do=order, **details)


def record_of(job: NewJob) -> dict[str, Any]:
    """A job to be enqueued, as a message carries it: what it does not say is as in `NewJob`."""
    record: dict[str, Any] = {
        name: value
        for name, value in zip(NewJob._fields, job, strict=True)
        if name not in NewJob._field_defaults or value != NewJob._field_defaults[name]
    }
    record["id"], record["payload"] = job.id.hex, orjson.Fragment(job.payload)
    if job.line is not None:
        record["line"] = list(job.line)
    return record  # orjson writes tags as a list and a time as RFC 3339


def new_job_of(record: dict[str, Any]) -> NewJob:
    """The job in a message, if every field of it can be stored. `InvalidJob` if not, which may be a handler's mistake;
    any other ValueError is a worker's that broke the protocol."""
    try:
        payload = record["payload"]
        if not fastpath.check_json(payload, MAX_DEPTH, MAX_LINE):
            raise InvalidJob("a payload that cannot be stored")
        found = {**record, "id": _id_of(record), "payload": orjson.dumps(payload)}
        if "run_at" in found:
            found["run_at"] = datetime.fromisoformat(found["run_at"])
        if "tags" in found:
            found["tags"] = tuple(found["tags"])
        if "line" in found:
            found["line"] = Line(*found["line"])
        return check_job(NewJob(**found))
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"a job that is none: {as_text(e, 200)}") from None


def _id_of(record: dict[str, Any]) -> UUID:
    try:
        return UUID(record["id"])
    except ValueError:
        raise InvalidJob(f"id must be a UUID, not {as_text(record['id'], 100)}") from None


def reply_line(ending: Ending, seconds: float) -> bytes:
    """How a job went, and how long its handler took."""
    outcome = ending.outcome
    if type(outcome) is Done and ending.result is None and not ending.children:
        return fastpath.done_line(ending.claim.id, seconds)  # the usual
    reply: dict[str, Any] = {"id": ending.claim.id.hex, "status": _STATUS[type(outcome)], "took": seconds}
    match outcome:
        case Done():
            if ending.result is not None:
                reply["result"] = orjson.Fragment(ending.result)
                if outcome.spare_result:
                    reply["spare_result"] = True
        case Throttled():
            reply["retry_after"], reply["job_only"] = outcome.retry_after, outcome.job_only
        case Snooze():
            reply["seconds"] = outcome.seconds
        case Failed() | Dead() | Cancelled() | Released():
            reply["message"] = outcome.message
    if isinstance(outcome, Released) and outcome.give_up_after is not None:
        reply["give_up_after"] = outcome.give_up_after
    if ending.delay:
        reply["delay"] = abs(ending.delay)
    if ending.delay < 0:
        reply["by_queue"] = True
    if ending.children:
        reply["children"] = [record_of(job) for job in ending.children]
    if ending.traceback:
        reply["traceback"] = ending.traceback
    if outcome.error_type is not None:
        reply["error_type"] = outcome.error_type
    return orjson.dumps(reply) + b"\n"


def ending_of(reply: dict[str, Any], claim: Claim) -> Ending:
    """What a reply says of the claim it belongs to. Nothing in it is believed: a ValueError is a worker that broke the
    protocol, and anything else that comes of it both storages take."""
    message = _text(reply, "message")
    outcome: Outcome
    match reply.get("status"):
        case "ok":
            done = Done()
            if _flag(reply, "spare_result"):
                done.spare_result = True
            return Ending(claim, done, result=_result(reply), children=_children(reply))
        case "written":
            outcome = Written()
        case "error":
            outcome = Failed(message or "worker reported error")
        case "dead":
            outcome = Dead(message or "dead")
        case "cancelled":
            outcome = Cancelled(message or "cancelled by user")
        case "throttled":
            outcome = Throttled(_seconds(reply, "retry_after"), _flag(reply, "job_only"))
        case "snoozed":
            if (seconds := _seconds(reply, "seconds")) is None:
                raise ValueError("snoozed without seconds")
            outcome = Snooze(seconds)
        case "released":
            outcome = Released(message, give_up_after=_seconds(reply, "give_up_after"))
        case other:
            raise ValueError(f"no such status: {as_text(other, 100)}")
    if (error_type := _text(reply, "error_type")) is not None:
        outcome.error_type = error_type
    delay = _seconds(reply, "delay") or 0.0
    return Ending(claim, outcome, -delay if _flag(reply, "by_queue") else delay, _text(reply, "traceback"))


def seconds_taken(reply: dict[str, Any]) -> float:
    """How long the handler took, as the worker says; a ValueError if that is no number of seconds."""
    return _seconds(reply, "took") or 0.0


def _seconds(reply: dict[str, Any], field: str) -> float | None:
    value = reply.get(field)
    if value is not None and as_seconds(value) is None:
        raise ValueError(f"{field} is no number of seconds: {as_text(value, 100)}")
    return as_seconds(value)


def _text(reply: dict[str, Any], field: str) -> str | None:
    value = reply.get(field)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{field} is no text: {as_text(value, 100)}")
    return value and clean_text(value)


def _flag(reply: dict[str, Any], field: str) -> bool:
    value = reply.get(field, False)
    if type(value) is not bool:
        raise ValueError(f"{field} is neither true nor false: {as_text(value, 100)}")
    return value


def _result(reply: dict[str, Any]) -> bytes | None:
    if "result" not in reply:
        return None
    if not fastpath.check_json(reply["result"], MAX_DEPTH, MAX_LINE):
        raise ValueError("a result that cannot be stored")
    return orjson.dumps(reply["result"])


def _children(reply: dict[str, Any]) -> tuple[NewJob, ...]:
    records = reply.get("children", ())
    if type(records) not in (list, tuple):
        raise ValueError("children that are no list")
    return tuple([new_job_of(record) for record in records])
