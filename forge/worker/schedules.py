"""The schedules that `forge.toml` and the modules declare, ready to be stored. The master, which imports no user code,
is told of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forge.app.schedules import scheduled
from forge.codec import encode_payload
from forge.config import Config, CronConfig, suggest
from forge.errors import ConfigError, UsageError
from forge.fastpath import uuid7
from forge.job import NewJob
from forge.storage.contract.schedules import NewSchedule
from forge.worker.builtin import BUILTIN
from forge.worker.modules import Known

__all__ = ["declared"]


def declared(config: Config, known: Known) -> tuple[list[NewSchedule], list[str]]:
    """Every schedule, by name, and what is to be said about them. Where both have one name, the configuration wins."""
    found: dict[str, NewSchedule] = {}
    remarks: list[str] = []
    for app in known.apps:
        for name, new in app.schedules._declared.items():
            if found.get(name, new) != new:
                raise ConfigError(f"two apps declare the schedule {name}; rename one")
            found[name] = new
    for name, about in config.cron.items():
        if name in found:
            remarks.append(f"schedule {name} is declared in code and as [cron.{name}]; the latter counts")
        try:
            found[name] = scheduled(
                _job(name, about, config, known, remarks),
                name,
                about.schedule,
                source="config",
                timezone=about.timezone,
                catch_up=about.catch_up,
                jitter=about.jitter,
                skip_if_running=about.skip_if_running,
            )
        except UsageError as e:
            raise ConfigError(f"cron.{name}: {e}") from None
    return [found[name] for name in sorted(found)], remarks


def _job(name: str, about: CronConfig, config: Config, known: Known, remarks: list[str]) -> NewJob:
    """The job that it enqueues: with the task's own options, checked by its signature, if the task is known here."""
    kind = about.task or about.kind
    assert kind is not None
    options: Any = {"queue": about.queue} if about.queue else {}
    here = known.kinds.get(kind)
    is_task = here is not None and here.task is not None
    called = about.task is not None or about.args is not None or (is_task and about.payload is None)
    payload = _call(about) if called else about.payload
    if here is not None and here.task is not None and called:
        return here.task.using(**options)._job(tuple(payload["args"]), dict(payload["kwargs"]))
    if here is not None:
        return here.app.job(kind, payload, **options)
    if about.task is not None and kind not in BUILTIN:
        near = suggest(kind, known.kinds, show=0)
        remarks.append(f"cron.{name}: no task {kind} in the modules{near or '; it is enqueued all the same'}")
    data = encode_payload(payload, limit=config.max_payload)
    return NewJob(uuid7(), kind, data, about.queue or "default")


def _call(about: CronConfig) -> dict[str, Any]:
    if about.payload is not None and not isinstance(about.payload, Mapping):
        raise UsageError("the payload of a task is a table of its named arguments")
    return {"args": list(about.args or ()), "kwargs": dict(about.payload or {})}
