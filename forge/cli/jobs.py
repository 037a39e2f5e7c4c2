"""`forge show`, `forge jobs`, and the verbs an operator has for single jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import click
import orjson

from forge.cli.command import WHOLE, Command, OneOf
from forge.cli.common import Cli, duration, find_job, until
from forge.errors import ExitCode, UsageError
from forge.job import Job, JobFilter, Status
from forge.redaction import redact_job

__all__ = ["cancel", "delete", "jobs", "requeue", "retry", "show"]

HEAD = ("id", "kind", "queue", "status", "attempt", "when", "error")
IDS = click.argument("id", metavar="ID...", nargs=-1, required=True)


@click.command(cls=Command)
@click.argument("id", metavar="ID")
@click.option("-v", "--verbose", is_flag=True, help="everything about it, with tracebacks")
def show(cli: Cli, id: str, verbose: bool) -> None:
    """One job: where it stands, its last error, and what can be typed next.

    ID is an id, or its first 8 or more digits.
    """
    storage = cli.storage()
    job = redact_job(find_job(storage, id), cli.config.redact)
    lines = [headline(job, storage.now()), *(_details(job) if verbose else ())]
    if commands := _next(job):
        lines.append("next:  " + " | ".join(f"forge {verb} {job.id}" for verb in commands))
    cli.answer(job, "\n".join(lines))


def headline(job: Job, now: float) -> str:
    """`tasks.flaky  failed, attempt 2 of 5, again in 4 s   ValueError: no luck  (tasks.py:9 in flaky)`"""
    said = [str(job.status), f"attempt {job.attempts} of {job.max_attempts}"]
    if job.status is Status.FAILED:
        said.append(f"again {until(job.run_at, now)}")
    elif job.status is Status.PENDING:
        said.append(f"due {until(job.run_at, now)}")
    elif job.status is Status.IN_PROGRESS and job.claimed_at:
        said.append(f"for {duration(now - job.claimed_at.timestamp())}")
        said += _progress(job)
        said += ["cancel requested"] if job.cancel_requested_at else []
    elif job.finished_at and job.claimed_at:
        said.append(f"took {duration((job.finished_at - job.claimed_at).total_seconds())}")
    line = f"{job.kind}  {', '.join(said)}"
    if job.status is Status.DONE:
        return line if job.result is None else f"{line}   {_json(job.result)}"
    return f"{line}   {_last_error(job)}".rstrip()


def _progress(job: Job) -> list[str]:
    """`40 % done (page 2 of 5)`, if the handler has said so."""
    if job.progress is None:
        return []
    message = job.progress.get("message")
    return [f"{job.progress['percent']:g} % done" + (f" ({message})" if message else "")]


def _last_error(job: Job) -> str:
    if not job.errors:
        return ""
    message = str(job.errors[-1]["message"]).splitlines() or [""]
    place = _place(job.errors[-1].get("traceback") or "")
    return f"{message[0]}  ({place})" if place else message[0]


def _place(traceback: str) -> str:
    """Where the error was raised: the innermost line that is not a library's."""
    frames = re.findall(r'^ +File "([^"]+)", line (\d+), in (\S+)$', traceback, re.MULTILINE)
    own = [f for f in frames if "site-packages" not in f[0] and not re.search(r"/lib/python3\.\d+/", f[0])]
    if not frames:
        return ""
    file, line, function = (own or frames)[-1]
    return f"{file.rpartition('/')[2]}:{line} in {function}"


def _details(job: Job) -> list[str]:
    shown: dict[str, Any] = {
        "id": job.id,
        "queue": job.queue,
        "priority": job.priority,
        "payload": _json(job.payload),
        "enqueued": f"{job.enqueued_at:%Y-%m-%d %H:%M:%S} UTC",
        "run at": f"{job.run_at:%Y-%m-%d %H:%M:%S} UTC",
        "timeout": f"{job.timeout} s",
    }
    if job.finished_at:
        shown["finished"] = f"{job.finished_at:%Y-%m-%d %H:%M:%S} UTC"
    if job.dedupe_key:
        shown["dedupe key"] = job.dedupe_key
    if job.line:
        limit = f", {job.line.concurrency} at once" if job.line.concurrency else ""
        shown["line"] = f"{job.line.name}{limit}"
    if job.tags:
        shown["tags"] = ", ".join(job.tags)
    if job.crashes:
        shown["crashes"] = job.crashes
    lines = [f"  {name:<10}  {value}" for name, value in shown.items()]
    for error in job.errors:
        lines.append(f"  attempt {error['attempt']} at {error['at']}: {error['message']}")
        lines += [f"    {line}" for line in str(error.get("traceback") or "").splitlines()]
    return lines


def _next(job: Job) -> tuple[str, ...]:
    match job.status:
        case Status.FAILED:
            return ("retry", "cancel")
        case Status.PENDING | Status.IN_PROGRESS:
            return ("cancel",)
        case Status.DEAD | Status.CANCELLED:
            return ("retry", "delete")
    return ()


@click.command(cls=Command)
@click.option("--status", multiple=True, type=OneOf([str(s) for s in Status]), help="may be repeated")
@click.option("--queue", multiple=True, metavar="NAME", help="may be repeated")
@click.option("--kind", multiple=True, metavar="KIND", help="may be repeated")
@click.option("--tag", metavar="TAG")
@click.option("--limit", type=WHOLE, default=50, metavar="N", help="default 50")
@click.option("--cursor", metavar="TEXT", help="continue where a listing said there was more")
def jobs(
    cli: Cli,
    status: Sequence[str],
    queue: Sequence[str],
    kind: Sequence[str],
    tag: str | None,
    limit: int,
    cursor: str | None,
) -> None:
    """A page of jobs, newest first."""
    where = JobFilter(frozenset(map(Status, status)), queue, kind, tag)
    if not 1 <= limit <= 10_000:
        raise UsageError("--limit takes 1 to 10000")
    storage = cli.storage()
    page = storage.find(where, limit=limit, cursor=cursor)
    now = storage.now()
    found = [redact_job(job, cli.config.redact) for job in page.jobs]
    cli.listing({"jobs": found, "cursor": page.cursor}, HEAD, (_row(job, now) for job in found), "no jobs")
    if page.cursor and not cli.json:
        cli.note(f"more:  --cursor {page.cursor}")


def _row(job: Job, now: float) -> tuple[str, ...]:
    if job.finished_at:
        when = f"{duration(now - job.finished_at.timestamp())} ago"
    elif job.claimed_at:
        when = f"for {duration(now - job.claimed_at.timestamp())}"
    else:
        when = until(job.run_at, now)
    error = "" if job.status is Status.DONE else (job.last_error or "").partition("\n")[0]
    attempt = f"{job.attempts}/{job.max_attempts}"
    return (str(job.id), job.kind, job.queue, job.status, attempt, when, error[:60])


@click.command(cls=Command)
@IDS
def cancel(cli: Cli, id: Sequence[str]) -> int:
    """End what has not started; ask what runs to stop."""
    said = {"cancelled": "cancelled", "requested": "runs; its worker has been told to stop"}
    found = _jobs(cli, id)
    done: dict[UUID, Any] = cli.storage().cancel([job.id for job in found])
    return _report(
        cli, found, done, lambda job: said.get(done.get(job.id, ""), f"has ended already: {job.status}"), said
    )


@click.command(cls=Command)
@IDS
def delete(cli: Cli, id: Sequence[str]) -> int:
    """Remove jobs, live or ended."""
    said = {"deleted": "deleted", "requested": "runs; told to stop, delete it again once it has ended"}
    found = _jobs(cli, id)
    done: dict[UUID, Any] = cli.storage().delete([job.id for job in found])
    return _report(cli, found, done, lambda job: said.get(done.get(job.id, ""), "was gone already"), said)


@click.command(cls=Command)
@IDS
def retry(cli: Cli, id: Sequence[str]) -> int:
    """Run again from the first attempt."""
    return _revive(cli, "retry", id)


@click.command(cls=Command)
@IDS
def requeue(cli: Cli, id: Sequence[str]) -> int:
    """Run again now, attempts kept."""
    return _revive(cli, "requeue", id)


def _revive(cli: Cli, verb: str, id: Sequence[str]) -> int:
    found = _jobs(cli, id)
    storage = cli.storage()
    revived = getattr(storage, verb)([job.id for job in found])
    done = dict.fromkeys(revived, "pending")

    def words(job: Job) -> str:
        if job.id in revived:
            return "pending"
        if job.status is Status.IN_PROGRESS:
            return "runs; nothing to do before it has ended"
        return f"another job has its dedupe key {job.dedupe_key}" if job.dedupe_key else "has changed meanwhile"

    return _report(cli, found, done, words, {"pending": ""})


def _jobs(cli: Cli, ids: Sequence[str]) -> list[Job]:
    """All that were named, or an error before anything is changed."""
    storage = cli.storage()
    return list({job.id: job for job in (find_job(storage, text) for text in ids)}.values())


def _report(
    cli: Cli, found: list[Job], done: dict[UUID, Any], words: Callable[[Job], str], good: dict[str, str]
) -> int:
    """One line per job; usage error (2) when some job could not be changed."""
    lines = [f"{job.id}  {words(job)}" for job in found]
    cli.answer({str(job.id): done.get(job.id) for job in found}, "\n".join(lines))
    return ExitCode.OK if all(done.get(job.id) in good for job in found) else ExitCode.USAGE


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
