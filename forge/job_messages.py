"""Jobs and endings as messages hold them, and back: what `forge.protocol` calls a job to be stored, and a reply."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from forge import fastpath
from forge.codec import MAX_DEPTH, as_seconds, as_text, check_job, clean_text
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
from forge.protocol import MAX_LINE, ReplyMessage, ReplyStatus, frame_of

__all__ = ["ending_of", "new_job_of", "record_of", "reply_frame", "seconds_taken"]

_STATUS: dict[type[Outcome], ReplyStatus] = {
    Done: "ok",
    Written: "written",
    Failed: "error",
    Dead: "dead",
    Cancelled: "cancelled",
    Throttled: "throttled",
    Snooze: "snoozed",
    Released: "released",
}


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


def reply_frame(ending: Ending, seconds: float) -> bytes:
    """How a job went, and how long its handler took."""
    outcome = ending.outcome
    if type(outcome) is Done and ending.result is None and not ending.children:
        return fastpath.done_line(ending.claim.id, seconds)  # the usual
    reply: ReplyMessage = {"id": ending.claim.id.hex, "status": _STATUS[type(outcome)], "took": seconds}
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
    return frame_of(reply)


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
