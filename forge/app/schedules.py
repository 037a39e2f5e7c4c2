"""Schedules: `app.schedule(…)` and `@app.task(cron=…)` in code, `app.schedules` at run time.

What is declared in code is stored by the pod that leads, which asks the process that has imported the modules. What
`app.schedules` sets is stored at once.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack, get_args
from uuid import UUID

from forge.app.fields import KeepResult, Seconds, check_key, check_options
from forge.app.handle import JobHandle, in_thread
from forge.app.line_rules import LineOptions
from forge.app.registry import App
from forge.app.tasks import Task
from forge.codec import check_name
from forge.config import checks
from forge.errors import ConfigError, UsageError
from forge.job import Deduped, NewJob
from forge.storage.contract.schedules import CatchUp, NewSchedule, Schedule, Source

__all__ = ["ScheduleOptions", "Schedules", "scheduled"]

LONGEST_JITTER = 86_400.0  # seconds


class JobOptions(LineOptions, total=False):
    """What a schedule may say about its jobs. Left out, or None: as the task says, else forge's default."""

    queue: str | None
    priority: int | None
    max_attempts: int | None
    timeout: Seconds | None
    tags: Iterable[str]
    keep_result: KeepResult


class ScheduleOptions(JobOptions, total=False):
    """And about itself."""

    args: Sequence[Any]  # of the task
    kwargs: Mapping[str, Any]
    payload: Any  # of a handler that takes one, instead of arguments
    timezone: str  # in which the expression is meant; default UTC
    catch_up: CatchUp  # which missed times are made up for; default one
    jitter: float  # seconds: each job runs up to this long after its time
    skip_if_running: bool  # skip a time while the job of the one before has not ended


def scheduled(
    job: NewJob,
    name: str,
    expression: str,
    *,
    source: Source,
    timezone: str = "UTC",
    catch_up: CatchUp = "one",
    jitter: float = 0.0,
    skip_if_running: bool = False,
) -> NewSchedule:
    """The schedule that enqueues such jobs; `UsageError` in one line for what cannot be."""
    if wanted := checks.schedule(expression):
        raise UsageError(f"schedule {name}: {expression!r} must be {wanted}")
    if wanted := checks.timezone(timezone):
        raise UsageError(f"schedule {name}: timezone {timezone!r} must be {wanted}")
    if catch_up not in get_args(CatchUp):
        raise UsageError(f"schedule {name}: catch_up must be one of {', '.join(get_args(CatchUp))}, not {catch_up!r}")
    return NewSchedule(
        name=check_name(name, "schedule"),
        expression=" ".join(expression.split()),
        kind=job.kind,
        payload=job.payload,
        timezone=timezone,
        queue=job.queue,
        priority=job.priority,
        max_attempts=job.max_attempts,
        timeout=job.timeout,
        keep_result=job.keep_result,
        dedupe_key=job.dedupe_key or (check_key(f"cron:{name}") if skip_if_running else None),
        unique_for=job.unique_for,
        tags=job.tags,
        catch_up=catch_up,
        jitter=_jitter(name, jitter),
        source=source,
        line=job.line,
    )


def _jitter(name: str, value: Any) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not 0 <= value <= LONGEST_JITTER:
        raise UsageError(f"schedule {name}: jitter must be 0 to {LONGEST_JITTER:.0f} seconds, not {value!r}")
    return float(value)


class Schedules:
    """The schedules of an app's database, and those that its code declares."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._declared: dict[str, NewSchedule] = {}  # in code, by name

    def _declare(self, name: str, expression: str, task: Task[..., Any] | str, options: ScheduleOptions) -> None:
        """Make a schedule of code's known."""
        new = self._made("code", name, expression, task, options)
        if self._declared.get(name, new) != new:
            raise ConfigError(f"schedule {name} is declared twice, not alike; rename one")
        self._declared[name] = new

    def set(
        self, name: str, expression: str, task: Task[..., Any] | str, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Add a schedule, or replace the one of that name. A new one fires at its next time, not at once."""
        from forge.cluster import schedules  # brings croniter, which most programs never need

        return schedules.put(self._app.storage, self._made("runtime", name, expression, task, options))

    def edit(
        self,
        name: str,
        *,
        expression: str | None = None,
        timezone: str | None = None,
        catch_up: CatchUp | None = None,
        jitter: float | None = None,
        queue: str | None = None,
    ) -> Schedule:
        """Change some of what a schedule says. Another time counts from now on."""
        from forge.cluster import schedules

        changes = {"expression": expression, "timezone": timezone, "catch_up": catch_up, "jitter": jitter}
        said: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
        known = schedules.find(self._app.storage, name)
        job = NewJob(UUID(int=0), known.kind, known.payload)
        checked = scheduled(
            job,
            name,
            said.get("expression", known.expression),
            source="runtime",
            timezone=said.get("timezone", known.timezone),
            catch_up=said.get("catch_up", known.catch_up),
            jitter=said.get("jitter", known.jitter),
        )
        said = {key: getattr(checked, key) for key in said}
        if queue is not None:
            said["queue"] = check_name(queue, "queue")
        return schedules.change(self._app.storage, name, **said)

    def list(self) -> Sequence[Schedule]:
        """Every schedule of the database, by name."""
        return self._app.storage.schedules.all()

    def get(self, name: str) -> Schedule:
        """One of them; `UsageError` if there is none."""
        from forge.cluster import schedules

        return schedules.find(self._app.storage, name)

    def pause(self, name: str) -> Schedule:
        """Let it fire no more until it is resumed, whoever declared it."""
        from forge.cluster import schedules

        return schedules.pause(self._app.storage, name)

    def resume(self, name: str) -> Schedule:
        """Let it fire again from its next time on; what has passed meanwhile is not made up for."""
        from forge.cluster import schedules

        return schedules.resume(self._app.storage, name)

    def run_now(self, name: str) -> JobHandle[Any]:
        """Enqueue its job now. Its times stay what they are."""
        from forge.cluster import schedules

        receipt = schedules.run_now(self._app.storage, name)
        return JobHandle(self._app, receipt.id, isinstance(receipt, Deduped))

    def remove(self, name: str, *, declared: bool = False) -> None:
        """Forget one that was set at run time; with `declared`, also one that a file or code declares, or did. It
        is back when a pod that declares it starts."""
        from forge.cluster import schedules

        schedules.remove(self._app.storage, name, declared=declared)

    aset = in_thread(set)
    aedit = in_thread(edit)
    alist = in_thread(list)
    aget = in_thread(get)
    apause = in_thread(pause)
    aresume = in_thread(resume)
    arun_now = in_thread(run_now)
    aremove = in_thread(remove)

    def _made(
        self, source: Source, name: str, expression: str, task: Task[..., Any] | str, options: ScheduleOptions
    ) -> NewSchedule:
        check_options(options, ScheduleOptions, f"schedule {name}")
        about = {key: value for key, value in options.items() if key in JobOptions.__annotations__}
        ours = ("timezone", "catch_up", "jitter", "skip_if_running")
        own: Any = {key: value for key, value in options.items() if key in ours and value is not None}
        job = self._job(task, options, about)
        return scheduled(job, name, expression, source=source, **own)

    def _job(self, task: Task[..., Any] | str, options: ScheduleOptions, about: Any) -> NewJob:
        args, kwargs = builtins.list(options.get("args", ())), dict(options.get("kwargs", {}))
        if options.get("payload") is not None and (args or kwargs):
            raise UsageError("payload and args or kwargs are both given; give one")
        if isinstance(task, Task):
            if "payload" in options:
                raise UsageError(f"{task.kind} is a task: give args and kwargs, not a payload")
            return task.using(**about)._job(tuple(args), kwargs)
        known = self._app.tasks.get(task)
        bare = "payload" in options or (known is not None and known.takes_ctx)
        return self._app.job(task, options.get("payload") if bare else {"args": args, "kwargs": kwargs}, **about)
