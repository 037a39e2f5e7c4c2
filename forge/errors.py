"""Every error forge raises on purpose, and the exit code a command ends with when one escapes.

An error is one line for a person: what is wrong, then what to do about it.
"""

from __future__ import annotations

import enum

__all__ = [
    "ConfigError",
    "DatabaseError",
    "ExitCode",
    "ForgeError",
    "Interrupted",
    "InvalidJob",
    "JobIsDead",
    "JobNotFound",
    "JobWasCancelled",
    "LockedError",
    "LostLease",
    "ResultTimeout",
    "SchemaError",
    "StartError",
    "UsageError",
]


class ExitCode(enum.IntEnum):
    """What a forge command answers to its shell."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    CONFIG = 3
    DATABASE = 4
    LOCKED = 5
    SCHEMA = 6
    START = 7


class ForgeError(Exception):
    """Base of all; `exit_code` is what the command line ends with."""

    exit_code = ExitCode.INTERNAL


class UsageError(ForgeError):
    """A command or call was given something it does not take."""

    exit_code = ExitCode.USAGE


class InvalidJob(UsageError, ValueError):
    """An enqueue was refused: the message names the field and the limit; nothing was stored."""


class JobNotFound(UsageError, LookupError):
    """No job, live or finished, has this id."""


class ConfigError(ForgeError):
    """The configuration, or a module it names, cannot be used."""

    exit_code = ExitCode.CONFIG


class DatabaseError(ForgeError):
    """The database cannot be reached or refused the work; the message never holds the DSN's password."""

    exit_code = ExitCode.DATABASE


class LockedError(ForgeError):
    """Another process holds the lock or the port."""

    exit_code = ExitCode.LOCKED


class LostLease(ForgeError):
    """A leader's write was refused and nothing was changed: the term it carried is over."""

    exit_code = ExitCode.LOCKED


class SchemaError(ForgeError):
    """The database's schema is missing, too old or too new for this release."""

    exit_code = ExitCode.SCHEMA


class StartError(ForgeError):
    """No worker can start: a function of `on_worker_start` raised, hung or ended its process."""

    exit_code = ExitCode.START


class ResultTimeout(ForgeError, TimeoutError):
    """`result(timeout=…)` waited that long, and the job has not ended yet."""


class JobIsDead(ForgeError):
    """`result()` was asked of a job that is dead; the message has its last error. (A handler that gives up raises the
    outcome `Dead` instead.)"""


class JobWasCancelled(ForgeError):
    """`result()` was asked of a job that was cancelled. (A handler that stops early raises the outcome `Cancelled`
    instead.)"""


class Interrupted(BaseException):
    """Raised in a handler that went on after it had been told to stop. Clean up and let it pass: next comes SIGKILL."""
