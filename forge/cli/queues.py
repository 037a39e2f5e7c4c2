"""`forge queues`, `forge queue …` and `forge prune`: what operators set, and how full the queues are."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any

from forge.cli.common import Cli, duration, table, until
from forge.codec import check_name
from forge.config import QUEUE_KEYS, suggest
from forge.errors import ExitCode, UsageError
from forge.job import Counts, QueueSettings, Status

__all__ = ["pause", "prune", "queues", "resume", "set_queue"]

_TYPES = typing.get_type_hints(QueueSettings)
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def queues(cli: Cli) -> int:
    """Every queue that has settings or jobs."""
    storage = cli.storage()
    settings, live, ended = storage.queues(), storage.counts(), storage.ended_counts()
    names = sorted({*settings, *live, *ended})
    unserved = storage.shares.undeclared()
    if cli.json:
        found = [_as_json(n, settings.get(n), live.get(n, Counts()), ended.get(n, {})) for n in names]
        cli.document([each | {"served": each["name"] not in unserved} for each in found])
        return ExitCode.OK
    if not names:
        cli.print("no queues; they appear with the first job or `forge queue set NAME …`")
        return ExitCode.OK
    now = storage.now()
    head = (
        "queue",
        "workers",
        "pending",
        "scheduled",
        "running",
        "failed",
        "done",
        "dead",
        "cancelled",
        "oldest",
        "state",
    )
    rows = [_row(settings.get(n) or QueueSettings(n), live.get(n, Counts()), ended.get(n, {}), now) for n in names]
    said = [(*row[:-1], f"{row[-1]}, nobody serves it" if row[0] in unserved else row[-1]) for row in rows]
    cli.print(table(head, said))
    return ExitCode.OK


def _as_json(name: str, settings: QueueSettings | None, live: Counts, ended: dict[Status, int]) -> dict[str, Any]:
    found = dataclasses.asdict(settings or QueueSettings(name))
    return found | {"counts": dataclasses.asdict(live) | {str(s): ended.get(s, 0) for s in _ENDED}}


_ENDED = (Status.DONE, Status.DEAD, Status.CANCELLED)


def _row(settings: QueueSettings, live: Counts, ended: dict[Status, int], now: float) -> tuple[object, ...]:
    state = "paused" if settings.paused else ""
    if settings.throttled_until and settings.throttled_until.timestamp() > now:
        state = f"{state} cooling down, again {until(settings.throttled_until, now)}".strip()
    oldest = duration(live.oldest_pending_age) if live.oldest_pending_age else "-"
    return (
        *(settings.name, settings.max_workers),
        *(live.pending, live.scheduled, live.in_progress, live.failed),
        *(ended.get(status, 0) for status in _ENDED),
        *(oldest, state or "open"),
    )


def set_queue(cli: Cli) -> int:
    """Change settings given as key=value."""
    changes = parse_settings(cli.args.settings)
    return _changed(cli, cli.storage(create=True).set_queue(check_name(cli.args.name, "queue"), **changes))


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """`max_workers=4` and so on, each value of its setting's type."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(f"{pair} is not of the form key=value")
        if key not in QUEUE_KEYS:
            raise UsageError(f"a queue has no setting {key}{suggest(key, QUEUE_KEYS)}")
        found[key] = _value(key, text)
    return found


def _value(key: str, text: str) -> Any:
    kind = _TYPES[key]
    if kind is bool:
        if text.lower() not in _WORDS:
            raise UsageError(f"{key} is true or false, not {text}")
        return _WORDS[text.lower()]
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise UsageError(f"{key} is a {'whole ' if kind is int else ''}number, not {text}") from None
    if text not in typing.get_args(kind):
        raise UsageError(f"{key} is {' or '.join(typing.get_args(kind))}, not {text}")
    return text


def pause(cli: Cli) -> int:
    """Claim nothing from a queue until it is resumed; what runs goes on."""
    return _changed(cli, cli.storage(create=True).set_queue(check_name(cli.args.name, "queue"), paused=True))


def resume(cli: Cli) -> int:
    """Undo `pause`."""
    return _changed(cli, cli.storage(create=True).set_queue(check_name(cli.args.name, "queue"), paused=False))


def _changed(cli: Cli, settings: QueueSettings) -> int:
    if cli.json:
        cli.document(settings)
    else:
        cli.print(f"{settings.name}: " + " ".join(f"{key}={_shown(getattr(settings, key))}" for key in QUEUE_KEYS))
    return ExitCode.OK


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def prune(cli: Cli) -> int:
    """Delete ended jobs that are past their queue's retention, in small batches."""
    storage = cli.storage()
    walked = deleted = 0
    after: str | None = None
    while True:
        batch = storage.prune(cli.args.batch, after)
        walked, deleted, after = walked + batch.walked, deleted + batch.deleted, batch.after
        if after is None:
            break
    if cli.json:
        cli.document({"looked_at": walked, "deleted": deleted})
    else:
        cli.print(f"deleted {deleted} of {walked} ended jobs old enough to look at")
    return ExitCode.OK
