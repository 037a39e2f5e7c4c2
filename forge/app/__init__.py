"""The client: tasks, enqueueing, results. Runs in the user's program; runs no handler itself."""

from __future__ import annotations

from forge.app.client import Forge
from forge.app.fields import EnqueueOptions
from forge.app.handle import JobHandle
from forge.app.registry import Handler, HandlerOptions, Router
from forge.app.running.context import Context, JobLog, current_job
from forge.app.running.link import Permit, RateLimit
from forge.app.running.middleware import Middleware
from forge.app.running.transaction import Transaction
from forge.app.schedules import ScheduleOptions, Schedules
from forge.app.tasks import AsyncTask, BoundTask, Call, Enqueueable, SyncTask, Task, TaskOptions

__all__ = [
    "AsyncTask",
    "BoundTask",
    "Call",
    "Context",
    "EnqueueOptions",
    "Enqueueable",
    "Forge",
    "Handler",
    "HandlerOptions",
    "JobHandle",
    "JobLog",
    "Middleware",
    "Permit",
    "RateLimit",
    "Router",
    "ScheduleOptions",
    "Schedules",
    "SyncTask",
    "Task",
    "TaskOptions",
    "Transaction",
    "current_job",
]
