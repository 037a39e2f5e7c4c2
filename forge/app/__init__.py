"""The client: tasks, enqueueing, results. Runs in the user's program; runs no handler itself."""

from __future__ import annotations

from forge.app.client import Forge
from forge.app.context import Context, current_job
from forge.app.handle import JobHandle
from forge.app.link import Permit
from forge.app.middleware import Middleware
from forge.app.registry import Handler
from forge.app.tasks import AsyncTask, BoundTask, Call, SyncTask, Task
from forge.app.transaction import Transaction

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
