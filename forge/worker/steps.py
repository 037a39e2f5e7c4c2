"""What running one job means, step by step: the same for a job that is called and for one that is awaited.

Hooks, arguments, the call, and whatever came of it turned into an ending. `perform` and `aperform` differ in the call
alone; each is written out, for a job that does nothing feels every layer (a generator that both drove cost it 1 µs).
Nothing here raises: a job always ends.
"""

from __future__ import annotations

import asyncio
import logging
import random
import traceback
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import orjson

from forge import codec, delays
from forge.app.context import Context, stopped
from forge.app.registry import Handler
from forge.errors import InvalidJob
from forge.job import Claim, Done, Ending, Failed, Outcome, Released, Written
from forge.logs import current_job
from forge.retry import Backoff

__all__ = ["UNKNOWN_KIND_PAUSE", "aperform", "concluded", "perform", "raised", "unknown_kind"]

# How long a job of a kind that nobody here knows stays away: uniform between these seconds, so that in a rolling deploy
# a pod that does know it comes by, and a backlog of such jobs does not come back all at once.
UNKNOWN_KIND_PAUSE = (5.0, 60.0)

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]

_new_tuple = tuple.__new__
_NOTHING = Done()  # a handler that returns nothing is the common case: half a microsecond less
_log = logging.getLogger("forge.worker")


def perform(ctx: Context, handler: Handler, run: Callable[[Coroutine[Any, Any, Ending]], Ending]) -> Ending:
    """Run the job here to its ending; `run` is who runs a coroutine, for an `async def` handler."""
    if handler.is_async:
        return run(aperform(ctx, handler))
    hooks = handler.app.hooks
    before = current_job.get()
    current_job.set(ctx)
    returned = None  # of a handler whose exception a hook swallowed
    try:
        if not hooks.inside:
            returned = _call(ctx, handler)
        else:
            with hooks.entered(ctx):
                returned = _call(ctx, handler)
        ending = _returned(ctx, handler, returned)
    except BaseException as error:  # noqa: BLE001 (a job is always finalized)
        ending = raised(ctx, handler, error)
    if hooks.after:
        _after(ctx, handler, ending)
    current_job.set(before)
    return ending


def concluded(ctx: Context, handler: Handler, returned: Any, error: BaseException | None) -> Ending:
    """The ending of a job whose handler returned this, or raised that."""
    if error is not None:
        return raised(ctx, handler, error)
    try:
        return _returned(ctx, handler, returned)
    except BaseException as failed:  # noqa: BLE001 (a class that cannot be made, a result that cannot be kept)
        return raised(ctx, handler, failed)


async def aperform(ctx: Context, handler: Handler) -> Ending:
    """The same for an `async def` handler, within the job's timeout. It can be told to stop by asyncio's means."""
    before = current_job.get()
    current_job.set(ctx)
    returned = None
    try:
        with handler.app.hooks.entered(ctx):
            args, kwargs = _arguments(ctx, handler)
            ctx._awaited_by(asyncio.current_task())
            returned = await _within(ctx.timeout, handler.fn, args, kwargs)
        ending = _returned(ctx, handler, returned)
    except BaseException as error:  # noqa: BLE001 (the same)
        ending = raised(ctx, handler, error)
    _after(ctx, handler, ending)
    current_job.set(before)
    return ending


def _after(ctx: Context, handler: Handler, ending: Ending) -> None:
    for after in handler.app.hooks.after:
        try:
            after(ctx, ending.outcome)
        except BaseException:  # noqa: BLE001 (the job has ended)
            _log.exception("the job has ended, but a hook after it failed")


async def _within(seconds: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await fn(*args, **kwargs)
    except TimeoutError:
        if limit.expired():
            raise Failed(f"timeout after {seconds} s") from None
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
    if value is None:
        outcome: Outcome = _NOTHING
    elif isinstance(value, type) and issubclass(value, Outcome):
        outcome = value()
    else:
        outcome = value if isinstance(value, Outcome) else Done(value)
    if ctx._written or not isinstance(outcome, Done):
        return _settled(ctx, handler, Ending(claim, outcome))
    return Ending(claim, outcome, result=_encoded(claim, outcome.result), children=tuple(ctx._children or ()))


def raised(ctx: Context, handler: Handler, error: BaseException) -> Ending:
    """The ending of a job whose handler, or what is around it, raised."""
    claim = ctx._claim
    if isinstance(error, Done) and not ctx._written:
        try:
            return _returned(ctx, handler, error)
        except Failed as failed:
            error = failed
    if isinstance(error, Outcome):
        return _settled(ctx, handler, Ending(claim, error, traceback=_traceback_of(error)))
    outcome = Failed(_message_of(error))
    outcome.__cause__ = error  # so that who runs the loop can see a KeyboardInterrupt
    return _settled(ctx, handler, Ending(claim, outcome, traceback=_traceback_of(error)))


def _settled(ctx: Context, handler: Handler, ending: Ending) -> Ending:
    """What counts more than how the handler ended: that its transaction did, or that it was told to stop."""
    if ctx._written:
        if not isinstance(ending.outcome, Done):
            words = "the job is done, by its transaction, but its handler went on and failed"
            _log.error(words, exc_info=ending.outcome.__cause__ or ending.outcome)
        return Ending(ctx._claim, Written())
    if ctx._why is not None:
        ending = ending._replace(outcome=stopped(ctx._why))
    return ending._replace(delay=_delay(handler, ctx._claim, ending.outcome))


def _encoded(claim: Claim, result: Any) -> bytes | None:
    """The result to keep. One that JSON cannot carry fails the job: done without it would be a lie to who waits."""
    if result is None or not claim.keep_result:
        return None
    try:
        return codec.encode_payload(result, name="result")
    except InvalidJob as e:
        raise Failed(f"the result cannot be kept: {e}") from None


def unknown_kind(claim: Claim, give_up_after: float | None = None) -> Ending:
    """Back untouched, attempt refunded: another pod may know it, or the next release. Not for ever."""
    outcome = Released(f"no handler for kind {claim.kind}", give_up_after=give_up_after)
    return Ending(claim, outcome, random.uniform(*UNKNOWN_KIND_PAUSE))


def _message_of(error: BaseException) -> str:
    """`ValueError: no luck`. An exception that cannot even be printed has at least its type."""
    name = type(error).__name__
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 (user code)
        said = "(its message cannot be read)"
    return codec.clean_text(f"{name}: {said}" if said else name)


def _traceback_of(error: BaseException) -> str:
    """The whole chain of causes as text, without forge's own frames above the handler."""
    inside = error.__traceback__
    while inside is not None and inside.tb_frame.f_code.co_filename.endswith(_OWN) and inside.tb_next is not None:
        inside = inside.tb_next
    try:
        lines = traceback.format_exception(type(error), error, inside)
    except Exception:  # noqa: BLE001 (user code again: it prints the message)
        lines = traceback.format_tb(inside)
    return codec.clean_text("".join(lines))


def _delay(handler: Handler, claim: Claim, outcome: Outcome) -> float:
    """Seconds until the retry of a failed job, by the task's curve; by the default if it names none, or its own is
    broken."""
    if not isinstance(outcome, Failed):
        return 0.0
    curve = handler.backoff
    if isinstance(curve, Backoff):
        return delays.by_curve(curve, claim.attempt)
    try:
        seconds = delays.called(curve, claim.attempt)
    except Exception as e:  # noqa: BLE001 (user code)
        seconds = None
        outcome.message += f" (and its backoff failed: {_message_of(e)})"
    return delays.by_default(claim.attempt) if seconds is None else seconds


_OWN = ("forge/worker/steps.py", "forge/worker/runners.py", "forge/_fastpath.pyx", "forge/_fastpath_py.py")
