"""What a master and a worker say to each other, one line of JSON after another."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from uuid import UUID

import orjson

from forge._reference.histogram import timed
from forge.job import Claim, Done, Ending

# Put together by hand: the payload is JSON already.
_JOB = (
    b'{"id":"%b","token":%d,"kind":%b,"queue":%b,"attempt":%d,"max_attempts":%d,"timeout":%d,"keep":%d,"keyed":%d,'
    b'"payload":%b}\n'
)


def job_lines(claims: Sequence[Claim], in_hand: dict[str, tuple[Claim, float]], now: float) -> bytes:
    """The lines that give these jobs to a worker. Each is in its hands now: by the hex of its id, and since when."""
    lines = []
    for claim in claims:
        hex_ = claim.id.hex
        in_hand[hex_] = claim, now
        lines.append(
            _JOB
            % (
                hex_.encode(),
                claim.token,
                orjson.dumps(claim.kind),
                orjson.dumps(claim.queue),
                claim.attempt,
                claim.max_attempts,
                claim.timeout,
                claim.keep_result,
                claim.keyed,
                claim.payload,
            )
        )
    return b"".join(lines)


def jobs_in(data: bytes) -> tuple[list[Claim | bytes], bytes]:
    """What a worker has received, cut into lines: jobs as claims, with payloads as the text that they are, other lines
    as they came; and what comes after the last line. A job that `job_lines` did not write is a ValueError or KeyError.
    """
    *lines, rest = data.split(b"\n")
    return [_job_in(line) if line.startswith(b'{"id":') else line for line in lines], rest


def _job_in(line: bytes) -> Claim:
    # The payload is last, and before it no text can hold these characters unescaped. To read and write it once more
    # would be 1 µs.
    head, _, payload = line.partition(b',"payload":')
    message = orjson.loads(head + b"}")
    return Claim(
        0,
        None,
        UUID(int=int(message["id"], 16)),
        message["token"],
        message["queue"],
        message["kind"],
        payload[:-1],
        message["attempt"],
        message["max_attempts"],
        message["timeout"],
        bool(message["keep"]),
        bool(message["keyed"]),
    )


def done_line(id_: UUID, seconds: float) -> bytes:
    """The reply to a job that is done, without a result: `answers` reads it."""
    return b'{"id":"%b","status":"ok","took":%.6f}\n' % (id_.hex.encode(), seconds)


_DONE_LINE = re.compile(rb'\{"id":"([0-9a-f]{32})","status":"ok","took":([0-9]{1,6}\.[0-9]{6})\}')


def answers(
    data: bytes,
    in_hand: dict[str, tuple[Claim, float]],
    done: Done,
    times: array[int] | None = None,
    ahead: float | None = None,
) -> tuple[list[Ending], list[bytes], bytes, float, float]:
    """What a master has received from a worker. The jobs in hand that `done_line` speaks of are not in hand any more:
    their endings, with `done` as the outcome. Then every other line, what comes after the last one, and the seconds
    that those jobs took together and the longest of them. With `times` each of them is counted there as by `timed`."""
    *lines, rest = data.split(b"\n")
    endings, others, total, most = [], [], 0.0, 0.0
    for line in lines:
        plain = _DONE_LINE.fullmatch(line)
        held = in_hand.pop(plain[1].decode(), None) if plain else None
        if plain is None or held is None:
            others.append(line)
            continue
        endings.append(Ending(held[0], done))
        seconds = float(plain[2])
        if times is not None:
            timed(times, seconds, held[0].run_at, held[1], ahead)
        total += seconds
        most = max(most, seconds)
    return endings, others, rest, total, most
