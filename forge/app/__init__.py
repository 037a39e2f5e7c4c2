"""The client: tasks, enqueueing, results. Runs in the user's program; runs no handler itself."""

from __future__ import annotations

from forge.app.client import Forge
from forge.app.handle import JobHandle
from forge.app.registry import Handler
from forge.app.running.context import Context, current_job
from forge.app.running.link import Permit
from forge.app.running.middleware import Middleware
from forge.app.running.transaction import Transaction
from forge.app.tasks import AsyncTask, BoundTask, Call, SyncTask, Task

__all__ = [
    "AsyncTask",
    "BoundTask",
    "Call",
    "Context",
    "Forge",
    "Handler",
    "JobHandle",
    "Middleware",
    "Permit",
    "SyncTask",
    "Task",
    "Transaction",
    "current_job",
]
