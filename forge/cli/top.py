"""`forge top`: queues, their rates, pods and what runs, looked at again and again. It reads the database alone."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

import click

from forge.cli.command import NUMBER, Command
from forge.cli.common import Cli, counted, draw, duration, line, table
from forge.cli.pods import leads
from forge.cli.queues import age, state
from forge.errors import DatabaseError, UsageError
from forge.job import Counts, Job, JobFilter, Pod, QueueSettings, Status
from forge.storage import Storage
from forge.storage.contract.leases import Leader

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["top"]

RUNNING = 200  # jobs looked at, newest first; a screen has room for fewer
SHARE = 10  # counting what has ended reads all history, so looks take at most 1/10 of the database's time
QUEUES = ("queue", "workers", "pending", "scheduled", "running", "failed", "done", "dead", "per s", "oldest", "state")
PODS = ("pod", "host", "pid", "up", "running", "heard of", "leads", "queues")
JOBS = ("running", "kind", "queue", "attempt", "for")


@dataclass(frozen=True, slots=True)
class Look:
    """What was found at one moment."""

    now: float  # by the database's clock
    took: float  # seconds
    settings: Mapping[str, QueueSettings]
    live: Mapping[str, Counts]
    ended: Mapping[str, Mapping[Status, int]]
    pods: list[Pod]
    leader: Leader | None
    running: list[Job]

    @classmethod
    def at(cls, storage: Storage) -> Look:
        """Now."""
        began = time.monotonic()
        now, running = storage.now(), storage.find(JobFilter(frozenset({Status.IN_PROGRESS})), limit=RUNNING).jobs
        found = (storage.queues(), storage.counts(), storage.ended_counts(), storage.pods(), storage.leases.leader())
        return cls(now, time.monotonic() - began, *found, running)

    def rate(self, queue: str, before: Look) -> float:
        """Jobs of a queue that ended per second since then. What was pruned meanwhile does not count."""
        then, later = (sum(look.ended.get(queue, {}).values()) for look in (before, self))
        return max(later - then, 0) / max(self.now - before.now, 1e-3)

    @property
    def queues(self) -> list[str]:
        """Every queue there is anything to say of."""
        return sorted({*self.settings, *self.live, *self.ended})


@click.command(cls=Command)
@click.option("--interval", type=NUMBER, default=1.0, metavar="SECONDS", help="between two looks; default 1")
def top(cli: Cli, interval: float) -> None:
    """Queues, rates, pods and running jobs, live. One look where the output is no terminal, or with -o json."""
    if not 0.1 <= interval <= 3600:
        raise UsageError("--interval takes 0.1 to 3600 seconds")
    storage = cli.storage()
    before = Look.at(storage)
    if not cli.json and sys.stdout.isatty():
        with suppress(KeyboardInterrupt):
            _watch(cli, storage, before, interval)
        return
    time.sleep(interval)
    look = Look.at(storage)
    if cli.json:
        cli.document(_as_json(cli, look, before))
    else:
        draw(*_parts(cli, look, before))


def _watch(cli: Cli, storage: Storage, look: Look, interval: float) -> NoReturn:
    """Until Ctrl-C."""
    from rich.console import Group
    from rich.live import Live

    before = look
    with Live(screen=True, auto_refresh=False) as screen:
        while True:
            screen.update(Group(*_parts(cli, look, before), "", "ctrl-c ends it"), refresh=True)
            time.sleep(max(interval, SHARE * look.took))
            try:
                before, look = look, Look.at(storage)
            except DatabaseError as e:
                screen.update(line(f"{e}; trying again"), refresh=True)


def _parts(cli: Cli, look: Look, before: Look) -> Iterator[RenderableType]:
    """What is shown, from top to bottom."""
    running = sum(counts.in_progress for counts in look.live.values())
    clock = time.strftime("%H:%M:%S", time.localtime(look.now))
    yield line(f"{clock}  {cli.shown_url}  {counted(len(look.pods), 'pod')}, {counted(running, 'job')} running")
    yield ""
    yield table(QUEUES, (_queue_row(name, look, before) for name in look.queues))
    if look.pods:
        yield ""
        hands = Counter(job.pod for job in look.running)
        yield table(PODS, (_pod_row(pod, hands[pod.id], look) for pod in look.pods))
    if look.running:
        yield ""
        oldest = sorted(look.running, key=lambda job: job.claimed_at or job.run_at)
        yield table(JOBS, (_job_row(job, look.now) for job in oldest))


def _queue_row(name: str, look: Look, before: Look) -> tuple[object, ...]:
    settings, live = look.settings.get(name) or QueueSettings(name), look.live.get(name, Counts())
    ended = look.ended.get(name, {})
    return (
        *(name, settings.max_workers, live.pending, live.scheduled, live.in_progress, live.failed),
        *(ended.get(Status.DONE, 0), ended.get(Status.DEAD, 0), f"{look.rate(name, before):.1f}"),
        *(age(live), state(settings, look.now)),
    )


def _pod_row(pod: Pod, running: int, look: Look) -> tuple[object, ...]:
    up, silent = duration(look.now - pod.started_at.timestamp()), duration(look.now - pod.beat_at.timestamp())
    term, queues = leads(pod, look.leader), ", ".join(pod.queues)
    return pod.id, pod.label or pod.host, pod.pid, up, running, f"{silent} ago", term, queues


def _job_row(job: Job, now: float) -> tuple[object, ...]:
    since = duration(now - job.claimed_at.timestamp()) if job.claimed_at else "-"
    return job.id, job.kind, job.queue, f"{job.attempts}/{job.max_attempts}", since


def _as_json(cli: Cli, look: Look, before: Look) -> dict[str, Any]:
    hands = Counter(job.pod for job in look.running)
    return {
        "at": datetime.fromtimestamp(look.now, UTC),
        "database": cli.shown_url,
        "queues": [
            {
                "name": name,
                "max_workers": (look.settings.get(name) or QueueSettings(name)).max_workers,
                "paused": (look.settings.get(name) or QueueSettings(name)).paused,
                "counts": look.live.get(name, Counts()),
                "ended": {str(status): n for status, n in look.ended.get(name, {}).items()},
                "per_second": look.rate(name, before),
            }
            for name in look.queues
        ],
        "leader": look.leader,
        "pods": [
            {"id": pod.id, "label": pod.label, "host": pod.host, "pid": pod.pid, "queues": pod.queues,
             "started_at": pod.started_at, "beat_at": pod.beat_at, "running": hands[pod.id]}
            for pod in look.pods
        ],
        "running": [
            {"id": job.id, "kind": job.kind, "queue": job.queue, "attempt": job.attempts, "claimed_at": job.claimed_at}
            for job in look.running
        ],
    }  # fmt: skip
