"""Log lines of forge-master and its workers: the standard library's `logging`, as text for people or JSON for machines.

Text is `12:00:00 mail/3  message`. JSON has time, level, logger, who, message, whatever was passed as `extra`, and the
exception.

What is logged comes from jobs too, and none of it can pass for a line of its own: in text a message is one line, its
newlines and other control characters written as escapes, and the lines of a traceback are indented. Long ones are cut.

A record that is emitted while a job runs carries the job's id, kind, queue and attempt; which job that is
stands in a context variable, so it is right in threads and under asyncio, and costs nothing until something is logged.
In a worker, threads that a handler starts are its job's too: see `forge.worker.threads`.
A line that a handler prints is a record too, with the same fields and the `stream` it was printed to.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from typing import Any, Literal, Protocol, TextIO
from uuid import UUID

import orjson

from forge.codec import clean_text
from forge.config.model import LoggingConfig
from forge.errors import ConfigError
from forge.redaction import redact, redact_text

__all__ = [
    "DETAILS",
    "JobFields",
    "JsonFormatter",
    "RunningJob",
    "Sometimes",
    "TextFormatter",
    "counted",
    "current_job",
    "escaped",
    "follow_threads",
    "job_here",
    "keep_stderr",
    "printed",
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
_of_thread: Callable[[], RunningJob | None] | None = None


def follow_threads(of_thread: Callable[[], RunningJob | None]) -> None:
    """`of_thread` tells whose this thread is, where the context variable does not."""
    global _of_thread  # noqa: PLW0603 (the process's)
    _of_thread = of_thread


def job_here() -> RunningJob | None:
    """The job that what is said here belongs to."""
    job = current_job.get()
    return _of_thread() if job is None and _of_thread is not None else job


JOB_FIELDS = ("job_id", "kind", "queue", "attempt")
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "who", *JOB_FIELDS}


MAX_MESSAGE = 8192  # characters of a message
MAX_TEXT = 65_536  # and of a traceback, or of a text that is passed as `extra`
DETAILS = "details"  # the name of an `extra` whose lines belong below the message
INDENT = "  "

_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


def escaped(text: str) -> str:
    r"""On one line, and without effect on a terminal: `\n`, `\x1b`. A tab stays."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def counted(n: int, noun: str) -> str:
    """`1 job`, `2 jobs`"""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _cut(text: str) -> str:
    """The beginning of a message that is too long."""
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}… ({len(text) - MAX_MESSAGE:,} more characters)"


def _cut_before(text: str) -> str:
    """The end of a traceback that is too long: that is where it says what was raised."""
    return text if len(text) <= MAX_TEXT else f"({len(text) - MAX_TEXT:,} more characters) …{text[-MAX_TEXT:]}"


def _below(text: str) -> str:
    """Lines that belong to the one above them."""
    return "\n".join(f"{INDENT}{escaped(line)}" for line in _cut_before(text).split("\n"))


class JobFields(logging.Filter):
    """Lets every record through, with the job's fields on it. For handlers of your own, too: `handler.addFilter(…)`.

    Not a record factory: what is set there clashes with `extra={"queue": …}` of a library, which then raises.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        job = job_here()
        if job is not None:
            _add_job(record, job)
        return True


class TextFormatter(logging.Formatter):
    """`12:00:00 mail/3  message`, and the traceback below it. A record may name another `who` by `extra`, and have
    `details`, which come below it too."""

    def __init__(self, who: str, redact: Sequence[str] = ()) -> None:
        super().__init__()
        self._who, self._redact = who, redact

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the standard library's name)
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock} {escaped(str(getattr(record, 'who', self._who)))}  {escaped(_cut(record.message))}"
        if hasattr(record, "stream") and hasattr(record, "job_id"):
            line += escaped(f"  [{getattr(record, 'kind', '?')} {record.job_id}]")
        details = getattr(record, DETAILS, None)
        return line if details is None else f"{line}\n{_below(str(details))}"

    def format(self, record: logging.LogRecord) -> str:
        """Unlike the standard library's it keeps nothing on the record: other handlers' text is not indented."""
        record.message = record.getMessage()
        parts = [self.formatMessage(record)]
        if record.exc_info:
            parts.append(_below(self.formatException(record.exc_info)))
        if record.stack_info:
            parts.append(_below(record.stack_info))
        return redact_text("\n".join(parts), self._redact)


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def __init__(self, who: str, redact: Sequence[str] = ()) -> None:
        super().__init__()
        self._who, self._redact = who, redact

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "who": getattr(record, "who", self._who),
            "message": _cut(record.getMessage()),
        }
        line |= {name: getattr(record, name) for name in JOB_FIELDS if hasattr(record, name)}
        line |= {
            name: _cut_before(value) if isinstance(value, str) else value
            for name, value in vars(record).items()
            if name not in _PLAIN
        }
        if record.exc_info:
            line["exception"] = _cut_before(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = _cut_before(record.stack_info)
        if self._redact:
            shown = redact(line, self._redact)
            line = {k: redact_text(v, self._redact) if isinstance(v, str) else v for k, v in shown.items()}
        return _json(line)


def _json(line: dict[str, Any]) -> str:
    """Whatever is in it: a line that cannot be written helps nobody."""
    try:
        text = orjson.dumps(line, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
        # JSON lets these stand; a terminal obeys some, and some readers take them for the end of a line.
        return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    except TypeError:  # a lone surrogate, an integer of 65 bits, a value nested in itself
        plain = {name: v if isinstance(v, (str, int)) else repr(v) for name, v in line.items()}
        return json.dumps({name: clean_text(v) if isinstance(v, str) else v for name, v in plain.items()})


class LogFile(WatchedFileHandler):
    """What jobs say when they fail is not for everybody: a file that it makes is 0600. One that is there stays as its
    owner has made it."""

    def _open(self) -> TextIOWrapper:
        raw = open(self.baseFilename, "ab", opener=_made_private)  # noqa: SIM115 (the handler closes it)
        return TextIOWrapper(raw, encoding=self.encoding, errors=self.errors)


def _made_private(path: str, flags: int) -> int:
    try:
        fd = os.open(path, flags | os.O_EXCL, 0o600)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(fd, 0o600)  # a umask may have taken away even that
    return fd


_handler: logging.Handler | None = None
_stderr: TextIO | None = None  # where the log is written to without a file, if not to `sys.stderr`


def keep_stderr() -> None:
    """What is standard error now stays where the log goes, whatever `sys.stderr` and the descriptor 2 become: those are
    what handlers print to, which comes to the log by `printed`."""
    global _stderr  # noqa: PLW0603 (as global as the descriptor)
    _stderr = open(os.dup(2), "w", 1, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 (for good)


def setup(config: LoggingConfig, who: str, redact: Sequence[str] = ()) -> None:
    """Have the root logger write what the config says. Called again (after a fork, say), it replaces what it set up.
    Fields whose names fit `redact` are not shown.

    A log file follows rotation by itself; one that is not there yet is made for its owner's eyes alone, whatever the
    umask. `ConfigError` if it cannot be opened.
    """
    global _handler  # noqa: PLW0603 (the root logger is as global)
    try:
        handler: logging.Handler = (
            LogFile(config.file, encoding="utf-8", errors="backslashreplace")
            if config.file
            else logging.StreamHandler(_stderr or sys.stderr)
        )
    except OSError as e:
        raise ConfigError(f"cannot write the log file {config.file}: {e.strerror}; see file in [logging]") from None
    handler.setFormatter((JsonFormatter if config.format == "json" else TextFormatter)(who, redact))
    handler.addFilter(JobFields())
    root = logging.getLogger()
    if _handler is not None:
        root.removeHandler(_handler)
        with contextlib.suppress(OSError):  # what it could not write before it cannot write now
            _handler.close()
    root.addHandler(handler)
    root.setLevel(config.level.upper())
    for name, logger in logging.Logger.manager.loggerDict.items():
        if name.partition(".")[0] == "forge" and isinstance(logger, logging.Logger):
            logger.disabled = False  # a module's `dictConfig` does that to all that it does not name
    _handler = handler


def _stderr_fd() -> int:
    return 2 if _stderr is None else _stderr.fileno()


def printed(
    text: str, stream: Literal["stdout", "stderr"], *, who: str | None = None, job: RunningJob | None = None
) -> None:
    """Log a line that was printed: always, whatever the `level`. Of the `job` that runs here, if none is named.

    To forge's own handler alone. One that a module has added to the root logger may write to `sys.stderr`, and would be
    told of its own line for ever."""
    if _handler is None:  # not set up yet: what is said then may be why it never will be
        os.write(_stderr_fd(), f"{escaped(text)}\n".encode(errors="backslashreplace"))
        return
    level = logging.INFO if stream == "stdout" else logging.WARNING
    record = logging.LogRecord(f"forge.{stream}", level, "", 0, text, None, None)
    record.stream = stream
    if who is not None:
        record.who = who
    if job is not None:
        _add_job(record, job)
    _handler.handle(record)


def _add_job(record: logging.LogRecord, job: RunningJob) -> None:
    for name, value in zip(JOB_FIELDS, (str(job.id), job.kind, job.queue, job.attempt), strict=True):
        record.__dict__.setdefault(name, value)


def reopen() -> None:
    """Close the log file and open it again under its name; standard error stays."""
    if isinstance(_handler, WatchedFileHandler):
        _handler.acquire()
        try:
            _handler.dev = -1  # as if another file had taken its place
            _handler.reopenIfNeeded()
        finally:
            _handler.release()


def stacks() -> Iterator[tuple[str, str]]:
    """Where every thread of this process stands: `thread MainThread`, and the lines below that."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        where = "".join(traceback.format_stack(frame)).rstrip()
        yield f"thread {names.get(ident, ident)}", where


def write_stacks(who: str) -> None:
    """Those of this process to standard error, whatever its handlers have made of `logging`.

    A thread is one write: many processes share that pipe, and `faulthandler` writes word by word, so that two at once
    make a jumble.
    """
    for thread, where in stacks():
        text = f"{who} ({os.getpid()}), {escaped(thread)}\n{_below(where)}\n"
        os.write(_stderr_fd(), text.encode(errors="backslashreplace"))


class Sometimes:
    """Lets a thing be said once in so many seconds, for each of a bounded number of things."""

    MOST = 1000

    def __init__(self, every: float) -> None:
        self._every = every
        self._told: dict[str, float] = {}

    def __call__(self, what: str, now: float) -> bool:
        """Whether to say `what` now (monotonic seconds): not if the answer was yes less than `every` seconds ago."""
        if now - self._told.get(what, -self._every) < self._every:
            return False
        if len(self._told) >= self.MOST:
            self._told.clear()
        self._told[what] = now
        return True
