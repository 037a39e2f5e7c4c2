"""forge: a job queue for Python on PostgreSQL or SQLite.

This and `forge.testing` are all that is public; docs/api.md lists it. What is not named in `__all__`, has an underscore
or is in another module may change without notice.
"""

from __future__ import annotations

from forge import early as _early  # noqa: F401 (signals are caught before all that takes time to import)

# isort: split

from typing import TYPE_CHECKING

from forge.app import (
    AsyncTask,
    BoundTask,
    Call,
    Context,
    Enqueueable,
    EnqueueOptions,
    Forge,
    Handler,
    HandlerOptions,
    JobHandle,
    JobLog,
    Middleware,
    Permit,
    RateLimit,
    Router,
    ScheduleOptions,
    Schedules,
    SyncTask,
    Task,
    TaskOptions,
    Transaction,
    current_job,
)
from forge.errors import (
    ConfigError,
    DatabaseError,
    ForgeError,
    Interrupted,
    InvalidJob,
    JobIsDead,
    JobNotFound,
    JobWasCancelled,
    LockedError,
    LostLease,
    ResultTimeout,
    SchemaError,
    StartError,
    UsageError,
)
from forge.job import (
    Cancelled,
    Dead,
    Done,
    Failed,
    Job,
    Line,
    NewJob,
    OnConflict,
    Outcome,
    Released,
    Snooze,
    Status,
    Throttled,
)
from forge.logs import JobFields
from forge.retry import Backoff
from forge.storage import Storage
from forge.storage.contract import Cancellation, Deletion
from forge.storage.contract.schedules import CatchUp, Pause, Schedule

if TYPE_CHECKING:
    from forge.inline import Summary, drain


__version__ = "0.1.0"  # the build reads it from here: from the metadata, `forge --version` took 15 ms more

__all__ = [
    "AsyncTask",
    "Backoff",
    "BoundTask",
    "Call",
    "Cancellation",
    "Cancelled",
    "CatchUp",
    "ConfigError",
    "Context",
    "DatabaseError",
    "Dead",
    "Deletion",
    "Done",
    "EnqueueOptions",
    "Enqueueable",
    "Failed",
    "Forge",
    "ForgeError",
    "Handler",
    "HandlerOptions",
    "Interrupted",
    "InvalidJob",
    "Job",
    "JobFields",
    "JobHandle",
    "JobIsDead",
    "JobLog",
    "JobNotFound",
    "JobWasCancelled",
    "Line",
    "LockedError",
    "LostLease",
    "Middleware",
    "NewJob",
    "OnConflict",
    "Outcome",
    "Pause",
    "Permit",
    "RateLimit",
    "Released",
    "ResultTimeout",
    "Router",
    "Schedule",
    "ScheduleOptions",
    "Schedules",
    "SchemaError",
    "Snooze",
    "StartError",
    "Status",
    "Storage",
    "Summary",
    "SyncTask",
    "Task",
    "TaskOptions",
    "Throttled",
    "Transaction",
    "UsageError",
    "__version__",
    "current_job",
    "drain",
]

# Loaded when first asked for: a program that only enqueues runs no job.
_LAZY = {"Summary": "forge.inline", "drain": "forge.inline"}

if not TYPE_CHECKING:  # to a type checker it would mean that every name is there

    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            raise AttributeError(f"module 'forge' has no attribute {name!r}")
        import importlib

        value: object = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return list(__all__)
