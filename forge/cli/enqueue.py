"""`forge enqueue KIND …`: a job from the shell, checked like one from a program."""

from __future__ import annotations

import argparse
import os
from typing import Any

import orjson

from forge.app import Forge, JobHandle
from forge.app.line_rules import LINE_OPTIONS
from forge.cli.common import Cli
from forge.errors import ExitCode, UsageError
from forge.job import ACTIVE
from forge.worker.bindings import bound_elsewhere
from forge.worker.modules import Found, known_tasks

__all__ = ["app_of", "enqueue", "parse_arguments", "parse_payload"]


def enqueue(cli: Cli) -> int:
    """Store one job and print its id; with --wait, its result instead."""
    if cli.args.payload is not None and cli.args.args:
        raise UsageError("give arguments or --payload, not both")
    found = known_tasks(cli.config, flags=cli.flags).get(cli.args.kind)
    cli.storage(create=True)
    handle = _known(cli, found) if found else _unknown(cli)
    if cli.args.wait:
        return _wait(cli, handle)
    if cli.json:
        cli.document({"id": handle.id, "deduped": handle.deduped})
    else:
        cli.print(handle.id)
        if handle.deduped:
            cli.note("nothing was stored: that job has the dedupe key")
    return ExitCode.OK


def _known(cli: Cli, found: Found) -> JobHandle[Any]:
    """Through the task itself, so that its signature is checked and its options hold."""
    app_of(cli, found, cli.args.kind)
    options = _options(cli.args)
    if cli.args.payload is not None or found.handler.takes_ctx or found.task is None:
        return found.app.enqueue(cli.args.kind, _payload(cli, bare=found.handler.takes_ctx), **options)
    args, kwargs = parse_arguments(cli.args.args)
    handle: JobHandle[Any] = found.task.using(**options).enqueue(*args, **kwargs)
    return handle


def _unknown(cli: Cli) -> JobHandle[Any]:
    """A kind of some other program's: no modules are configured, so nothing is known about it."""
    app = app_of(cli, None, cli.args.kind)
    return app.enqueue(cli.args.kind, _payload(cli, bare=False), **_options(cli.args))


def app_of(cli: Cli, found: Found | None, kind: str) -> Forge:
    """The app that a kind is enqueued through: its own, which must mean the command's database, or a plain one."""
    if found is None:
        config = cli.config
        return cli.closing(Forge(config.database, schema=config.schema, max_payload=config.max_payload))
    cli.closing(found.app)
    if (wrong := bound_elsewhere(found.app, kind, cli.config)) is not None:
        raise UsageError(wrong)
    return found.app


def _payload(cli: Cli, *, bare: bool) -> Any:
    """What --payload says, else the arguments: as a task takes them, or for a plain handler as one JSON object."""
    if cli.args.payload is not None:
        return parse_payload(cli.args.payload)
    args, kwargs = parse_arguments(cli.args.args)
    if not bare:
        return {"args": args, "kwargs": kwargs}
    if args:
        raise UsageError(f"{cli.args.kind} takes a payload: give key=value arguments, or --payload JSON")
    return kwargs


def parse_payload(text: str) -> Any:
    """What --payload says."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as e:
        raise UsageError(f"--payload is not JSON: {e}") from None


def parse_arguments(words: list[str]) -> tuple[list[Any], dict[str, Any]]:
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


def _options(args: argparse.Namespace) -> Any:
    """The options that were given, as `using` and `enqueue` take them."""
    names = ("queue", "delay", "priority", "max_attempts", "dedupe_key", "unique_for", *LINE_OPTIONS)
    given: dict[str, Any] = {name: value for name in names if (value := getattr(args, name)) is not None}
    if args.tag:
        given["tags"] = args.tag
    if args.job_timeout is not None:
        given["timeout"] = args.job_timeout
    return given


def _wait(cli: Cli, handle: JobHandle[Any]) -> int:
    _say_if_nobody_serves(cli, handle)
    result = handle.result(timeout=cli.args.timeout)
    if cli.json:
        cli.document({"id": handle.id, "result": result})
    else:
        cli.print(orjson.dumps(result).decode() if not isinstance(result, str) else result)
    return ExitCode.OK


def _say_if_nobody_serves(cli: Cli, handle: JobHandle[Any]) -> None:
    """Who waits should know that it may be for ever."""
    job = handle.job()
    if job.status in ACTIVE and not any(job.queue in pod.queues for pod in cli.storage().pods()):
        start = f"forge-master -c {os.path.relpath(cli.config.path)}" if cli.config.path else "forge-master"
        cli.note(f"waiting, but nobody serves the queue {job.queue}; in another terminal: {start}")


def add_options(sub: argparse.ArgumentParser) -> None:
    """Of `forge enqueue`."""
    sub.add_argument("kind", metavar="KIND", help="the task, as `forge tasks` lists it")
    sub.add_argument("args", nargs="*", metavar="ARG", help="JSON or text; name=value for a keyword argument")
    sub.add_argument("--payload", metavar="JSON", help="the whole payload, instead of arguments")
    sub.add_argument("--queue", metavar="NAME")
    sub.add_argument("--delay", type=float, metavar="SECONDS", help="not before this many seconds from now")
    sub.add_argument("--priority", type=int, metavar="N", help="lower runs first")
    sub.add_argument("--max-attempts", type=int, metavar="N")
    sub.add_argument("--job-timeout", type=int, metavar="SECONDS", help="how long the handler may take")
    sub.add_argument("--dedupe-key", metavar="KEY", help="store nothing while another active job has this key")
    sub.add_argument("--unique-for", type=int, metavar="SECONDS", help="the key stays taken this long after the end")
    sub.add_argument("--partition-by", metavar="NAME", help="whose job this is: takes turns with those of others")
    sub.add_argument("--concurrency", metavar="[KEY:]N", help="run at most N of this kind at once, or of this key")
    sub.add_argument("--rate-limit", metavar="BUDGET", help="take a token of this budget first")
    sub.add_argument("--tag", action="append", metavar="TAG", help="may be repeated")
    sub.add_argument("--wait", action="store_true", help="wait for the job to end and print its result")
    sub.add_argument("--timeout", type=float, metavar="SECONDS", help="with --wait: give up after this long")
