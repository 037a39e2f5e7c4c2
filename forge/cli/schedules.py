"""`forge schedules …`: what is enqueued by the clock."""

from __future__ import annotations

import dataclasses
import itertools
import typing
import zoneinfo
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from forge.app import Forge
from forge.cli.command import NUMBER, WHOLE, Group, OneOf, TaskCommand, read
from forge.cli.common import Cli, until
from forge.cli.enqueue import app_of, check_one_payload, parse_arguments, parse_payload
from forge.cluster import schedules as operating
from forge.cluster.cron import FireTimes
from forge.codec import decode
from forge.errors import UsageError
from forge.job import Deduped
from forge.storage.contract.schedules import CatchUp, Schedule
from forge.worker.modules import known_tasks

__all__ = ["schedules"]

HEAD = ("name", "expression", "zone", "task", "next", "last", "state")
NAME = click.argument("name", metavar="NAME")
ZONE = click.option("--timezone", metavar="ZONE", help="such as Europe/Berlin; default UTC")
QUEUE = click.option("--queue", metavar="NAME")
CATCH_UP = click.option("--catch-up", type=OneOf(typing.get_args(CatchUp)), help="which missed times are made up for")
JITTER = click.option("--jitter", type=NUMBER, metavar="SECONDS", help="jobs run up to this long after their time")


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def schedules(ctx: click.Context) -> None:
    """Every schedule: what it says, and when it comes next."""
    if ctx.invoked_subcommand is None:
        _list(ctx.obj)


def _list(cli: Cli) -> None:
    storage = cli.storage()
    found = storage.schedules.all()
    now, none = storage.now(), "no schedules; add one with `forge schedules add`, or [cron.NAME] in forge.toml"
    cli.listing([_as_json(schedule) for schedule in found], HEAD, (_row(schedule, now) for schedule in found), none)


def _row(schedule: Schedule, now: float) -> tuple[object, ...]:
    active = schedule.next_at is not None and schedule.state == "active"
    upcoming = f"{_shown(schedule.next_at, schedule)}  {until(schedule.next_at, now)}" if active else "-"  # type: ignore[arg-type]
    last = _shown(schedule.last_fire_time, schedule) if schedule.last_fire_time else "-"
    return (
        *(schedule.name, schedule.expression, schedule.timezone, schedule.kind, upcoming),
        f"{last}  skipped" if schedule.last_skipped else last,
        schedule.state,
    )


def _shown(at: datetime, schedule: Schedule) -> str:
    """As the wall clock of its zone shows it."""
    return f"{at.astimezone(_zone(schedule.timezone)):%Y-%m-%d %H:%M:%S}"


def _zone(name: str) -> Any:
    try:
        return zoneinfo.ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        return UTC


def _as_json(schedule: Schedule) -> dict[str, Any]:
    found = dataclasses.asdict(schedule)
    return found | {"payload": decode(schedule.payload), "state": schedule.state}


@schedules.command(cls=TaskCommand)
@NAME
@click.argument("expression", metavar="EXPR")
@click.argument("task", metavar="TASK")
@click.argument("args", metavar="[ARG]...", nargs=-1)
@click.option("--payload", metavar="JSON", help="the whole payload, instead of arguments")
@click.option("--skip-if-running", is_flag=True, default=None, help="skip a time while the last job has not ended")
@click.option("--priority", type=WHOLE, metavar="N", help="lower runs first")
@click.option("--max-attempts", type=WHOLE, metavar="N")
@ZONE
@QUEUE
@CATCH_UP
@JITTER
def add(
    cli: Cli, name: str, expression: str, task: str, args: Sequence[str], payload: str | None, **options: Any
) -> None:
    """Add a schedule, or replace the one of that name if it was added so.

    EXPR is cron of 5 fields, or 6 with seconds first; in quotes. TASK is a task, as `forge tasks` lists it. An ARG is
    JSON or text; name=value for a keyword argument.
    """
    check_one_payload(args, payload)
    found = known_tasks(cli.config, flags=cli.flags).get(task)
    cli.storage(create=True)
    app = app_of(cli, found, task)
    given: Any = _given(options)
    if payload is not None:
        given["payload"] = parse_payload(payload)
    else:
        given["args"], given["kwargs"] = parse_arguments(args)
    checked = found.task if found is not None and payload is None else None
    _tell(cli, app.schedules.set(name, expression, checked or task, **given))


@schedules.command()
@NAME
@click.option("--expression", metavar="EXPR")
@ZONE
@QUEUE
@CATCH_UP
@JITTER
def edit(cli: Cli, name: str, **options: Any) -> None:
    """Change some of what a schedule says. Another time counts from now on."""
    changes: Any = _given(options)
    if not changes:
        raise UsageError("nothing to change; say --expression, --timezone, --catch-up, --jitter or --queue")
    cli.storage()
    app = cli.closing(Forge(cli.config.database, schema=cli.config.schema))
    _tell(cli, app.schedules.edit(name, **changes))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@schedules.command()
@NAME
def pause(cli: Cli, name: str) -> None:
    """Let a schedule fire no more until it is resumed, wherever it is declared."""
    _tell(cli, operating.pause(cli.storage(), name))


@schedules.command()
@NAME
def resume(cli: Cli, name: str) -> None:
    """Undo `pause`, or try one again that was disabled. What has passed meanwhile is not made up for."""
    _tell(cli, operating.resume(cli.storage(), name))


@schedules.command()
@NAME
def run(cli: Cli, name: str) -> None:
    """Enqueue a schedule's job now, and print its id. Its times stay what they are."""
    receipt = operating.run_now(cli.storage(), name)
    deduped = isinstance(receipt, Deduped)
    cli.answer({"id": receipt.id, "deduped": deduped}, str(receipt.id))
    if deduped and not cli.json:
        cli.note("nothing was stored: that job of the schedule has not ended")


@schedules.command()
@NAME
@click.option("--declared", is_flag=True, help="also if a file or code declares it, or did")
def remove(cli: Cli, name: str, declared: bool) -> None:
    """Forget a schedule that was added here or by a program; with --declared, one of a file or of code."""
    operating.remove(cli.storage(), name, declared=declared)
    cli.answer({"removed": name}, f"{name}: removed")


@schedules.command("next")
@click.argument("expression", metavar="EXPR")
@click.option("--timezone", metavar="ZONE")
@click.option("-n", type=WHOLE, default=5, metavar="N", help="how many; default 5")
@click.option("--from", "start", type=read(datetime.fromisoformat), metavar="TIME", help="default: now")
def upcoming(cli: Cli, expression: str, timezone: str | None, n: int, start: datetime | None) -> None:
    """Show when an expression comes due: on the wall clock of its zone, and in UTC. Nothing is stored."""
    fire_times, zone = FireTimes(expression, timezone or "UTC"), _zone(timezone or "UTC")
    start = start or datetime.now(UTC)
    if start.tzinfo is None:
        start = start.replace(tzinfo=zone)
    # A century holds as many as anybody asks for.
    found = list(itertools.islice(fire_times.between(start, start + timedelta(days=36_525)), n))
    rows = [(f"{at.astimezone(zone):%a %Y-%m-%d %H:%M:%S %z}", f"{at:%Y-%m-%d %H:%M:%S}") for at in found]
    cli.listing(found, (timezone or "time", "UTC"), rows)


def _tell(cli: Cli, schedule: Schedule) -> None:
    text = schedule.state
    if schedule.state == "active" and schedule.next_at is not None:
        text = f"next at {_shown(schedule.next_at, schedule)} {schedule.timezone}"
    cli.answer(_as_json(schedule), f"{schedule.name}: {text}")
