"""Whatever a handler returned or raised, as an outcome that the master and every database take.

Classes of a handler's own count as the outcome they are made of, a message is made text, and a delay that is none fails
the job with a line that says so. Objects here are the user's: any method or attribute of theirs may raise anything,
even SystemExit, so nothing is asked of one outside of a `try`.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from types import GeneratorType, TracebackType
from typing import Any, TypeVar

import orjson

from forge import codec
from forge.codec import UNREADABLE, as_seconds, as_text, type_name
from forge.errors import InvalidJob
from forge.job import Cancelled, Dead, Done, Failed, NewJob, Outcome, Snooze, Throttled

__all__ = [
    "MAX_MESSAGE",
    "MAX_TRACEBACK",
    "can_be_awaited",
    "children",
    "failed",
    "message_of",
    "origin",
    "raised",
    "returned",
    "reworded",
    "traceback_in",
    "traceback_of",
]

MAX_MESSAGE = 8_000  # characters; the rest is cut
MAX_TRACEBACK = 100_000  # the same, in the middle: how it began and what came of it are at the ends

Made = TypeVar("Made", bound=Outcome)

_KNOWN: tuple[type[Outcome], ...] = (Done, Failed, Dead, Cancelled, Throttled, Snooze)
_mro = type.__dict__["__mro__"].__get__  # a metaclass can hide it
_dict = type.__dict__["__dict__"].__get__  # the same
traceback_in: Callable[[BaseException], TracebackType | None] = BaseException.__dict__["__traceback__"].__get__
_MISSING = object()
_PLAIN = frozenset((int, float, str, bool, bytes, list, tuple, dict))  # values that are just values
_RUN_IT = "run it to its end in the handler, with a for loop or list()"


def returned(value: Any) -> Outcome:
    """A returned outcome, or its bare class, made sound; anything else is the result of a job that is done."""
    kind = type(value)
    if issubclass(kind, type) and issubclass(value, Outcome):
        return _sound(value())
    if _has(kind, "send", "throw", "__next__") or _has(kind, "asend", "athrow", "__anext__"):
        raise Dead(f"its handler returned a generator ({type_name(value)}), of which nothing was run; {_RUN_IT}")
    return _sound(value) if issubclass(kind, Outcome) else Done(value)


def can_be_awaited(value: Any) -> bool:
    """Whether the work is not done yet: so it is with an `async def` behind an ordinary decorator."""
    kind = type(value)
    if value is None or kind in _PLAIN:
        return False
    if kind is GeneratorType:  # of `types.coroutine`
        return bool(value.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE)
    return _has(kind, "__await__")


def raised(error: BaseException) -> Outcome:
    """A raised outcome made sound; any other exception has failed the job. It never raises."""
    try:
        if issubclass(type(error), Outcome):
            return _sound(error)  # type: ignore[arg-type]
    except BaseException:  # noqa: BLE001 (nothing can be learnt from it but its name)
        pass
    return failed(error)


def failed(error: BaseException) -> Failed:
    """The failure of a job that ended in this. It never raises."""
    return _made_of(Failed(message_of(error)), error, type_name(error))


def reworded(outcome: Failed, more: str) -> Failed:
    """The same failure with more to say. Another object: the handler may raise the first one again."""
    return _made_of(Failed(outcome.message + more), origin(outcome), outcome.error_type)


def origin(outcome: Outcome) -> BaseException:
    """The exception that it was made of; itself, if of none."""
    return outcome if outcome.__cause__ is None else outcome.__cause__


def message_of(error: BaseException) -> str:
    """`ValueError: no luck`. An exception that cannot even be printed has at least its type."""
    return as_text(error, MAX_MESSAGE)


def traceback_of(error: BaseException, own: tuple[str, ...]) -> str | None:
    """The whole chain of causes as text, without the frames of files that are our `own` above the handler."""
    inside = traceback_in(error)
    while inside is not None and inside.tb_frame.f_code.co_filename.endswith(own) and inside.tb_next is not None:
        inside = inside.tb_next
    try:
        return _shortened("".join(traceback.format_exception(type(error), error, inside)))
    except BaseException:  # noqa: BLE001 (user code: it prints the message)
        try:
            return _shortened("".join(traceback.format_tb(inside)))
        except BaseException:  # noqa: BLE001 (and reads the source)
            return None


def children(jobs: Sequence[Any]) -> tuple[NewJob, ...]:
    """The jobs that are to be stored with this one's end. One that cannot be fails this one: it must not be stored
    without them, and no other job's end may wait for them."""
    for n, job in enumerate(jobs):
        try:
            payload = codec.check_job(job).payload
            if type(payload) is not bytes or b"\n" in payload:
                raise InvalidJob("payload must be JSON text in one line, as bytes")
            orjson.loads(payload)
        except ValueError as e:
            raise Failed(f"job {n + 1} of {len(jobs)} that it enqueued cannot be stored: {e}") from None
    return tuple(jobs)


def _has(kind: type, *names: str) -> bool:
    """Whether objects of the class have these methods. Nothing of the user's is asked, as `isinstance` would."""
    classes = [_dict(each) for each in _mro(kind)]
    return all(next((each[name] for each in classes if name in each), None) is not None for name in names)


def _sound(value: Outcome) -> Outcome:
    """The outcome as the class that forge knows, with nothing in it that cannot be passed on; itself, if it is."""
    kind = type(value)
    known = next((each for each in _mro(kind) if any(each is one for one in _KNOWN)), None)
    name = None if kind is known else type_name(value)
    match known:
        case None:
            return failed(value)
        case _ if known is Done:
            return value if name is None else _made_of(Done(value.result), value, None)  # type: ignore[attr-defined]
        case _ if known is Throttled:
            return _throttled(value, name)
        case _ if known is Snooze:
            return _snooze(value, name)
    return _with_message(value, known, name)


def _with_message(value: Outcome, known: Any, name: str | None) -> Outcome:
    said = _attribute(value, "message")
    text = UNREADABLE if said is _MISSING else "" if said is None else as_text(said, MAX_MESSAGE)
    if text in ("", known.message):
        text = known.message if name is None else _default(type(value), known, name)
    if issubclass(type(said), BaseException):
        name = name or type_name(said)
    if name is None and type(said) is str and text == said:
        return value
    made: Outcome = known(text)
    return _made_of(made, value, name)


def _default(kind: type, known: Any, name: str) -> str:
    """What a class of the handler's own says that was given no message."""
    said = _attribute(kind, "message")
    return said if type(said) is str and said != known.message else name


def _throttled(value: Outcome, name: str | None) -> Outcome:
    after, alone = _attribute(value, "retry_after"), _attribute(value, "job_only")
    seconds = None if after is None else as_seconds(after)
    if after is not None and seconds is None:
        return _refused(value, after, "retry_after must be a number of seconds, 0 or more, or None")
    if type(alone) is not bool:
        return _refused(value, alone, "job_only must be True or False")
    if name is None and type(after) in (float, int, type(None)) and after == seconds:
        return value
    return _made_of(Throttled(seconds, alone), value, name)


def _snooze(value: Outcome, name: str | None) -> Outcome:
    given = _attribute(value, "seconds")
    seconds = as_seconds(given)
    if seconds is None:
        return _refused(value, given, "seconds must be a number of seconds, 0 or more")
    if name is None and type(given) in (float, int) and given == seconds:
        return value
    return _made_of(Snooze(seconds), value, name)


def _refused(value: Outcome, given: object, why: str) -> Failed:
    shown = "?" if given is _MISSING else f'"{as_text(given, 40)}"' if type(given) is str else as_text(given, 40)
    return _made_of(Failed(f"{type_name(value)}({shown}): {why}"), value, type_name(value))


def _made_of(outcome: Made, origin: BaseException, name: str | None) -> Made:
    if name is not None:
        outcome.error_type = name
    outcome.__cause__ = origin  # so that who runs the loop can see a KeyboardInterrupt, and a test its own exception
    return outcome


def _attribute(value: object, name: str) -> Any:
    try:
        return getattr(value, name)
    except BaseException:  # noqa: BLE001 (deleted, or a property of the user's)
        return _MISSING


def _shortened(text: str) -> str:
    text = codec.clean_text(text)
    if len(text) <= MAX_TRACEBACK:
        return text
    half = MAX_TRACEBACK // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"
