"""forge: a job queue for Python on PostgreSQL or SQLite.

This is the whole public face; what is not named in `__all__` may change without notice.
"""

from __future__ import annotations

from forge import early as _early  # noqa: F401 (signals are caught before all that takes time to import)

# isort: split

from importlib import metadata

from forge.app import Context, Forge, JobHandle, Middleware, Task, current_job
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
from forge.job import Cancelled, Dead, Done, Failed, Job, Snooze, Status, Throttled
from forge.retry import Backoff
from forge.storage.schedules import Schedule

__all__ = [
    "Backoff",
    "Cancelled",
    "ConfigError",
    "Context",
    "DatabaseError",
    "Dead",
    "Done",
    "Failed",
    "Forge",
    "ForgeError",
    "Interrupted",
    "InvalidJob",
    "Job",
    "JobHandle",
    "JobIsDead",
    "JobNotFound",
    "JobWasCancelled",
    "LockedError",
    "LostLease",
    "Middleware",
    "ResultTimeout",
    "Schedule",
    "SchemaError",
    "Snooze",
    "StartError",
    "Status",
    "Task",
    "Throttled",
    "UsageError",
    "__version__",
    "current_job",
]

try:
    __version__ = metadata.version("forge-jobs")
except metadata.PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
