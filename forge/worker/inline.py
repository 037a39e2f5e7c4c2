"""Runs claimed jobs in this very process, one after another: the reference for what it means to run a job.

`execute` is one job, from claim to ending, and never raises; `drain` is a whole worker's life in one loop. What runs a
handler elsewhere (a forked worker) takes the same steps. A `def` handler's timeout cannot be enforced from inside its
own thread and is not; an `async def` handler's is. Storage is the app's: nothing here opens one.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import socket
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from forge import codec, fastpath
from forge.app.registry import Handler
from forge.errors import InvalidJob
from forge.job import Claim, Done, Ending, Failed, Outcome, Released
from forge.retry import DEFAULT_BACKOFF, Backoff
from forge.storage import Storage
from forge.storage.contract import LowWater, Want

__all__ = ["Context", "HasTasks", "Summary", "drain", "execute"]

# How long a job of a kind that nobody here knows stays away: uniform between these seconds, so that in a rolling deploy
# a pod that does know it comes by, and a backlog of such jobs does not come back all at once.
UNKNOWN_KIND_PAUSE = (5.0, 60.0)


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler registered with `@app.handler` is told about its job, beside the payload."""

    id: UUID
    kind: str
    queue: str
    attempt: int  # 1 at the first try
    max_attempts: int
    timeout: int  # seconds


def execute(claim: Claim, handlers: Mapping[str, Handler]) -> Ending:
    """Run one job to its ending. Whatever the handler does, even exit, the answer is an ending and not an exception."""
    handler = handlers.get(claim.kind)
    if handler is None:
        return _unknown_kind(claim)
    try:
        arguments = _decode(claim)
        returned = _call(handler, claim, arguments)
        outcome = _as_outcome(returned)
        return Ending(claim, outcome, _delay(handler, claim, outcome), result=_encode_result(claim, outcome))
    except Outcome as raised:
        return _raised_outcome(handler, claim, raised)
    except BaseException as error:  # noqa: BLE001 (a job is always finalized)
        return _failure(handler, claim, error)


def _unknown_kind(claim: Claim) -> Ending:
    """Back untouched, attempt refunded: another pod may know it, or the next release."""
    return Ending(claim, Released(f"no handler for kind {claim.kind}"), random.uniform(*UNKNOWN_KIND_PAUSE))


def _decode(claim: Claim) -> Any:
    return codec.decode(claim.payload)


def _call(handler: Handler, claim: Claim, payload: Any) -> Any:
    """The handler's return value. An `async def` runs in an event loop of its own, within the job's timeout."""
    if handler.takes_ctx:
        ctx = Context(claim.id, claim.kind, claim.queue, claim.attempt, claim.max_attempts, claim.timeout)
        args, kwargs = (ctx, payload), {}
    else:
        args, kwargs = tuple(payload["args"]), payload["kwargs"]
    if handler.is_async:
        return asyncio.run(_within(claim.timeout, handler.fn, args, kwargs))
    return handler.fn(*args, **kwargs)


async def _within(seconds: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await fn(*args, **kwargs)
    except TimeoutError:
        if limit.expired():
            raise Failed(f"timeout after {seconds} s") from None
        raise


def _as_outcome(returned: Any) -> Outcome:
    """A returned outcome, or its bare class, as it is; anything else is the result of a job that is done."""
    if isinstance(returned, type) and issubclass(returned, Outcome):
        return returned()
    return returned if isinstance(returned, Outcome) else Done(returned)


def _encode_result(claim: Claim, outcome: Outcome) -> bytes | None:
    """The result to keep. One that JSON cannot carry fails the job: done without it would be a lie to who waits."""
    if not isinstance(outcome, Done) or not claim.keep_result:
        return None
    try:
        return codec.encode_payload(outcome.result, name="result")
    except InvalidJob as e:
        raise Failed(f"the result cannot be kept: {e}") from None


def _raised_outcome(handler: Handler, claim: Claim, outcome: Outcome) -> Ending:
    try:
        result = _encode_result(claim, outcome)
    except Failed as failed:
        outcome, result = failed, None
    text = None if isinstance(outcome, Done) else _traceback_of(outcome)
    return Ending(claim, outcome, _delay(handler, claim, outcome), text, result)


def _failure(handler: Handler, claim: Claim, error: BaseException) -> Ending:
    outcome = Failed(_message_of(error))
    outcome.__cause__ = error  # so that who runs the loop can see a KeyboardInterrupt
    return Ending(claim, outcome, _delay(handler, claim, outcome), _traceback_of(error))


def _message_of(error: BaseException) -> str:
    """`ValueError: no luck`. An exception that cannot even be printed has at least its type."""
    name = type(error).__name__
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 (user code)
        said = "(its message cannot be read)"
    return codec.clean_text(f"{name}: {said}" if said else name)


def _traceback_of(error: BaseException) -> str:
    """The whole chain of causes as text, without the frames of this module above the handler."""
    inside = error.__traceback__
    while inside is not None and inside.tb_frame.f_code.co_filename == __file__ and inside.tb_next is not None:
        inside = inside.tb_next
    try:
        lines = traceback.format_exception(type(error), error, inside)
    except Exception:  # noqa: BLE001 (user code again: it prints the message)
        lines = traceback.format_tb(inside)
    return codec.clean_text("".join(lines))


def _delay(handler: Handler, claim: Claim, outcome: Outcome) -> float:
    """Seconds until the retry of a failed job, by the task's curve; by forge's own if the user's is broken."""
    if not isinstance(outcome, Failed):
        return 0.0
    curve = handler.backoff
    if not isinstance(curve, Backoff):
        try:
            seconds = float(curve(claim.attempt))
            if math.isfinite(seconds) and seconds >= 0:
                return seconds
        except Exception as e:  # noqa: BLE001 (user code)
            outcome.message += f" (and its backoff failed: {_message_of(e)})"
        curve = DEFAULT_BACKOFF
    return fastpath.delay(curve.curve, claim.attempt, curve.base, curve.cap, random.random())


@dataclass(slots=True)
class Summary:
    """What a run of `drain` did."""

    ran: int = 0
    stale: int = 0  # endings that came too late to count: somebody else had taken the job
    outcomes: Counter[str] = field(default_factory=Counter)  # by the outcome's name, lower case

    def add(self, ending: Ending, stale: int) -> None:
        """Count one ending."""
        self.ran += 1
        self.stale += stale
        self.outcomes[type(ending.outcome).__name__.lower()] += 1


class HasTasks(Protocol):
    """What a loop needs of an app."""

    @property
    def storage(self) -> Storage: ...
    @property
    def tasks(self) -> Mapping[str, Handler]: ...


def drain(
    app: HasTasks,
    queues: Sequence[str] | None = None,
    *,
    until_empty: bool = True,
    on_job: Callable[[Ending], None] | None = None,
) -> Summary:
    """Run what is due until nothing is, or one job with `until_empty=False`.

    `queues` defaults to all that have jobs or handlers; they take turns. A job's ending is written in the transaction
    that claims the next one. Ctrl-C ends the job that runs as failed, and then the loop.
    """
    storage, handlers, done = app.storage, app.tasks, Summary()
    names = (
        sorted({*storage.counts(), *(h.queue or "default" for h in handlers.values())}) if queues is None else queues
    )
    wants = [Want(name, 1, LowWater()) for name in names]
    who = storage.register("inline", names, socket.gethostname(), os.getpid())
    try:
        _, claims = storage.exchange(who, [], wants)
        while claims:
            ending = execute(claims.pop(0), handlers)
            stale, more = storage.exchange(who, [ending], wants if until_empty and not claims else [])
            done.add(ending, len(stale))
            if on_job:
                on_job(ending)
            if isinstance(ending.outcome.__cause__, KeyboardInterrupt):
                raise ending.outcome.__cause__
            claims = claims + more if until_empty else []
    finally:
        storage.deregister(who)  # which gives back what was claimed and not run
    return done
