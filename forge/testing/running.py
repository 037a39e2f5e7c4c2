"""Running jobs in the test itself: all that are due when the test says so, or each as it is enqueued."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from forge import inline as inline_runner
from forge.app import Forge
from forge.errors import UsageError
from forge.inline import Summary
from forge.job import Dead, Ending, Failed, Status
from forge.testing.database import TemporaryStorage, clock_of, storage_of, temporary_database

__all__ = ["drain", "inline"]

T = TypeVar("T")

LIMIT = 1000  # jobs; a test that runs more is more likely going in circles


def drain(
    app: Forge,
    *,
    queues: Sequence[str] | None = None,
    later: bool = False,
    raises: bool = False,
    limit: int = LIMIT,
) -> Summary:
    """Run what is due until nothing is, and say how many ran and how they ended: `.ran`, `.outcomes["done"]`.

    `later` also runs what is scheduled, waiting to retry or cooling down, in the order of its time, by putting the
    clock of the database forward. `raises` lets the first failure out instead of leaving it with its job. More than
    `limit` jobs are an AssertionError: something enqueues or snoozes itself for ever.
    """
    storage_of(app, "drain")
    if later:
        clock_of(app, "drain(later=True)")
    return _outside_loop(lambda: _drain(app, queues, later, _Watch(raises, limit)))


@contextlib.contextmanager
def inline(app: Forge, *, raises: bool = False) -> Iterator[Forge]:
    """Run every job as it is enqueued, to its end: a delay is not waited for, and a retry comes at once.

    On the app's test database if it has one, else on a temporary one. A job that a handler enqueues runs before the
    handler goes on. A job enqueued with `conn=` is yours to commit and waits for the next enqueue, or `drain`.
    """
    with contextlib.ExitStack() as stack:
        if not app._lazy_storage.is_lent:
            stack.enter_context(temporary_database(app))
        storage = app.storage
        if not isinstance(storage, TemporaryStorage):
            raise UsageError(f"inline needs a test database on SQLite, and the app is on {storage.url}; use drain")
        before = storage.on_enqueue
        storage.on_enqueue = lambda: drain(app, later=True, raises=raises)
        try:
            yield app
        finally:
            storage.on_enqueue = before


class _Watch:
    """Sees every ending: stops a run that goes in circles, or at a failure."""

    def __init__(self, raises: bool, limit: int) -> None:
        self.total = Summary()
        self._raises = raises
        self._limit = limit
        self._kinds: Counter[str] = Counter()

    def __call__(self, ending: Ending) -> None:
        outcome = ending.outcome
        if self._raises and isinstance(outcome, (Failed, Dead)):
            raise outcome.__cause__ or outcome
        self._kinds[ending.claim.kind] += 1
        if self._kinds.total() > self._limit:
            most = ", ".join(f"{count} of {kind}" for kind, count in self._kinds.most_common(3))
            raise AssertionError(
                f"more than {self._limit} jobs ran ({most}): does one enqueue itself for ever? limit= allows more"
            )

    def add(self, part: Summary) -> None:
        self.total.ran += part.ran
        self.total.stale += part.stale
        self.total.outcomes += part.outcomes


def _drain(app: Forge, queues: Sequence[str] | None, later: bool, watch: _Watch) -> Summary:
    """Pass after pass, for a handler may have enqueued to a queue that the pass before did not know."""
    moved = False
    while True:
        part = inline_runner.drain(app, queues, on_job=watch)
        watch.add(part)
        if part.ran:
            moved = False
        elif moved or not later or not _to_the_next(app, queues):
            return watch.total
        else:
            moved = True  # if still nothing runs, nothing will


def _to_the_next(app: Forge, queues: Sequence[str] | None) -> bool:
    """Put the clock to the time of the next job that can run here; False if there is none."""
    settings, clock = app.storage.queues(), clock_of(app, "drain(later=True)")
    times = []
    for job in app.jobs(status=(Status.PENDING, Status.FAILED), queue=queues or ()):
        queue = settings.get(job.queue)
        if job.kind not in app.tasks or (queue and queue.paused):
            continue
        cool = queue.throttled_until if queue else None
        times.append(max(job.run_at, cool) if cool else job.run_at)
    if not times:
        return False
    clock.advance(min(times).timestamp() - clock() + 0.001)
    return True


def _outside_loop(work: Callable[[], T]) -> T:
    """Do it in a thread of its own where this one has an event loop: an `async def` handler needs one for itself."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    context, answer, errors = contextvars.copy_context(), list[T](), list[BaseException]()

    def run() -> None:
        try:
            answer.append(context.run(work))
        except BaseException as e:  # noqa: BLE001 (raised again where it was asked for)
            errors.append(e)

    thread = threading.Thread(target=run, name="forge-drain")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return answer[0]
