"""`forge queues`, `forge queue …` and `forge prune`: what operators set, and how full the queues are."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any

import click

from forge.cli.command import WHOLE, Command, Group
from forge.cli.common import Cli, duration, progress, until
from forge.codec import check_name
from forge.config import QUEUE_KEYS, suggest
from forge.errors import UsageError
from forge.job import Counts, QueueSettings, Status

__all__ = ["age", "prune", "queue", "queues", "state"]

HEAD = ("queue", "workers", "pending", "scheduled", "running", "failed", "done", "dead", "cancelled", "oldest", "state")
_TYPES = typing.get_type_hints(QueueSettings)
_ENDED = (Status.DONE, Status.DEAD, Status.CANCELLED)
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@click.command(cls=Command)
def queues(cli: Cli) -> None:
    """Every queue that has settings or jobs."""
    storage = cli.storage()
    settings, live, ended, now = storage.queues(), storage.counts(), storage.ended_counts(), storage.now()
    unserved = storage.shares.undeclared()
    document, rows = [], []
    for name in sorted({*settings, *live, *ended}):
        of, counts, past = settings.get(name) or QueueSettings(name), live.get(name, Counts()), ended.get(name, {})
        all_counts = dataclasses.asdict(counts) | {str(status): past.get(status, 0) for status in _ENDED}
        document.append(dataclasses.asdict(of) | {"counts": all_counts, "served": name not in unserved})
        alone = ", nobody serves it" if name in unserved else ""
        rows.append((
            *(name, of.max_workers, counts.pending, counts.scheduled, counts.in_progress, counts.failed),
            *(past.get(status, 0) for status in _ENDED),
            *(age(counts), f"{state(of, now)}{alone}"),
        ))  # fmt: skip
    cli.listing(document, HEAD, rows, "no queues; they appear with the first job or `forge queue set NAME …`")


def age(counts: Counts) -> str:
    """Of the oldest job that waits."""
    return duration(counts.oldest_pending_age) if counts.oldest_pending_age else "-"


def state(settings: QueueSettings, now: float) -> str:
    """`open`, `paused`, `cooling down, again in 4 s`"""
    words = ["paused"] if settings.paused else []
    if settings.throttled_until and settings.throttled_until.timestamp() > now:
        words.append(f"cooling down, again {until(settings.throttled_until, now)}")
    return " ".join(words) or "open"


@click.group(cls=Group)
def queue() -> None:
    """Change one queue's settings."""


@queue.command(
    "set",
    short_help="Change settings given as key=value.",
    help=f"Change settings given as key=value: {', '.join(QUEUE_KEYS)}.",
)
@click.argument("name", metavar="NAME")
@click.argument("settings", metavar="KEY=VALUE...", nargs=-1, required=True)
def set_queue(cli: Cli, name: str, settings: Sequence[str]) -> None:
    _change(cli, name, parse_settings(settings))


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


@queue.command()
@click.argument("name", metavar="NAME")
def pause(cli: Cli, name: str) -> None:
    """Claim nothing from a queue until it is resumed; what runs goes on."""
    _change(cli, name, {"paused": True})


@queue.command()
@click.argument("name", metavar="NAME")
def resume(cli: Cli, name: str) -> None:
    """Undo `pause`."""
    _change(cli, name, {"paused": False})


def _change(cli: Cli, name: str, changes: dict[str, Any]) -> None:
    settings = cli.storage(create=True).set_queue(check_name(name, "queue"), **changes)
    shown = " ".join(f"{key}={_shown(getattr(settings, key))}" for key in QUEUE_KEYS)
    cli.answer(settings, f"{settings.name}: {shown}")


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


@click.command(cls=Command)
@click.option("--batch", type=WHOLE, default=1000, metavar="N", help="rows in one transaction; default 1000")
def prune(cli: Cli, batch: int) -> None:
    """Delete ended jobs that are past their queue's retention, in small batches."""
    storage = cli.storage()
    walked = deleted = 0
    after: str | None = None
    with progress("pruning") as say:
        while True:
            done = storage.prune(batch, after)
            walked, deleted, after = walked + done.walked, deleted + done.deleted, done.after
            if after is None:
                break
            say(f"{deleted} of {walked} ended jobs deleted")
    text = f"deleted {deleted} of {walked} ended jobs old enough to look at"
    cli.answer({"looked_at": walked, "deleted": deleted}, text)
