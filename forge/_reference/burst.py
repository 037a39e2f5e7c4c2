"""Jobs run one after another in a worker."""

from __future__ import annotations

from contextvars import copy_context
from typing import Any

import orjson

from forge._reference.frames import done_line
from forge.job import Claim

# Results that are nothing but results: neither an outcome nor the class of one.
_DULL = frozenset((int, float, str, bool, bytes, list, tuple, dict))


def burst(
    jobs: Any, plain: Any, port: Any, seat: Any, context: Any, current: Any, clock: Any, until: float, most: int
) -> int:
    """Run jobs of a worker's inbox here, one after another, and reply, as long as there are some and all is as usual.
    What this leaves there is for `forge.worker.seats.Seat.one`, which takes more steps and can do everything.

    `plain` are the kinds it may run: (handler, app, function, takes_ctx, ctx_first). It begins no job at `until` on the
    `clock`, nor more than `most`. Each has a `context` of its own, which is the `current` one and the seat's while it
    runs, and a copy of this thread's context variables: what a handler sets there is gone after it. Done jobs are added
    to `port.replies`, and the answer is how many they are; what ends otherwise is given to `seat.ended`, with what the
    handler returned or raised."""
    done, began, left = 0, clock(), most
    while left > 0 and began < until and not port.early and not port.closed:
        try:
            claim = jobs.popleft()
        except IndexError:
            break
        how = None if claim is None else plain.get(claim.kind)
        if how is None:
            jobs.appendleft(claim)
            break
        handler, app, fn, takes_ctx, ctx_first = how
        ctx = context(claim, app, port.link, began)
        own = copy_context()
        own.run(current.set, ctx)
        returned, error = own.run(_called, seat, ctx, claim, fn, takes_ctx, ctx_first)
        ended = clock()
        usual = error is None and (returned is None or (not claim.keep_result and type(returned) in _DULL))
        if usual and ctx._children is None and not ctx._written:
            port.replies.append(done_line(claim.id, ended - began))
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
