"""Log lines of forge-master and its workers: the standard library's `logging`, as text for people or JSON for machines.

Text is `12:00:00 mail/3  message`. JSON has time, level, logger, who, message, whatever was passed as `extra`, and the
exception. A record that is emitted while a job runs carries the job's id, kind, queue and attempt; which job that is
stands in a context variable, so it is right in threads and under asyncio, and costs nothing until something is logged.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from typing import Any, Protocol
from uuid import UUID

import orjson

from forge.codec import clean_text
from forge.config.model import LoggingConfig
from forge.errors import ConfigError

__all__ = [
    "JobFields",
    "JsonFormatter",
    "RunningJob",
    "Sometimes",
    "TextFormatter",
    "current_job",
    "reopen",
    "setup",
    "stacks",
    "write_stacks",
]


class RunningJob(Protocol):
    """What a line says of the job it belongs to."""

    @property
    def id(self) -> UUID: ...
    @property
    def kind(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def attempt(self) -> int: ...


current_job: ContextVar[RunningJob | None] = ContextVar("forge_current_job", default=None)

JOB_FIELDS = ("job_id", "kind", "queue", "attempt")
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "who", *JOB_FIELDS}


class JobFields(logging.Filter):
    """Lets every record through, with the job's fields on it. For handlers of your own, too: `handler.addFilter(…)`.

    Not a record factory: what is set there clashes with `extra={"queue": …}` of a library, which then raises.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        job = current_job.get()
        if job is not None:
            for name, value in zip(JOB_FIELDS, (str(job.id), job.kind, job.queue, job.attempt), strict=True):
                record.__dict__.setdefault(name, value)
        return True


class TextFormatter(logging.Formatter):
    """`12:00:00 mail/3  message`, and the traceback below it. A record may name another `who` by `extra`."""

    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the standard library's name)
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        return f"{clock} {getattr(record, 'who', self._who)}  {record.message}"


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "who": getattr(record, "who", self._who),
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in JOB_FIELDS if hasattr(record, name)}
        line |= {name: value for name, value in vars(record).items() if name not in _PLAIN}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return _json(line)


def _json(line: dict[str, Any]) -> str:
    """Whatever is in it: a line that cannot be written helps nobody."""
    try:
        return orjson.dumps(line, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # a lone surrogate, an integer of 65 bits, a value nested in itself
        plain = {name: v if isinstance(v, (str, int)) else repr(v) for name, v in line.items()}
        return json.dumps({name: clean_text(v) if isinstance(v, str) else v for name, v in plain.items()})


_handler: logging.Handler | None = None


def setup(config: LoggingConfig, who: str) -> None:
    """Have the root logger write what the config says. Called again (after a fork, say), it replaces what it set up.

    A log file follows rotation by itself. `ConfigError` if it cannot be opened.
    """
    global _handler  # noqa: PLW0603 (the root logger is as global)
    try:
        handler: logging.Handler = (
            WatchedFileHandler(config.file, encoding="utf-8", errors="backslashreplace")
            if config.file
            else logging.StreamHandler(sys.stderr)
        )
    except OSError as e:
        raise ConfigError(f"cannot write the log file {config.file}: {e.strerror}; see file in [logging]") from None
    handler.setFormatter(JsonFormatter(who) if config.format == "json" else TextFormatter(who))
    handler.addFilter(JobFields())
    root = logging.getLogger()
    if _handler is not None:
        root.removeHandler(_handler)
        _handler.close()
    root.addHandler(handler)
    root.setLevel(config.level.upper())
    _handler = handler


def reopen() -> None:
    """Close the log file and open it again under its name; standard error stays."""
    if isinstance(_handler, WatchedFileHandler):
        _handler.acquire()
        try:
            _handler.dev = -1  # as if another file had taken its place
            _handler.reopenIfNeeded()
        finally:
            _handler.release()


def stacks() -> Iterator[str]:
    """Where every thread of this process stands, a paragraph each."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        where = "".join(traceback.format_stack(frame)).rstrip()
        yield f"thread {names.get(ident, ident)}\n{where}"


def write_stacks(who: str) -> None:
    """Those of this process to standard error, whatever its handlers have made of `logging`.

    A thread is one write: many processes share that pipe, and `faulthandler` writes word by word, so that two at once
    make a jumble.
    """
    for paragraph in stacks():
        os.write(2, f"{who} ({os.getpid()}), {paragraph}\n".encode(errors="backslashreplace"))


class Sometimes:
    """Lets a thing be said once in so many seconds, for each of a bounded number of things."""

    MOST = 1000

    def __init__(self, every: float) -> None:
        self._every = every
        self._told: dict[str, float] = {}

    def __call__(self, what: str, now: float) -> bool:
        """Whether to say it now."""
        if now - self._told.get(what, -self._every) < self._every:
            return False
        if len(self._told) >= self.MOST:
            self._told.clear()
        self._told[what] = now
        return True
