"""The reference of the native path: what each function means, in plain Python.

`_fastpath.pyx` has the same functions by the same names in the same order, and hands any input that it is not made for
to the function here. So an unusual value costs time, and the answer or the error is always this module's.
Pure: no I/O, no clock, no randomness, no logging; only `burst` calls what it is given, handlers and a clock.
Callers import `forge.fastpath`, which chooses.
"""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from contextvars import copy_context
from typing import Any
from uuid import UUID, SafeUUID

import orjson

from forge.errors import InvalidJob
from forge.job import Claim, Done, Ending, NewJob

__all__ = [
    "answers",
    "burst",
    "check_json",
    "claims",
    "copy_rows",
    "decorrelated",
    "delay",
    "done_line",
    "exponential",
    "faktory",
    "int8_array",
    "job_lines",
    "jobs_in",
    "plain_endings",
    "resp_bulk",
    "resp_commands",
    "resp_error",
    "resp_int",
    "resp_simple",
    "resp_values",
    "survey",
    "task_jobs",
    "text_array",
    "timed",
    "uuid_array",
    "uuids",
]

# 2^30 or 3^30 times the shortest base is past any cap, and more would overflow a float in the end.
MAX_EXPONENT = 30
# Faktory's curve has no cap: at 100 it is three years, and not far past it lies the last date a database can hold.
MAX_FAKTORY_COUNT = 100

UUID_OID, INT8_OID, TEXT_OID = 2950, 20, 25
NULL = b"\xff\xff\xff\xff"  # a length of -1

# The plain endings of a batch: ids, tokens, queues, and how many are of each pod (the upper half of a token).
Plain = tuple[bytes, bytes, set[str], dict[int, int]]

_INT64_MIN, _UINT64_MAX = -(2**63), 2**64 - 1

# Where the buckets of a histogram end, in seconds: four for each doubling, from 10 µs to 5.6 days. The first has all
# that is not above the first bound, the last all that is above the last.
BOUNDS = [1e-5 * 2.0 ** (i / 4) for i in range(143)]
BUCKETS = len(BOUNDS) + 1


def check_json(value: Any, max_depth: int, limit: int) -> bool:
    """Whether `value` is made of exact JSON types only, sound in every part, and may fit in `limit` bytes.

    False means "look closer" (`forge.codec` does, and finds the words): a subclass may yet be fine. Size is judged from
    below, so True does not promise that it fits; but a value that refers to itself many times over ends here early.
    """
    return _room_left(value, max_depth, limit) >= 0


def _room_left(value: Any, depth: int, room: int) -> int:
    """How much of `room` is left after `value` at its shortest; negative when it does not fit or is not sound."""
    kind = type(value)
    if kind is str:
        return room - len(value) - 2 if _sound_text(value) else -1
    if kind is int:
        return room - 1 if _INT64_MIN <= value <= _UINT64_MAX else -1
    if kind is float:
        return room - 1 if value - value == 0.0 else -1  # infinity and NaN are not 0 away from themselves
    if value is None or kind is bool:
        return room - 4
    if kind is dict and depth > 0:
        room -= 2
        for key, item in value.items():
            if type(key) is not str or not _sound_text(key):
                return -1
            room = _room_left(item, depth - 1, room - len(key) - 3)
            if room < 0:
                return -1
        return room
    if (kind is list or kind is tuple) and depth > 0:
        room -= 2
        for item in value:
            room = _room_left(item, depth - 1, room)
            if room < 0:
                return -1
        return room
    return -1


def _sound_text(text: str) -> bool:
    """No NUL and no lone surrogate: neither can be stored."""
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def uuids(tick: int, rand: bytes) -> list[UUID]:
    """One UUIDv7 for every 8 bytes of `rand`, from `tick` on in steps of one.

    A tick is milliseconds since 1970 << 12 | counter (RFC 9562, 6.2, method 1): a full counter carries into the
    milliseconds by itself. The upper 2 of each 64 random bits give way to the variant.
    """
    if len(rand) % 8:
        raise ValueError("uuids needs 8 random bytes for each id")
    new, put, unknown = object.__new__, object.__setattr__, SafeUUID.unknown
    made = []
    # UUID() checks its arguments for 0.9 µs; its slots are set directly, as its own __init__ does in the end.
    for low in struct.unpack(f">{len(rand) // 8}Q", rand):
        made.append(found := new(UUID))
        high = (tick >> 12 & 0xFFFF_FFFF_FFFF) << 16 | 0x7000 | tick & 0xFFF
        put(found, "int", high << 64 | 1 << 63 | low & 0x3FFF_FFFF_FFFF_FFFF)
        put(found, "is_safe", unknown)
        tick += 1
    return made


def claims(rows: list[tuple[Any, ...]], token: int, queue: str) -> list[Claim]:
    """Rows of `claim` as claims: ids from 16 bytes, payloads from text or its bytes, nulls as booleans."""
    new, put, unknown = object.__new__, object.__setattr__, SafeUUID.unknown
    number, make = int.from_bytes, tuple.__new__
    found = []
    for priority, run_at, data, kind, payload, attempt, most, timeout, keep, key in rows:
        id_ = new(UUID)
        put(id_, "int", number(data, "big"))
        put(id_, "is_safe", unknown)
        if type(payload) is str:
            payload = payload.encode()  # noqa: PLW2901 (the same thing)
        values = (priority, run_at, id_, token, queue, kind, payload, attempt, most, timeout, keep is not None,
                  key is not None)  # fmt: skip
        found.append(make(Claim, values))  # Claim() costs 0.3 µs more
    return found


def exponential(n: int, base: float, cap: float) -> float:
    """min(base·2^n, cap)"""
    return min(base * 2.0 ** min(max(n, 0), MAX_EXPONENT), cap)


def decorrelated(n: int, base: float, cap: float, r: float) -> float:
    """Uniform between base and min(cap, base·3^n), as `r` in [0, 1) has it; a cap under the base wins."""
    high = min(base * 3.0 ** min(max(n, 0), MAX_EXPONENT), cap)
    low = min(base, high)
    return low + (high - low) * r


def faktory(n: int, r: float) -> float:
    """count⁴ + 15 + rand(0..29)·(count+1), where count is 0 after the first attempt."""
    count = min(max(n - 1, 0), MAX_FAKTORY_COUNT)
    return float(count**4 + 15 + int(r * 30) * (count + 1))


def delay(curve: str, n: int, base: float, cap: float, r: float) -> float:
    """Seconds to wait by the curve of this name after `n` attempts; `r` is uniform in [0, 1)."""
    if curve == "decorrelated":
        return decorrelated(n, base, cap, r)
    if curve == "exponential":
        return exponential(n, base, cap)
    if curve == "faktory":
        return faktory(n, r)
    if curve == "fixed":
        return base
    if curve == "none":
        return 0.0
    raise ValueError(f"no curve {curve!r}")


def copy_rows(jobs: Sequence[NewJob], run_ats: Sequence[int] | None = None) -> bytes:
    """Rows of PostgreSQL's binary COPY, without its header and trailer.

    Columns: id, queue, kind, payload, priority, max_attempts, timeout, keep_result, tags; and run_at when `run_ats`
    gives one for each job, in microseconds since 2000-01-01 UTC. Other fields of a job are not looked at.
    """
    if run_ats is not None and len(run_ats) != len(jobs):
        raise ValueError("copy_rows needs as many run_ats as jobs")
    head = struct.pack(">hi", 9 if run_ats is None else 10, 16)
    names: dict[tuple[str, str], bytes] = {}  # most jobs of a batch share these
    tails: dict[tuple[Any, ...], bytes] = {}
    parts: list[bytes] = []
    for i, job in enumerate(jobs):
        name = job.queue, job.kind
        tail = job.priority, job.max_attempts, job.timeout, job.keep_result, job.tags
        if (packed_name := names.get(name)) is None:
            packed_name = names[name] = _field(name[0].encode()) + _field(name[1].encode())
        if (packed_tail := tails.get(tail)) is None:
            packed_tail = tails[tail] = _tail(*tail)
        parts += head, job.id.int.to_bytes(16, "big"), packed_name, _field(job.payload), packed_tail
        if run_ats is not None:
            parts.append(struct.pack(">iq", 8, run_ats[i]))
    return b"".join(parts)


def task_jobs(
    calls: list[Any],
    start: int,
    stop: int,
    shape: tuple[type, ...],
    ids: list[UUID],
    kind: str,
    rest: tuple[Any, ...],
    max_depth: int,
    limit: int,
) -> list[NewJob]:
    """Jobs of a task for calls[start:stop], each a tuple of arguments whose types are `shape`, with the id at its place
    and the same `rest` of the fields. Ends before the first call that is anything else or may not be stored."""
    made: list[NewJob] = []
    payload: dict[str, Any] = {"args": (), "kwargs": {}}
    for i in range(start, min(stop, len(calls))):
        call = calls[i]
        if type(call) is not tuple or tuple(map(type, call)) != shape:
            break
        payload["args"] = call
        if not check_json(payload, max_depth, limit):
            break
        data = orjson.dumps(payload)
        if len(data) > limit:
            break
        # orjson's own bytes sit in a block of a kilobyte or more; a copy is as large as its content.
        made.append(tuple.__new__(NewJob, (ids[i], kind, b"%b" % data, *rest)))
    return made


def survey(jobs: list[NewJob]) -> tuple[bool, bool, bool]:
    """Whether any of the jobs has a dedupe key, is to run at a time of its own, or is in a line."""
    keyed = timed = lined = False
    for job in jobs:
        keyed |= job.dedupe_key is not None
        timed |= job.run_at is not None or job.delay != 0
        lined |= job.line is not None
    return keyed, timed, lined


def _field(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big", signed=True) + data


def _tail(priority: int, max_attempts: int, timeout: int, keep_result: int | None, tags: tuple[str, ...]) -> bytes:
    _check_range("priority", priority, 2**15)
    _check_range("max_attempts", max_attempts, 2**15)
    _check_range("timeout", timeout, 2**31)
    packed = struct.pack(">ihihii", 2, priority, 2, max_attempts, 4, timeout)
    if keep_result is None:
        packed += NULL
    else:
        _check_range("keep_result", keep_result, 2**31)
        packed += struct.pack(">ii", 4, keep_result)
    return packed + (_field(text_array(tags)) if tags else NULL)


def _check_range(field: str, value: int, end: int) -> None:
    if not -end <= value < end:
        raise InvalidJob(f"{field} is {value}; the database holds {-end} to {end - 1}")


def uuid_array(ids: Sequence[UUID]) -> bytes:
    """PostgreSQL's binary uuid[]."""
    return _array(UUID_OID, [b"\0\0\0\x10" + found.int.to_bytes(16, "big") for found in ids])


def int8_array(values: Sequence[int]) -> bytes:
    """PostgreSQL's binary bigint[]."""
    pack = struct.Struct(">iq").pack
    return _array(INT8_OID, [pack(8, value) for value in values])


def plain_endings(endings: Sequence[Ending], arrays: bool) -> Plain | None:
    """What to write where every ending is the commonest: done, with nothing to keep or to follow, of a job without a
    key, and no job twice. None: look at each. Ids are in ascending order, each with its token.

    With `arrays` a uuid[] and a bigint[] as PostgreSQL takes them, else 16 bytes after 16 bytes, and JSON."""
    found: dict[int, int] = {}
    queues = set()
    for claim, outcome, _, _, result, children in endings:
        if type(outcome) is not Done or result is not None or children or claim.keyed or claim.id.int in found:
            return None
        found[claim.id.int] = claim.token
        queues.add(claim.queue)
    numbers = sorted(found)
    tokens = [found[number] for number in numbers]
    ids = [number.to_bytes(16, "big") for number in numbers]
    pods = dict(Counter(token >> 32 for token in found.values()))
    if arrays:
        return _array(UUID_OID, [b"\0\0\0\x10" + data for data in ids]), int8_array(tokens), queues, pods
    return b"".join(ids), orjson.dumps(tokens), queues, pods


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


# Results that are nothing but results: neither an outcome nor the class of one.
_DULL = frozenset((int, float, str, bool, bytes, list, tuple, dict))


def burst(
    jobs: Any, plain: Any, crew: Any, seat: Any, context: Any, current: Any, clock: Any, until: float, most: int
) -> int:
    """Run jobs of a worker's line here, one after another, and reply, as long as there are some and all is as usual.
    What this leaves in the line is for `forge.worker.runners.Seat.one`, which takes more steps and can do everything.

    `plain` are the kinds it may run: (handler, app, function, takes_ctx, ctx_first). It begins no job at `until` on the
    `clock`, nor more than `most`. Each has a `context` of its own, which is the `current` one and the seat's while it
    runs, and a copy of this thread's context variables: what a handler sets there is gone after it. Done jobs are added
    to `crew.replies`, and the answer is how many they are; what ends otherwise is given to `seat.ended`, with what the
    handler returned or raised."""
    done, began, left = 0, clock(), most
    while left > 0 and began < until and not crew.early and not crew.closed:
        try:
            claim = jobs.popleft()
        except IndexError:
            break
        how = None if claim is None else plain.get(claim.kind)
        if how is None:
            jobs.appendleft(claim)
            break
        handler, app, fn, takes_ctx, ctx_first = how
        ctx = context(claim, app, crew.link, began)
        own = copy_context()
        own.run(current.set, ctx)
        returned, error = own.run(_called, seat, ctx, claim, fn, takes_ctx, ctx_first)
        ended = clock()
        usual = error is None and (returned is None or (not claim.keep_result and type(returned) in _DULL))
        if usual and ctx._children is None and not ctx._written:
            crew.replies.append(done_line(claim.id, ended - began))
            done += 1
        else:
            own.run(seat.ended, ctx, handler, began, returned, error)
            ended = clock()
        began = ended
        left -= 1
    return done


def _called(
    seat: Any, ctx: Any, claim: Claim, fn: Any, takes_ctx: bool, ctx_first: bool
) -> tuple[Any, BaseException | None]:
    """What the handler returned, or what it raised."""
    returned = error = None
    try:
        seat.ctx = ctx
        payload = orjson.loads(claim.payload)
        if takes_ctx:
            returned = fn(ctx, payload)
        elif ctx_first:
            returned = fn(ctx, *payload["args"], **payload["kwargs"])
        else:
            returned = fn(*payload["args"], **payload["kwargs"])
        seat.ctx = None
    except BaseException as raised:  # noqa: BLE001 (a job always ends)
        seat.ctx = None
        error = raised
    return returned, error


_DONE_LINE = re.compile(rb'\{"id":"([0-9a-f]{32})","status":"ok","took":([0-9]{1,6}\.[0-9]{6})\}')


def timed(times: array[int], seconds: float, run_at: Any, sent: float, ahead: float | None) -> None:
    """Count a job that took so long in `times`, which has a histogram of run times and one of latencies behind it. That
    is how long it had been due (`run_at`, in microseconds) when it was sent to a worker, on a clock that is `ahead` of
    the one that `sent` was read from; None: it is not known."""
    times[bisect_left(BOUNDS, seconds)] += 1
    if type(run_at) is int and ahead is not None:
        times[BUCKETS + bisect_left(BOUNDS, sent + ahead - run_at / 1e6)] += 1


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


def text_array(values: Sequence[str | bytes | None]) -> bytes:
    """PostgreSQL's binary text[]; bytes are UTF-8 already."""
    items, nulls = [], False
    for value in values:
        if value is None:
            nulls = True
            items.append(NULL)
        else:
            items.append(_field(value if isinstance(value, bytes) else value.encode()))
    return _array(TEXT_OID, items, nulls)


def _array(oid: int, items: list[bytes], nulls: bool = False) -> bytes:
    if not items:
        return struct.pack(">iii", 0, 0, oid)
    return struct.pack(">iiiii", 1, nulls, oid, len(items), 1) + b"".join(items)


def resp_simple(text: str) -> bytes:
    """RESP's reply of one line, `+text`; more than one line is a ValueError."""
    if "\r" in text or "\n" in text:
        raise ValueError("a simple reply is one line; send it as a bulk reply")
    return b"+%b\r\n" % text.encode()


def resp_error(code: str, message: str) -> bytes:
    """RESP's `-CODE message`. It always goes out: line ends become spaces, and what is not Unicode becomes `?`."""
    text = f"{code} {message}".replace("\r", " ").replace("\n", " ")
    return b"-%b\r\n" % text.encode(errors="replace")


def resp_int(number: int) -> bytes:
    """RESP's `:number`, of 64 bits."""
    if not _INT64_MIN <= number < 2**63:
        raise ValueError(f"{number} has more than 64 bits")
    return b":%d\r\n" % number


def resp_bulk(data: bytes | None) -> bytes:
    """RESP's `$length` and the bytes, whatever they are; None is its null."""
    return b"$-1\r\n" if data is None else b"$%d\r\n%b\r\n" % (len(data), data)


def resp_commands(data: bytes, limit: int) -> tuple[list[tuple[bytes, bytes]], int]:
    """For a server: the lines `VERB rest` that are complete, and how many bytes they took. Keep the others, put what
    comes next behind them, and ask again. Lines end with LF or CRLF; one of more than `limit` bytes, its end included,
    is a ValueError, even before it has come whole."""
    lines = data.split(b"\n")
    rest = lines.pop()
    found = []
    for line in lines:
        if len(line) >= limit:
            raise ValueError(f"a line of more than {limit} bytes")
        verb, _, args = line.removesuffix(b"\r").partition(b" ")
        found.append((verb, args))
    if len(rest) >= limit:
        raise ValueError(f"a line of more than {limit} bytes")
    return found, len(data) - len(rest)


def resp_values(data: bytes, limit: int) -> tuple[list[tuple[str, Any]], int]:
    """For a client: the replies that are complete, and how many bytes they took; go on as with `resp_commands`.

    A reply is ("+", text), ("-", text), (":", int), ("$", bytes) or ("$", None). A ValueError (not UTF-8 is one too) is
    a peer that speaks something else, or a line or bulk of more than `limit` bytes. Faktory has no arrays."""
    found: list[tuple[str, Any]] = []
    at, total = 0, len(data)
    while (end := data.find(b"\n", at)) >= 0:
        if end - at >= limit:
            raise ValueError(f"a line of more than {limit} bytes")
        kind, line = data[at : at + 1], data[at + 1 : end - 1]
        if end - at < 2 or data[end - 1 : end] != b"\r":
            raise ValueError("a reply without CRLF")
        value: Any
        if kind in {b"+", b"-"}:
            value = line.decode()
        elif kind == b":":
            value = _number(line)
        elif kind != b"$":
            raise ValueError(f"a reply that starts with {kind!r}")
        elif line == b"-1":
            value = None
        else:
            size = _number(line)
            if line[:1] == b"-" or size > limit:
                raise ValueError(f"a bulk reply of {size} bytes; the limit is {limit}")
            start, end = end + 1, end + size + 2
            if end >= total:
                return found, at
            value = data[start : start + size]
            if data[end - 1 : end + 1] != b"\r\n":
                raise ValueError("a bulk reply that is not followed by CRLF")
        found.append((kind.decode(), value))
        at = end + 1
    if total - at >= limit:
        raise ValueError(f"a line of more than {limit} bytes")
    return found, at


def _number(text: bytes) -> int:
    """1 to 19 digits, with a minus or without: int() alone takes spaces, underscores and a plus as well."""
    digits = text.removeprefix(b"-")
    if not digits.isdigit() or len(digits) > 19 or not _INT64_MIN <= int(text) < 2**63:
        raise ValueError(f"not a number of 64 bits: {text[:30]!r}")
    return int(text)
