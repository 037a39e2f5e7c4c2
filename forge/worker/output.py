"""`sys.stdout` and `sys.stderr` of the zygote and its workers: what is printed becomes lines of the log, at once.

They are set before the handlers' modules are imported, so that a module which keeps one (`StreamHandler(sys.stdout)`)
keeps the right one. They are ordinary text files, `io.TextIOWrapper`, upon a file that cuts lines and gives each to the
log, as `logging` does with a record: with the job that runs there, and written before `print` returns, so that whatever
kills the process comes too late. Of a line that has no end yet each thread and job has its own.

What is written below Python, to the descriptors 1 and 2, goes through pipes to the master: see
`forge.master.workers.outputs`.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

from forge import logs
from forge.logs import RunningJob, job_here
from forge.printing import Allowance, Cutter

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Printed", "finish", "install", "settle", "take_pipes"]

PER_SECOND, AT_ONCE = 1000, 10_000  # lines of one process, of both streams

_Writer = tuple[int, RunningJob | None]  # a thread, and the job that runs in it


class Printed(io.BufferedIOBase):
    """The file below `sys.stdout` or `sys.stderr`."""

    def __init__(self, name: Literal["stdout", "stderr"], fd: int, allowance: Allowance) -> None:
        """`fd` is its descriptor, for who asks."""
        self.name, self.mode = f"<{name}>", "wb"
        self._stream, self._fd, self._allowance = name, fd, allowance
        self._cutters: dict[_Writer, Cutter] = {}
        self._logging = threading.local()
        self.start_over()

    def start_over(self) -> None:
        """In a forked child: what the parent has begun to print is the parent's, and so is who holds the lock."""
        self._lock = threading.RLock()
        self._cutters.clear()

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """It stays open: whoever closes `sys.stdout` means its own, and other jobs print there too."""
        self.flush()

    def write(self, data: Buffer, /) -> int:
        came, writer = bytes(data), (threading.get_ident(), job_here())
        with self._lock:
            cutter = self._cutters.get(writer)
            if cutter is None:
                cutter = self._cutters[writer] = Cutter(self._allowance)
            lines = cutter.feed(came)
            if not cutter:
                self._cutters.pop(writer, None)  # a destructor that printed meanwhile may have done so
        self._log(lines, writer[1])
        return len(came)

    def flush(self) -> None:
        """Of this thread and job, as `print(…, end="", flush=True)` asks for."""
        self._finish((threading.get_ident(), job_here()))

    def settle(self, running: Callable[[], Iterable[RunningJob]]) -> None:
        """Log what jobs that run no more have left without the end of a line. What does not belong to a job waits: the
        thread may be in the middle of it."""
        if self._cutters:
            goes_on = {None, *running()}
            for writer in list(self._cutters):
                if writer[1] not in goes_on:
                    self._finish(writer)

    def finish(self) -> None:
        """Log all that is left."""
        for writer in list(self._cutters):
            self._finish(writer)

    def _finish(self, writer: _Writer) -> None:
        with self._lock:
            cutter = self._cutters.pop(writer, None)
            lines = cutter.finish() if cutter is not None else []
        self._log(lines, writer[1])

    def _log(self, lines: list[str], job: RunningJob | None) -> None:
        """A log that cannot be written says so on `sys.stderr`. That is dropped here: there would be no end to it."""
        if not lines or getattr(self._logging, "now", False):
            return
        self._logging.now = True
        try:
            for line in lines:
                logs.printed(line, self._stream, job=job)
        finally:
            self._logging.now = False


_files: list[Printed] = []


def install() -> None:
    """In the zygote, before anything is imported that may print. What is logged goes to standard error as it is now."""
    logs.keep_stderr()
    allowance = Allowance(PER_SECOND, AT_ONCE)
    _files[:] = [Printed("stdout", 1, allowance), Printed("stderr", 2, allowance)]
    # Through to the file with every write; it is the file that waits for the end of a line.
    texts = [io.TextIOWrapper(file, "utf-8", "backslashreplace", write_through=True) for file in _files]
    sys.stdout, sys.stderr = texts
    sys.__stdout__, sys.__stderr__ = texts  # type: ignore[misc]  # what `sys.stdout = sys.__stdout__` goes back to
    os.register_at_fork(after_in_child=_start_over)


def _start_over() -> None:
    for file in _files:
        file.start_over()


def take_pipes(pipes: list[int]) -> None:
    """In a worker: these are the descriptors 1 and 2 from here on."""
    for number, fd in enumerate(pipes, 1):
        os.dup2(fd, number)
        os.close(fd)


def settle(running: Callable[[], Iterable[RunningJob]]) -> None:
    """Log what jobs that have ended left without the end of a line; `running` tells which have not."""
    for file in _files:
        file.settle(running)


def finish() -> None:
    """Log all that is left, at the end of the process."""
    for file in _files:
        file.finish()
