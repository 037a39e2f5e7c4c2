"""What the demo shows: events and a table, both told from the jobs in the database alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Self
from uuid import UUID

from rich.console import Group
from rich.live import Live
from rich.table import Table

from forge import Forge, Status
from forge.cli.common import draw, line, table, until
from forge.job import Job, QueueSettings
from forge.worker.simulated import PLANS

__all__ = ["Screen"]

EVENTS = 8  # of the latest shown under the table


class Screen:
    """What happened, as it happens: a table that is drawn over and over in a terminal, else a line per event."""

    def __init__(self, app: Forge, live: bool) -> None:
        self.live = live
        self._app = app
        self._before: dict[UUID, Job] = {}
        self._events: list[str] = []
        self._drawing = Live(auto_refresh=False)

    def __enter__(self) -> Self:
        if self.live:
            self._drawing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._drawing.stop()

    def look(self, *, table: bool = True) -> None:
        """Tell what has changed since the last look."""
        drawn = self.live and table
        queues, now = self._app.storage.queues(), self._app.storage.now()
        for job in sorted(self._app.jobs(), key=lambda job: job.id):
            for text in changes(self._before.get(job.id), job, queues.get(job.queue), now):
                self._events.append(f"{job.kind:<16}  …{job.id.hex[-4:]}  {text}")
                if not drawn:
                    print(self._events[-1], flush=True)
            self._before[job.id] = job
        if drawn:
            latest = Group(*map(line, self._events[-EVENTS:]))
            self._drawing.update(Group(self._table(), "", latest), refresh=True)

    def _table(self) -> Table:
        rows: list[Sequence[object]] = []
        for kind in PLANS:
            jobs = [job for job in self._before.values() if job.kind == kind]
            counts = Counter(job.status for job in jobs)
            waiting = counts[Status.PENDING] + counts[Status.FAILED]
            ended = (counts[Status.DONE], counts[Status.DEAD])
            tries = (sum(job.attempts for job in jobs), sum(map(retries, jobs)), sum(job.crashes for job in jobs))
            rows.append((kind, len(jobs), waiting, counts[Status.IN_PROGRESS], *ended, *tries))
        rows.append(("total", *(sum(int(str(row[i])) for row in rows) for i in range(1, 9))))
        head = ("kind", "jobs", "waiting", "running", "done", "dead", "attempts", "retries", "crashes")
        return table(head, rows)

    def summary(self, seconds: float) -> None:
        """The table once more, for good."""
        self._drawing.stop()
        if not self.live:
            print()
            draw(self._table())
        jobs = self._before.values()
        print(
            f"\nall ended after {seconds:.1f} s; {sum(map(retries, jobs))} failures were retried, "
            f"the hopeless job is dead, and the one whose worker was killed ran again",
            flush=True,
        )


def retries(job: Job) -> int:
    """Failures that were not the end of it; crashes are counted apart."""
    return max(job.attempts - 1, 0)


def changes(before: Job | None, job: Job, queue: QueueSettings | None, now: float) -> Iterator[str]:
    """What must have happened to a job between two looks, in words. `now` is the database's clock."""
    news = job.errors[len(before.errors) if before else 0 :]
    crashed = job.crashes > (before.crashes if before else 0)
    for error in news:
        message = str(error["message"]).partition("\n")[0]
        if crashed:
            yield f"crashed: {message}; released, runs again"
        elif job.status is Status.DEAD and error is news[-1]:
            yield f"attempt {error['attempt']}  dead after {job.attempts} attempts: {message}"
        else:
            yield f"attempt {error['attempt']}  failed, again {until(job.run_at, now)}: {message}"
    if before is not None and job.run_at > before.run_at and not news:
        if queue is not None and queue.throttled_until and queue.throttled_until >= job.run_at:
            yield f"throttled, queue {job.queue} cools down, again {until(queue.throttled_until, now)}"
        else:
            yield f"snoozed, again {until(job.run_at, now)}"
    if job.status is Status.DONE and (before is None or before.status is not Status.DONE):
        yield f"attempt {job.attempts}  done"
