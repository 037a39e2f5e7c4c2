"""What workers write to the descriptors 1 and 2, past Python: C code, programs that a handler starts, a dying
interpreter. It comes through two pipes of each worker and goes to the log, a line each. What handlers `print` does not
come here: see `forge.worker.output`.

A worker that writes more than is read waits for its own pipe, and nobody else does. Its pipes are read as long as it
lives, and once more when it is gone, so that no write of a handler's is refused and no last words are lost.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import time
from typing import Literal

from forge import logs
from forge.host_limits import pipes
from forge.logs import RunningJob
from forge.master.workers.slot import Slot
from forge.printing import Allowance, Cutter

__all__ = ["Outputs"]

PIECE = 65_536  # bytes read at once: as much as a pipe holds
PAUSE = 0.02  # seconds for which a pipe that was full is left alone: 3 MB/s of it are read, and cost 1 % of a core
PER_SECOND, AT_ONCE = 100, 1000  # lines of one worker
PATIENCE = 1.0  # seconds for the end of a line, and for more lines before it is told how many were left out


class Output:
    """One pipe of one worker."""

    def __init__(self, slot: Slot, stream: Literal["stdout", "stderr"], fd: int, allowance: Allowance) -> None:
        self.slot, self._stream = slot, stream
        self._cutter = Cutter(allowance)
        self.fd = fd
        os.set_blocking(fd, False)
        self.paused = False  # what is in the pipe may be of a job that has ended
        self._job: RunningJob | None = None  # whose the last bytes were

    def read(self) -> bytes | None:
        """Log what is in the pipe. Returns it; empty at the pipe's end, None if there is nothing now."""
        try:
            data = os.read(self.fd, PIECE)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        # The worker's only job, if it has no more: else nobody can tell whose it is.
        alone = len(self.slot.in_hand) == 1 and not self.paused
        self._job = next(iter(self.slot.in_hand.values()))[0] if alone else None
        self.paused = False
        self._log(self._cutter.feed(data))
        return data

    @property
    def unfinished(self) -> bool:
        """Whether `finish` would log anything."""
        return bool(self._cutter)

    def finish(self) -> None:
        """Log what is left: a line without an end, and how many lines were left out."""
        self._log(self._cutter.finish())

    def close(self) -> None:
        """Log all that is left in the pipe, and close it."""
        for _ in range(2):  # more than a pipe holds; who goes on writing has escaped its worker's end
            if not self.read():
                break
        self.finish()
        os.close(self.fd)

    def _log(self, lines: list[str]) -> None:
        for line in lines:
            logs.printed(line, self._stream, who=self.slot.label, job=self._job)


class Outputs:
    """The pipes of all workers of a pod. They are read before a worker's replies are, so that it is known whose output
    it is."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """`selector` is the loop's. All pipes are one entry of it."""
        self._pipes = selectors.DefaultSelector()
        self._outputs: dict[Slot, list[Output]] = {}
        self._paused: list[Output] = []
        self._unfinished: dict[Output, float] = {}  # when to finish it, monotonic
        self.due = math.inf  # monotonic: `tick` then
        self._selector = selector
        selector.register(self._pipes.fileno(), selectors.EVENT_READ, self.read)

    def open(self, slot: Slot) -> tuple[int, int]:
        """Make pipes for a new process. Returns the ends that are for it, which the caller must close. Raises `OSError`
        if there can be none."""
        self.close(slot)
        (stdout, theirs_out), (stderr, theirs_err) = pipes(2)
        allowance = Allowance(PER_SECOND, AT_ONCE)
        self._outputs[slot] = [Output(slot, "stdout", stdout, allowance), Output(slot, "stderr", stderr, allowance)]
        for output in self._outputs[slot]:
            self._pipes.register(output.fd, selectors.EVENT_READ, output)
        return theirs_out, theirs_err

    def read(self) -> None:
        """Log what has come, of all workers."""
        for key, _ in self._pipes.select(0) if self._outputs else ():
            output: Output = key.data
            data = output.read()
            if data is None:
                continue
            if not data:
                self._pipes.unregister(output.fd)
            elif len(data) == PIECE:
                self._pause(output)
            if output.unfinished and output not in self._unfinished:
                self._unfinished[output] = time.monotonic() + PATIENCE
                self.due = min(self.due, self._unfinished[output])

    def _pause(self, output: Output) -> None:
        self._pipes.unregister(output.fd)
        output.paused = True
        self._paused.append(output)
        self.due = min(self.due, time.monotonic() + PAUSE)

    def tick(self, now: float) -> None:
        """Read pipes again that were left alone for a while, and log lines that have waited too long for their end."""
        paused, self._paused = self._paused, []
        for output in paused:
            self._pipes.register(output.fd, selectors.EVENT_READ, output)
        for output in [output for output, at in self._unfinished.items() if at <= now]:
            del self._unfinished[output]
            output.finish()
        self.due = min(self._unfinished.values(), default=math.inf)

    def close_all(self) -> None:
        """Log what is left and close all pipes, at the end of the master."""
        for slot in list(self._outputs):
            self.close(slot)
        self._selector.unregister(self._pipes.fileno())
        self._pipes.close()

    def close(self, slot: Slot) -> None:
        """Log what is left of a worker that is gone, and close its pipes. Must be called while its slot still has the
        jobs it had in hand."""
        for output in self._outputs.pop(slot, ()):
            with contextlib.suppress(KeyError):  # it has ended, or is left alone
                self._pipes.unregister(output.fd)
            if output in self._paused:
                self._paused.remove(output)
            self._unfinished.pop(output, None)
            output.close()
