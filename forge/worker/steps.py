"""What running one job means, step by step: the same for a job that is called and for one that is awaited.

Hooks, arguments, the call, and whatever came of it turned into an ending. `perform` and `aperform` differ in the call
alone; each is written out, for a job that does nothing feels every layer (a generator that both drove cost it 1 µs).
Nothing here raises: a job always ends.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from contextvars import copy_context
from types import MappingProxyType
from typing import Any

import orjson

from forge import codec, delays
from forge.app.registry import Handler
from forge.app.running.context import Context, stopped
from forge.app.running.results import encode_result
from forge.job import Claim, Done, Ending, Failed, Released, Written
from forge.logs import current_job
from forge.retry import Backoff
from forge.worker import outcomes
from forge.worker.outcomes import can_be_awaited

__all__ = [
    "Run",
    "aperform",
    "concluded",
    "perform",
    "raised",
    "unknown_kind",
    "whole",
]

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
Run = Callable[[Coroutine[Any, Any, Any]], Any]  # runs a coroutine to its end, in a context of its own

_new_tuple = tuple.__new__
_NOTHING = Done()  # a handler that returns nothing is the common case: half a microsecond less
_random = random.SystemRandom()  # not Python's own, which a handler may seed
_log = logging.getLogger("forge.worker")


def perform(ctx: Context, handler: Handler, run: Run) -> Ending:
    """Run the job here to its ending, in a context of its own: of the context variables that a handler sets, the next
    job sees none. `run` is who runs a coroutine."""
    return copy_context().run(_perform, ctx, handler, run)


def _perform(ctx: Context, handler: Handler, run: Run) -> Ending:
    hooks = handler.app._hooks
    current_job.set(ctx)
    returned = None  # of a handler whose exception a hook swallowed
    ending: Ending
    try:
        if handler.is_async:
            ending = run(aperform(ctx, handler))
            return ending
        if not hooks.inside:
            returned = _worked(ctx, _call(ctx, handler), run)
        else:
            with hooks.entered(ctx):
                returned = _worked(ctx, _call(ctx, handler), run)
        ending = _returned(ctx, handler, returned)
    except BaseException as error:  # noqa: BLE001 (a job is always finalized)
        ending = raised(ctx, handler, error)
    return _after(ctx, handler, ending) if hooks.after else ending


def concluded(ctx: Context, handler: Handler, returned: Any, error: BaseException | None, run: Run) -> Ending:
    """The ending of a job whose handler returned this, or raised that."""
    if error is not None:
        return raised(ctx, handler, error)
    try:
        return _returned(ctx, handler, _worked(ctx, returned, run))
    except BaseException as failed:  # noqa: BLE001 (a class that cannot be made, a result that cannot be kept)
        return raised(ctx, handler, failed)


async def aperform(ctx: Context, handler: Handler) -> Ending:
    """The same for an `async def` handler, within the job's timeout. It can be told to stop by asyncio's means. It runs
    in a task of its own, which has a context of its own."""
    current_job.set(ctx)
    returned = None
    try:
        with handler.app._hooks.entered(ctx):
            args, kwargs = _arguments(ctx, handler)
            returned = await _awaited(ctx, handler.fn, args, kwargs)
        ending = _returned(ctx, handler, returned)
    except BaseException as error:  # noqa: BLE001 (the same)
        ending = raised(ctx, handler, error)
    return _after(ctx, handler, ending)


async def whole(value: Any) -> Any:
    """What is left when there is nothing more to await."""
    while can_be_awaited(value):
        value = await value
    return value


def _worked(ctx: Context, returned: Any, run: Run) -> Any:
    """What a called handler returned, after what it left to be awaited."""
    return run(_awaited(ctx, lambda: returned)) if can_be_awaited(returned) else returned


def _after(ctx: Context, handler: Handler, ending: Ending) -> Ending:
    """Call the hooks. They have the outcome itself in their hands: what they make of it is looked at once more."""
    for after in handler.app._hooks.after:
        try:
            after(ctx, ending.outcome)
        except BaseException as e:  # noqa: BLE001 (the job has ended)
            _tell("the job has ended, but a hook after it failed", e)
    if isinstance(ending.outcome, Done) or not handler.app._hooks.after:
        return ending
    return ending._replace(outcome=outcomes.raised(ending.outcome))


async def _awaited(
    ctx: Context, fn: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] = MappingProxyType({})
) -> Any:
    """Call it and await what it returns, within what is left of the job's time."""
    ctx._awaited_by(asyncio.current_task())
    limit = asyncio.timeout(max(ctx.remaining, 0.0))
    try:
        async with limit:
            return await whole(fn(*args, **kwargs))
    except TimeoutError:
        if limit.expired():
            raise Failed(f"timeout after {ctx.timeout} s") from None
        raise


def _call(ctx: Context, handler: Handler) -> Any:
    if handler.takes_ctx:  # for the usual low-level handler as short as can be
        return handler.fn(ctx, orjson.loads(ctx._claim.payload))
    args, kwargs = _arguments(ctx, handler)
    return handler.fn(*args, **kwargs)


def _arguments(ctx: Context, handler: Handler) -> Arguments:
    payload = codec.decode(ctx._claim.payload)
    if handler.takes_ctx:
        return (ctx, payload), {}
    args, kwargs = payload["args"], payload["kwargs"]
    return ((ctx, *args) if handler.ctx_first else args), kwargs


def _returned(ctx: Context, handler: Handler, value: Any) -> Ending:
    """A returned outcome, or its bare class, as it is; anything else is the result of a job that is done."""
    claim = ctx._claim
    if value is None and not ctx._written and not ctx._children:
        return _new_tuple(Ending, (claim, _NOTHING, 0.0, None, None, ()))  # the usual; `Ending(…)` takes 0.3 µs more
    outcome = _NOTHING if value is None else outcomes.returned(value)
    if ctx._written or not isinstance(outcome, Done):
        return _settled(ctx, handler, Ending(claim, outcome))
    return _done(ctx, handler, outcome)


def _done(ctx: Context, handler: Handler, outcome: Done) -> Ending:
    claim = ctx._claim
    result = encode_result(claim, handler, outcome.result)
    if result is not None and handler.result_optional:
        outcome.spare_result = True
    return Ending(claim, outcome, result=result, children=outcomes.children(ctx._children or ()))


def raised(ctx: Context, handler: Handler, error: BaseException) -> Ending:
    """The ending of a job whose handler, or what is around it, raised."""
    try:
        return _raised(ctx, handler, error)
    except BaseException as e:  # noqa: BLE001 (the last net: a job without an ending would stay where it is)
        outcome = outcomes.failed(e) if ctx._why is None else stopped(ctx._why)
        return Ending(ctx._claim, outcome, delays.by_default(ctx._claim.attempt))


def _raised(ctx: Context, handler: Handler, error: BaseException) -> Ending:
    outcome = outcomes.raised(error)
    if isinstance(outcome, Done) and not ctx._written:
        try:
            return _done(ctx, handler, outcome)
        except BaseException as e:  # noqa: BLE001 (a result that cannot be kept)
            outcome, error = outcomes.raised(e), e
            if isinstance(outcome, Done):
                outcome = outcomes.failed(e)
    return _settled(ctx, handler, Ending(ctx._claim, outcome, traceback=outcomes.traceback_of(error, _OWN)))


def _settled(ctx: Context, handler: Handler, ending: Ending) -> Ending:
    """What counts more than how the handler ended: that its transaction did, or that it was told to stop."""
    if ctx._written:
        if not isinstance(ending.outcome, Done):
            words = "the job is done, by its transaction, but its handler went on and failed"
            _tell(words, outcomes.origin(ending.outcome))
        return Ending(ctx._claim, Written())
    if ctx._why is not None:
        ending = ending._replace(outcome=stopped(ctx._why))
    if not isinstance(ending.outcome, Failed):
        return ending
    delay, broken = _delay(handler, ctx._claim)
    if broken is not None:
        ending = ending._replace(outcome=outcomes.reworded(ending.outcome, f" (and its backoff failed: {broken})"))
    return ending._replace(delay=delay)


def _tell(words: str, error: BaseException) -> None:
    """In the log, with its traceback. Printing it asks the exception, which is the user's, more than one would think:
    whether it is true, for one thing."""
    try:
        _log.error(words, exc_info=(type(error), error, outcomes.traceback_in(error)))
    except BaseException:  # noqa: BLE001 (then without)
        _log.error("%s: %s", words, outcomes.message_of(error))


def unknown_kind(claim: Claim, give_up_after: float | None = None) -> Ending:
    """Back untouched, attempt refunded: another pod may know it, or the next release. Not for ever."""
    outcome = Released(f"no handler for kind {claim.kind}", give_up_after=give_up_after)
    return Ending(claim, outcome, _random.uniform(*delays.UNKNOWN_KIND_PAUSE))


def _delay(handler: Handler, claim: Claim) -> tuple[float, str | None]:
    """Seconds until the retry of a failed job, by the task's curve; by the default if it names none, or if its own is
    broken, and how."""
    curve, broken = handler.backoff, None
    if isinstance(curve, Backoff):
        return delays.by_curve(curve, claim.attempt), None
    try:
        if (seconds := delays.called(curve, claim.attempt)) is not None:
            return seconds, None
    except BaseException as e:  # noqa: BLE001 (user code)
        broken = outcomes.message_of(e)
    return delays.by_default(claim.attempt), broken


_OWN = (
    "forge/worker/steps.py",
    "forge/worker/runners.py",
    "forge/worker/outcomes.py",
    "forge/_native/burst.pxi",
    "forge/_reference/burst.py",
)
