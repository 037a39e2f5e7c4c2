"""Asserting what was enqueued. A failure lists what was instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forge.app import BoundTask, Forge, Task
from forge.codec import decode, encode_payload
from forge.config import suggest
from forge.errors import UsageError
from forge.job import ENDED, Job
from forge.testing.database import storage_of

__all__ = ["assert_enqueued", "refute_enqueued"]

AnyTask = Task[..., Any] | BoundTask[..., Any] | str

SHOWN = 20  # jobs in a message
WIDTH = 100  # characters of one job's arguments


def assert_enqueued(
    app: Forge,
    task: AnyTask,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    payload: Any = None,
    queue: str | None = None,
    count: int | None = None,
) -> list[Job]:
    """Assert that jobs like this were enqueued, and answer them, oldest first, whether they have run or not.

    `task` is a task, or the kind of a handler. `args` and `kwargs` are compared as a call of the task: it does not
    matter which went by keyword or were left to a default. `payload` is that of a plain handler. What is not given
    can be anything. `count` is how many there must be, else at least one.
    """
    __tracebackhide__ = True
    wanted = _Wanted(app, task, args, kwargs, payload, queue)
    jobs = _all(app, "assert_enqueued")
    found = [job for job in jobs if wanted.fits(job)]
    if (found and count is None) or len(found) == count:
        return found
    number = "no job was" if not found else "1 job was" if len(found) == 1 else f"{len(found)} jobs were"
    instead = f", not {count}" if count is not None else ""
    raise AssertionError(f"{number} enqueued as {wanted}{instead}; {wanted.listing(jobs)}")


def refute_enqueued(
    app: Forge,
    task: AnyTask | None = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    payload: Any = None,
    queue: str | None = None,
) -> None:
    """Assert that no job like this was enqueued; without a task, none at all."""
    __tracebackhide__ = True
    wanted = _Wanted(app, task, args, kwargs, payload, queue)
    jobs = _all(app, "refute_enqueued")
    if found := [job for job in jobs if wanted.fits(job)]:
        number = "1 job was" if len(found) == 1 else f"{len(found)} jobs were"
        raise AssertionError(f"{number} enqueued as {wanted}; {wanted.listing(jobs)}")


def _all(app: Forge, what: str) -> list[Job]:
    storage_of(app, what)
    return list(app.jobs())[::-1]


class _Wanted:
    """What is looked for: compared with a job, and told to a person."""

    def __init__(
        self,
        app: Forge,
        task: AnyTask | None,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        payload: Any,
        queue: str | None,
    ) -> None:
        self._kind = task if isinstance(task, str) or task is None else task.kind
        self._queue = queue
        self._payload = None if payload is None else _as_stored(payload)
        self._signature = None if isinstance(task, str) or task is None else task._signature
        self._call: dict[str, Any] | None = None
        if isinstance(task, str) and task not in app.tasks:
            raise UsageError(f"the app has no task or handler {task}{suggest(task, app.tasks)}")
        if args is None and kwargs is None:
            return
        if self._signature is None:
            raise UsageError("args and kwargs are those of a task; give the task itself, or payload=")
        given, named = tuple(_as_stored(list(args or ()))), _as_stored(dict(kwargs or {}))
        self._call = self._signature.arguments(given, named)
        self._shown = _call_text(given, named)

    def fits(self, job: Job) -> bool:
        """Whether this job is one."""
        if self._kind not in (None, job.kind) or self._queue not in (None, job.queue):
            return False
        if self._payload is not None and self._payload != job.payload:
            return False
        if self._call is None or self._signature is None:
            return True
        return self._call == self._signature.arguments(tuple(job.payload["args"]), job.payload["kwargs"])

    def __str__(self) -> str:
        text = self._kind or "anything"
        if self._call is not None:
            text += self._shown
        if self._payload is not None:
            text += f" with {_short(self._payload)}"
        return text if self._queue is None else f"{text} to queue {self._queue}"

    def listing(self, jobs: Sequence[Job]) -> str:
        """All that was enqueued, those of the same kind first."""
        if not jobs:
            return "nothing was enqueued at all"
        lines = [_line(job) for job in sorted(jobs, key=lambda job: job.kind != self._kind)]
        more = [f"  and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        return "\n".join(["enqueued were:", *lines[:SHOWN], *more])


def _as_stored(value: Any) -> Any:
    """The value as it comes back from the database: a tuple as a list."""
    return decode(encode_payload(value))


def _line(job: Job) -> str:
    payload = job.payload
    if isinstance(payload, dict) and payload.keys() == {"args", "kwargs"}:
        what = job.kind + _call_text(payload["args"], payload["kwargs"])
    else:
        what = f"{job.kind} with {_short(payload)}"
    error = f": {job.last_error}" if job.last_error else ""
    tries = f" after {job.attempts} of {job.max_attempts} attempts" if job.attempts and job.status not in ENDED else ""
    return f"  {what} to queue {job.queue}, {job.status}{tries}{error}"


def _call_text(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    return f"({_short(', '.join([*map(repr, args), *(f'{name}={value!r}' for name, value in kwargs.items())]))})"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
