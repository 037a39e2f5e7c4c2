"""Threads that a handler starts: what they log and print belongs to its job.

A thread does not inherit context variables, so each remembers the job that has started it. That counts as long as the
job is the only one that runs in its worker: a thread of a pool that jobs share may work for another one by now, and
words of no job are better than of a wrong one.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable

from forge import logs
from forge.logs import RunningJob

__all__ = ["follow"]

_MARK = "_forge_job"


def follow(running: Callable[[], Iterable[RunningJob]]) -> None:
    """In a worker, once: have threads remember. `running` tells the jobs that run."""

    def of_thread() -> RunningJob | None:
        started_by = getattr(threading.current_thread(), _MARK, None)
        job: RunningJob | None = None if started_by is None else started_by()
        return job if job is not None and list(running()) == [job] else None

    start = threading.Thread.start

    def starting(thread: threading.Thread) -> None:
        if (job := logs.job_here()) is not None:
            setattr(thread, _MARK, weakref.ref(job))
        start(thread)

    functools.update_wrapper(starting, start)
    logs.follow_threads(of_thread)
    threading.Thread.start = starting  # type: ignore[method-assign, assignment]
