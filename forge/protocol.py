"""The line protocol between a master and its workers: one JSON object per line, over a socket pair.

To a worker: a job (`id`, `kind`, `payload`, `attempt` …), or an order (`{"do": "drain"}`).
Back: `{"hello": pid}` once, then one reply per job, in any order: `id`, `status` and what belongs to it. A payload is
passed on as the text it was stored as.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson

from forge.job import Cancelled, Claim, Dead, Done, Ending, Failed, Outcome, Released, Snooze, Throttled

__all__ = ["MAX_LINE", "Lines", "claim_of", "ending_of", "job_line", "order_line", "reply_line"]

MAX_LINE = 16 * 1024 * 1024  # bytes; a payload is 1 MiB at most unless configured, a traceback much less

_STATUS: dict[type[Outcome], str] = {
    Done: "ok",
    Failed: "error",
    Dead: "dead",
    Cancelled: "cancelled",
    Throttled: "throttled",
    Snooze: "snoozed",
    Released: "released",
}


class Lines:
    """Bytes as they come, cut into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now. A line past the limit is a ValueError: the peer has lost its mind."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            raise ValueError(f"a line of more than {MAX_LINE:,} bytes")
        return lines


def job_line(claim: Claim) -> bytes:
    """A claimed job for a worker. Put together by hand: the payload is JSON already."""
    return b'{"id":"%b","kind":%b,"queue":%b,"attempt":%d,"max_attempts":%d,"timeout":%d,"keep":%d,"payload":%b}\n' % (
        claim.id.hex.encode(),
        orjson.dumps(claim.kind),
        orjson.dumps(claim.queue),
        claim.attempt,
        claim.max_attempts,
        claim.timeout,
        claim.keep_result,
        claim.payload,
    )


def claim_of(message: dict[str, Any]) -> Claim:
    """The job in a worker's hands: a claim without the token, which stays with the master."""
    return Claim(
        priority=0,
        run_at=None,
        id=UUID(message["id"]),
        token=0,
        queue=message["queue"],
        kind=message["kind"],
        payload=orjson.dumps(message["payload"]),
        attempt=message["attempt"],
        max_attempts=message["max_attempts"],
        timeout=message["timeout"],
        keep_result=bool(message["keep"]),
        keyed=False,
    )


def order_line(order: str) -> bytes:
    """`drain`: give back what has not started, finish what has, and leave."""
    return orjson.dumps({"do": order}) + b"\n"


def reply_line(ending: Ending, seconds: float) -> bytes:
    """How a job went, and how long its handler took."""
    outcome = ending.outcome
    reply: dict[str, Any] = {"id": ending.claim.id.hex, "status": _STATUS[type(outcome)], "took": seconds}
    match outcome:
        case Done():
            if ending.result is not None:
                reply["result"] = orjson.Fragment(ending.result)
        case Throttled():
            reply["retry_after"], reply["job_only"] = outcome.retry_after, outcome.job_only
        case Snooze():
            reply["seconds"] = outcome.seconds
        case Failed() | Dead() | Cancelled() | Released():
            reply["message"] = outcome.message
    if ending.delay:
        reply["delay"] = ending.delay
    if ending.traceback:
        reply["traceback"] = ending.traceback
    return orjson.dumps(reply) + b"\n"


def ending_of(reply: dict[str, Any], claim: Claim) -> Ending:
    """What a reply says of the claim it belongs to. A KeyError or ValueError is a worker that broke the protocol."""
    message = reply.get("message")
    outcome: Outcome
    match reply["status"]:
        case "ok":
            result = orjson.dumps(reply["result"]) if "result" in reply else None
            return Ending(claim, Done(), result=result)
        case "error":
            outcome = Failed(message or "worker reported error")
        case "dead":
            outcome = Dead(message or "dead")
        case "cancelled":
            outcome = Cancelled(message or "cancelled by user")
        case "throttled":
            outcome = Throttled(reply.get("retry_after"), bool(reply.get("job_only")))
        case "snoozed":
            outcome = Snooze(float(reply["seconds"]))
        case "released":
            outcome = Released(message)
        case other:
            raise ValueError(f"no such status: {other!r}")
    return Ending(claim, outcome, float(reply.get("delay", 0.0)), reply.get("traceback"))
