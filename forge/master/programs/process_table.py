"""Programs that the zygote has exec'd, as the master sees them: three pipes, a pid, and how they ended.

Nothing here waits: what a program does not read stays in a buffer, what it writes is read as it comes, a bounded piece
at a time. A program is killed with its process group. What it is for is its subclass's matter.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import itertools
import os
import selectors
import termios
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from forge.descendants import kill_group
from forge.host_limits import explain, pipes
from forge.master.pod.log import a_bug
from forge.master.workers.zygote_process import ZygoteProcess
from forge.protocol import ProtocolError

__all__ = ["CANNOT_RUN", "Log", "Process", "ProcessTable", "Recipe"]

CANNOT_RUN = "forge: cannot run "  # what a child that could not become its program writes, see `forge.worker.exec`

PIECE = 65_536  # bytes read at once
PIECES_LEFT = 64  # at its end; more than a pipe holds
PER_SECOND = 16 * 1024 * 1024  # bytes read of one pipe; a program that writes more waits, and the master does not
MAX_ERROR_LINE = 2_000  # bytes of one line of stderr
LINES_PER_SECOND = 100  # of one program that are logged

Log = Callable[[str, str], None]  # text, who


class Recipe(NamedTuple):
    """Which program to run, with what environment, and where."""

    argv: tuple[str, ...]
    env: Mapping[str, str | None]  # added to the environment; None takes away
    cwd: str


class ProcessTable:
    """What all programs share: who starts them, who tells when their pipes are ready, and which is which."""

    def __init__(self, selector: selectors.BaseSelector, zygote: ZygoteProcess, log: Log) -> None:
        self.selector, self.zygote, self.log = selector, zygote, log
        self._numbers = itertools.count(1)
        self._living: dict[int, Process] = {}  # by number
        self._by_pid: dict[int, Process] = {}
        self._unstarted: dict[Process, str] = {}  # there was no pipe for it: why
        self.look_at = 0.0  # monotonic: somebody here wants to look at the clock then
        self.closed = False  # nothing is to be started for now

    def look_by(self, at: float) -> None:
        """Have the clock looked at then (monotonic), or before."""
        self.look_at = min(self.look_at, at)

    def looked(self, again_at: float) -> None:
        """The clock was looked at; the next time is then (monotonic)."""
        self.look_at = again_at

    def use(self, zygote: ZygoteProcess) -> None:
        """Start programs through this zygote from now on."""
        self.zygote, self.look_at = zygote, 0.0

    def close(self) -> None:
        """Start nothing until `reopen`."""
        self.closed = True

    def reopen(self) -> None:
        """Start programs again, after `close`."""
        self.closed, self.look_at = False, 0.0

    def start(self, process: Process, recipe: Recipe) -> None:
        """Have the zygote start the program."""
        number = process.number = next(self._numbers)
        self._living[number] = process
        try:
            fds = process._open_pipes()
        except OSError as e:
            self._unstarted[process] = explain(e) or str(e)  # told of at the next look, as if the zygote had said it
            self.look_at = 0.0
            return
        self.zygote.exec(number, recipe.argv, dict(recipe.env), recipe.cwd, fds)

    def heard(self, zygote: ZygoteProcess, message: Mapping[str, Any]) -> bool:
        """Take a message of a zygote in. Returns False if it is not about a program."""
        self.look_at = 0.0
        if "started" in message:
            process = self._living.get(message["started"])
            if process is None or process.zygote is not zygote or process.pid:
                raise ProtocolError(f"it has started number {message['started']}, which nobody has asked for")
            if message["pid"]:
                self._by_pid[message["pid"]] = process
                process._started(message["pid"])
            else:
                self._forget(process, None, f"{CANNOT_RUN}it: {message['error']}")
            return True
        process = self._by_pid.get(message.get("exited", 0))
        if process is None or process.zygote is not zygote:
            return False
        self._forget(process, message["status"])
        return True

    def tick(self, now: float) -> None:
        """Go on reading programs that write much, and deal with those that could not be started or whose zygote is
        gone."""
        unstarted, self._unstarted = self._unstarted, {}
        for process, why in unstarted.items():
            self._forget(process, None, f"{CANNOT_RUN}it: {why}")
        for process in list(self._living.values()):
            if process.zygote.gone:  # its children are gone with it, and nobody will say how they ended
                process._kill_group()
                self._forget(process, None)
            else:
                process._resume(now)

    def kill_all(self) -> None:
        """Kill all programs, at the end of the master."""
        for process in self._living.values():
            process.kill()

    def __bool__(self) -> bool:
        return bool(self._living)

    def _forget(self, process: Process, status: int | None, said: str | None = None) -> None:
        del self._living[process.number]
        self._by_pid.pop(process.pid, None)
        process._ended(status, said)


class Process:
    """One program. Subclasses say what its output and its end mean."""

    def __init__(self, table: ProcessTable, label: str) -> None:
        self.table, self.zygote, self.label = table, table.zygote, label
        self.number = 0
        self.pid = 0  # not known before the zygote says it
        self.killed = False
        self._gone = False
        self.status: int | None = None  # of its end; None also if nobody can tell
        self.started_at = time.monotonic()
        self.last_words = ""  # the newest line of stderr
        self.unread_at_end = 0  # bytes written to it that it never read
        self._stdin = self._stdout = self._stderr = -1
        self._unwritten = bytearray()
        self._close_stdin_after = False
        self._error_line = bytearray()
        self._window = 0.0  # the second that the amounts below are of
        self._read_in_window: dict[int, int] = {}
        self._lines_in_window = 0
        self._lines_dropped = 0

    # -- for subclasses to say ---------------------------------------------------------------------------------

    def heard(self, data: bytes) -> None:
        """Called with bytes of its stdout."""

    def fail(self, why: str) -> None:
        """Called if what it wrote could not be dealt with: it is killed, for this reason."""
        self.table.log(f"was killed: {why}", self.who)
        self.kill()

    def heard_error(self, line: str) -> None:
        """Called with a line of its stderr. It goes to the log, unless there are too many."""
        self._lines_in_window += 1
        if self._lines_in_window <= LINES_PER_SECOND:
            self.table.log(line, self.label)
        else:
            self._lines_dropped += 1

    def went_silent(self, pipe: str) -> None:
        """Called when it has closed its stdout; or its stdin, while there was something to write."""

    def ended(self) -> None:
        """Called when it is gone, and all that it wrote has been heard."""

    # -- to do with it -----------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether the clock must be looked at for it."""
        return self._lines_dropped > 0 or any(n > PER_SECOND for n in self._read_in_window.values())

    @property
    def who(self) -> str:
        """Its name for messages."""
        return f"{self.label} ({self.pid})" if self.pid else self.label

    def write(self, data: bytes, *, close: bool = False) -> None:
        """Write to its stdin, and `close` that afterwards."""
        self._unwritten += data
        self._close_stdin_after |= close
        self._flush()

    def unread(self) -> int:
        """How many bytes were written to it that it has not read."""
        if self._stdin < 0:
            return 0
        count = array.array("i", [0])
        try:
            fcntl.ioctl(self._stdin, termios.FIONREAD, count)
        except OSError:
            return 0
        return count[0] + len(self._unwritten)

    def look(self) -> None:
        """Hear at once what it has written by now, instead of at the next turn of the loop."""
        self._read_stdout()

    def kill(self) -> None:
        """Kill it with everything that it started. Nothing more is heard of it."""
        self.killed = True
        self._close_pipes()
        self._kill_group()

    def _kill_group(self) -> None:
        if not self._gone:  # the zygote has killed the group of one that is gone
            kill_group(self.pid, self.zygote.process.pid, os.getpid())

    # -- pipes -------------------------------------------------------------------------------------------------

    def _open_pipes(self) -> tuple[int, int, int]:
        """Make its pipes, and watch our ends. Returns the program's ends: stdin, stdout, stderr."""
        (stdin, self._stdin), (self._stdout, stdout), (self._stderr, stderr) = pipes(3)
        for fd in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(fd, False)
        self._watch(self._stdout, self._read_stdout)
        self._watch(self._stderr, self._read_stderr)
        return stdin, stdout, stderr

    def _watch(self, fd: int, callback: Callable[[], object], events: int = selectors.EVENT_READ) -> None:
        self.table.selector.register(fd, events, callback)

    def _unwatch(self, fd: int) -> None:
        with contextlib.suppress(KeyError):
            self.table.selector.unregister(fd)

    def _close(self, fd: int) -> int:
        """Close it, unless it is closed. Returns -1, which stands for a closed one."""
        if fd >= 0:
            self._unwatch(fd)
            os.close(fd)
        return -1

    def _close_pipes(self) -> None:
        self._stdin, self._stdout, self._stderr = map(self._close, (self._stdin, self._stdout, self._stderr))

    def _flush(self) -> None:
        if self._stdin < 0:
            return
        try:
            while self._unwritten:
                del self._unwritten[: os.write(self._stdin, self._unwritten[:PIECE])]
        except BlockingIOError:
            if self._stdin not in self.table.selector.get_map():
                self._watch(self._stdin, self._flush, selectors.EVENT_WRITE)
            return
        except OSError:
            self._unwatch(self._stdin)
            self.went_silent("stdin")
            return
        self._unwatch(self._stdin)
        if self._close_stdin_after:
            self._stdin = self._close(self._stdin)

    def _read_stdout(self) -> bool:
        data = self._read(self._stdout)
        if data:
            try:
                self.heard(data)
            except Exception:  # noqa: BLE001 (the last net: it costs this program, not the master and all the others)
                a_bug(f"reading what {self.who} wrote")
                self.fail("what it wrote could not be read")
        elif data is not None:
            self._stdout = self._close(self._stdout)
            self.went_silent("stdout")
        return bool(data)

    def _read_stderr(self) -> bool:
        data = self._read(self._stderr)
        if data:
            self._cut_lines(data)
        elif data is not None:
            self._stderr = self._close(self._stderr)
        return bool(data)

    def _read(self, fd: int) -> bytes | None:
        """A piece of what it wrote. Empty at the end, None if there is none now."""
        if fd < 0:
            return None
        try:
            data = os.read(fd, PIECE)
        except BlockingIOError:
            return None
        except OSError:
            return b""
        used = self._read_in_window.get(fd, 0) + len(data)
        self._read_in_window[fd] = used
        if used > PER_SECOND:
            self._unwatch(fd)  # until the next second
        return data

    def _cut_lines(self, data: bytes) -> None:
        """Take lines of stderr out of these bytes. Long lines are cut, so that one without an end costs no memory."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._add_to_line(line)
            self._end_line()
        self._add_to_line(rest)

    def _add_to_line(self, data: bytes) -> None:
        self._error_line += data[: MAX_ERROR_LINE + 1 - len(self._error_line)]

    def _end_line(self) -> None:
        text = self._error_line[:MAX_ERROR_LINE].decode(errors="replace").rstrip()
        if len(self._error_line) > MAX_ERROR_LINE:
            text += "…"
        self._error_line.clear()
        if text:
            self.last_words = text
            self.heard_error(text)

    def _resume(self, now: float) -> None:
        """Once a second: read those pipes again that were left alone because too much was written to them."""
        if now - self._window < 1.0:
            return
        self._window = now
        self._lines_in_window = 0
        if self._lines_dropped:
            self.table.log(f"… {self._lines_dropped} more lines", self.label)
            self._lines_dropped = 0
        for fd, callback in ((self._stdout, self._read_stdout), (self._stderr, self._read_stderr)):
            if fd >= 0 and self._read_in_window.get(fd, 0) > PER_SECOND:
                self._watch(fd, callback)
        self._read_in_window.clear()

    # -- its life as the zygote tells it -----------------------------------------------------------------------

    def _started(self, pid: int) -> None:
        self.pid = pid
        if self.killed:  # before anybody knew whom
            self.kill()

    def _ended(self, status: int | None, said: str | None) -> None:
        """What it wrote is in the pipes until it has been read; who still holds them has escaped its group."""
        self.status, self._gone = status, True
        if said is not None:
            self.last_words = said
        for read in (self._read_stdout, self._read_stderr):
            for _ in range(PIECES_LEFT):
                if not read():
                    break
        if self._error_line:
            self._end_line()
        self.unread_at_end = self.unread()
        self._close_pipes()
        self.ended()
