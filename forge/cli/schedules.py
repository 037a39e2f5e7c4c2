"""`forge schedules …`: what is enqueued by the clock."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import typing
import zoneinfo
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from forge.app import Forge
from forge.cli.common import Cli, Parser, table, until
from forge.cli.enqueue import app_of, parse_arguments, parse_payload
from forge.cluster import schedules as operating
from forge.cluster.cron import FireTimes
from forge.codec import decode
from forge.errors import ExitCode, UsageError
from forge.job import Deduped
from forge.storage.contract.schedules import CatchUp, Schedule
from forge.worker.modules import known_tasks

__all__ = ["add_commands", "schedules"]

Add = Callable[["argparse._SubParsersAction[Parser]", str, Callable[[Cli], int]], Parser]


def schedules(cli: Cli) -> int:
    """Every schedule: what it says, and when it comes next."""
    storage = cli.storage()
    found = storage.schedules.all()
    if cli.json:
        cli.document([_as_json(schedule) for schedule in found])
    elif not found:
        cli.print("no schedules; add one with `forge schedules add`, or [cron.NAME] in forge.toml")
    else:
        now = storage.now()
        head = ("name", "expression", "zone", "task", "next", "last", "state")
        cli.print(table(head, [_row(schedule, now) for schedule in found]))
    return ExitCode.OK


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


def add(cli: Cli) -> int:
    """Add a schedule, or replace the one of that name if it was added so."""
    args = cli.args
    if args.payload is not None and args.args:
        raise UsageError("give arguments or --payload, not both")
    found = known_tasks(cli.config, flags=cli.flags).get(args.task)
    cli.storage(create=True)
    app = app_of(cli, found, args.task)
    options: Any = _given(args, "timezone", "catch_up", "jitter", "queue", "priority", "max_attempts")
    if args.skip_if_running:
        options["skip_if_running"] = True
    if args.payload is not None:
        options["payload"] = parse_payload(args.payload)
    else:
        options["args"], options["kwargs"] = parse_arguments(args.args)
    task = found.task if found is not None and found.task is not None and args.payload is None else args.task
    return _told(cli, app.schedules.set(args.name, args.expression, task, **options))


def edit(cli: Cli) -> int:
    """Change some of what a schedule says. Another time counts from now on."""
    changes: Any = _given(cli.args, "expression", "timezone", "catch_up", "jitter", "queue")
    if not changes:
        raise UsageError("nothing to change; say --expression, --timezone, --catch-up, --jitter or --queue")
    cli.storage()
    app = cli.closing(Forge(cli.config.database, schema=cli.config.schema))
    return _told(cli, app.schedules.edit(cli.args.name, **changes))


def _given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def pause(cli: Cli) -> int:
    """Let a schedule fire no more until it is resumed, wherever it is declared."""
    return _told(cli, operating.pause(cli.storage(), cli.args.name))


def resume(cli: Cli) -> int:
    """Undo `pause`, or try one again that was disabled. What has passed meanwhile is not made up for."""
    return _told(cli, operating.resume(cli.storage(), cli.args.name))


def run(cli: Cli) -> int:
    """Enqueue a schedule's job now, and print its id. Its times stay what they are."""
    receipt = operating.run_now(cli.storage(), cli.args.name)
    deduped = isinstance(receipt, Deduped)
    if cli.json:
        cli.document({"id": receipt.id, "deduped": deduped})
    else:
        cli.print(receipt.id)
        if deduped:
            cli.note("nothing was stored: that job of the schedule has not ended")
    return ExitCode.OK


def remove(cli: Cli) -> int:
    """Forget a schedule that was added here or by a program; with --declared, one of a file or of code."""
    operating.remove(cli.storage(), cli.args.name, declared=cli.args.declared)
    if cli.json:
        cli.document({"removed": cli.args.name})
    else:
        cli.print(f"{cli.args.name}: removed")
    return ExitCode.OK


def upcoming(cli: Cli) -> int:
    """Show when an expression comes due: on the wall clock of its zone, and in UTC. Nothing is stored."""
    fire_times = FireTimes(cli.args.expression, cli.args.timezone or "UTC")
    start = cli.args.start or datetime.now(UTC)
    if start.tzinfo is None:
        start = start.replace(tzinfo=_zone(cli.args.timezone or "UTC"))
    # A century holds as many as anybody asks for.
    found = list(itertools.islice(fire_times.between(start, start + timedelta(days=36_525)), cli.args.n))
    zone = _zone(cli.args.timezone or "UTC")
    if cli.json:
        cli.document(found)
    else:
        rows = [(f"{at.astimezone(zone):%a %Y-%m-%d %H:%M:%S %z}", f"{at:%Y-%m-%d %H:%M:%S}") for at in found]
        cli.print(table((cli.args.timezone or "UTC", "UTC") if cli.args.timezone else ("time", "UTC"), rows))
    return ExitCode.OK


def _told(cli: Cli, schedule: Schedule) -> int:
    if cli.json:
        cli.document(_as_json(schedule))
    elif schedule.state != "active" or schedule.next_at is None:
        cli.print(f"{schedule.name}: {schedule.state}")
    else:
        cli.print(f"{schedule.name}: next at {_shown(schedule.next_at, schedule)} {schedule.timezone}")
    return ExitCode.OK


def add_commands(add_command: Add, top: argparse._SubParsersAction[Parser]) -> None:
    """`forge schedules` and what can stand behind it."""
    parser = add_command(top, "schedules", schedules)
    below = parser.add_subparsers(metavar="COMMAND", required=False, parser_class=Parser)
    new = add_command(below, "add", add)
    new.add_argument("name", metavar="NAME")
    new.add_argument("expression", metavar="EXPR", help="cron of 5 fields, or 6 with seconds first; in quotes")
    new.add_argument("task", metavar="TASK", help="the task, as `forge tasks` lists it")
    new.add_argument("args", nargs="*", metavar="ARG", help="JSON or text; name=value for a keyword argument")
    new.add_argument("--payload", metavar="JSON", help="the whole payload, instead of arguments")
    new.add_argument("--skip-if-running", action="store_true", help="skip a time while the last job has not ended")
    new.add_argument("--priority", type=int, metavar="N", help="lower runs first")
    new.add_argument("--max-attempts", type=int, metavar="N")
    changed = add_command(below, "edit", edit)
    changed.add_argument("name", metavar="NAME")
    changed.add_argument("--expression", metavar="EXPR")
    for each in (new, changed):
        each.add_argument("--timezone", metavar="ZONE", help="such as Europe/Berlin; default UTC")
        each.add_argument("--queue", metavar="NAME")
        each.add_argument("--catch-up", choices=typing.get_args(CatchUp), help="which missed times are made up for")
        each.add_argument("--jitter", type=float, metavar="SECONDS", help="jobs run up to this long after their time")
    for name, command in (("pause", pause), ("resume", resume), ("run", run), ("remove", remove)):
        made = add_command(below, name, command)
        made.add_argument("name", metavar="NAME")
        if command is remove:
            made.add_argument("--declared", action="store_true", help="also if a file or code declares it, or did")
    shown = add_command(below, "next", upcoming)
    shown.add_argument("expression", metavar="EXPR")
    shown.add_argument("--timezone", metavar="ZONE")
    shown.add_argument("-n", type=int, default=5, metavar="N", help="how many; default 5")
    shown.add_argument("--from", dest="start", type=datetime.fromisoformat, metavar="TIME", help="default: now")
