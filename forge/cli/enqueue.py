"""`forge enqueue KIND …`: a job from the shell, checked like one from a program."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click
import orjson

from forge.app import Forge, JobHandle
from forge.cli.command import NUMBER, WHOLE, TaskCommand
from forge.cli.common import Cli
from forge.errors import UsageError
from forge.job import ACTIVE
from forge.worker.bindings import bound_elsewhere
from forge.worker.modules import Found, known_tasks

__all__ = ["app_of", "check_one_payload", "enqueue", "parse_arguments", "parse_payload"]


@click.command(cls=TaskCommand)
@click.argument("kind", metavar="KIND")
@click.argument("args", metavar="[ARG]...", nargs=-1)
@click.option("--payload", metavar="JSON", help="the whole payload, instead of arguments")
@click.option("--queue", metavar="NAME")
@click.option("--delay", type=NUMBER, metavar="SECONDS", help="not before this many seconds from now")
@click.option("--priority", type=WHOLE, metavar="N", help="lower runs first")
@click.option("--max-attempts", type=WHOLE, metavar="N")
@click.option("--job-timeout", "timeout", type=WHOLE, metavar="SECONDS", help="how long the handler may take")
@click.option("--dedupe-key", metavar="KEY", help="store nothing while another active job has this key")
@click.option("--unique-for", type=WHOLE, metavar="SECONDS", help="the key stays taken this long after the end")
@click.option("--partition-by", metavar="NAME", help="whose job this is: takes turns with those of others")
@click.option("--concurrency", metavar="[KEY:]N", help="run at most N of this kind at once, or of this key")
@click.option("--rate-limit", metavar="BUDGET", help="take a token of this budget first")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="may be repeated")
@click.option("--wait", is_flag=True, help="wait for the job to end and print its result")
@click.option("--timeout", "patience", type=NUMBER, metavar="SECONDS", help="with --wait: give up after this long")
def enqueue(
    cli: Cli, kind: str, args: Sequence[str], payload: str | None, wait: bool, patience: float | None, **options: Any
) -> None:
    """Store one job and print its id; with --wait, its result instead.

    KIND is a task, as `forge tasks` lists it. An ARG is JSON or text; name=value for a keyword argument.
    """
    check_one_payload(args, payload)
    found = known_tasks(cli.config, flags=cli.flags).get(kind)
    cli.storage(create=True)
    # The options that were given, as `using` and `enqueue` take them.
    given = {name: value for name, value in options.items() if value not in (None, ())}
    handle = _stored(app_of(cli, found, kind), found, kind, args, payload, given)
    if wait:
        _wait(cli, handle, patience)
        return
    cli.answer({"id": handle.id, "deduped": handle.deduped}, str(handle.id))
    if handle.deduped and not cli.json:
        cli.note("nothing was stored: that job has the dedupe key")


def _stored(
    app: Forge, found: Found | None, kind: str, words: Sequence[str], payload: str | None, options: Any
) -> JobHandle[Any]:
    """Through the task itself where there is one, so that its signature is checked and its options hold."""
    if payload is not None:
        return app.enqueue(kind, parse_payload(payload), **options)
    args, kwargs = parse_arguments(words)
    if found is not None and found.handler.takes_ctx:  # a plain handler takes one JSON object
        if args:
            raise UsageError(f"{kind} takes a payload: give key=value arguments, or --payload JSON")
        return app.enqueue(kind, kwargs, **options)
    if found is None or found.task is None:
        return app.enqueue(kind, {"args": args, "kwargs": kwargs}, **options)
    handle: JobHandle[Any] = found.task.using(**options).enqueue(*args, **kwargs)
    return handle


def check_one_payload(words: Sequence[str], payload: str | None) -> None:
    """Refuse arguments beside a whole payload."""
    if payload is not None and words:
        raise UsageError("give arguments or --payload, not both")


def app_of(cli: Cli, found: Found | None, kind: str) -> Forge:
    """The app that a kind is enqueued through: its own, which must mean the command's database, or a plain one."""
    if found is None:
        config = cli.config
        return cli.closing(Forge(config.database, schema=config.schema, max_payload=config.max_payload))
    cli.closing(found.app)
    if (wrong := bound_elsewhere(found.app, kind, cli.config)) is not None:
        raise UsageError(wrong)
    return found.app


def parse_payload(text: str) -> Any:
    """What --payload says."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as e:
        raise UsageError(f"--payload is not JSON: {e}") from None


def parse_arguments(words: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """`2 3 unit=cm` as arguments of a call. A word is JSON if it reads as JSON, else text."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if equals and name.isidentifier():
            if name in kwargs:
                raise UsageError(f"argument {name} is given twice")
            kwargs[name] = _value(text)
        elif kwargs:
            raise UsageError(f"argument {word} stands behind {next(iter(kwargs))}=…; put plain arguments first")
        else:
            args.append(_value(word))
    return args, kwargs


def _value(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _wait(cli: Cli, handle: JobHandle[Any], patience: float | None) -> None:
    _say_if_nobody_serves(cli, handle)
    result = handle.result(timeout=patience)
    text = result if isinstance(result, str) else orjson.dumps(result).decode()
    cli.answer({"id": handle.id, "result": result}, text)


def _say_if_nobody_serves(cli: Cli, handle: JobHandle[Any]) -> None:
    """Who waits should know that it may be for ever."""
    job = handle.job()
    if job.status in ACTIVE and not any(job.queue in pod.queues for pod in cli.storage().pods()):
        start = f"forge-master -c {os.path.relpath(cli.config.path)}" if cli.config.path else "forge-master"
        cli.note(f"waiting, but nobody serves the queue {job.queue}; in another terminal: {start}")
