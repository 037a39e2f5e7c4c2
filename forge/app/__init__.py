"""The client: tasks, enqueueing, results. Runs in the user's program; runs no handler itself."""

from __future__ import annotations

from forge.app.client import Forge
from forge.app.handle import JobHandle
from forge.app.registry import Handler
from forge.app.tasks import AsyncTask, BoundTask, Call, SyncTask, Task

__all__ = ["AsyncTask", "BoundTask", "Call", "Forge", "Handler", "JobHandle", "SyncTask", "Task"]
