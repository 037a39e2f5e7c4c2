"""What processes print, cut into lines that a log can take: long ones are cut, and of too many the rest is counted.

Whoever prints may print for ever, with newlines or without: a line costs memory up to a limit, and a piece of output
that is not going to be logged costs next to no time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["MAX_PRINTED", "Allowance", "Cutter"]

MAX_PRINTED = 8000  # bytes of one line; less than `forge.logs` takes, which is in characters
LINE_COST = 1000  # bytes; a line that has more counts as several


class Allowance:
    """How many lines may be logged: so many a second, and more at once after a time of silence. Once it is used up
    there are none for a second, so that who prints too much is told of it once a second and not at each line."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._left, self._at, self._empty = burst, clock(), False

    def take(self, size: int) -> bool:
        """Whether a line of so many bytes may be logged now."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        cost = 1 + min(size, MAX_PRINTED) // LINE_COST
        if self._left < (self._rate if self._empty else cost):
            self._empty = True
            return False
        self._empty = False
        self._left -= cost
        return True


class Cutter:
    """Bytes of one stream as they come. What it answers is what to log."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._line = bytearray()  # that has no end yet
        self._more = 0  # bytes of it that are not kept
        self._dropped = 0  # lines

    def __bool__(self) -> bool:
        """Whether there is anything that has not been answered yet."""
        return bool(self._line or self._dropped)

    def feed(self, data: bytes) -> list[str]:
        """The lines that are complete now."""
        lines: list[str] = []
        begin = 0
        while (end := data.find(b"\n", begin)) >= 0:
            self._add(data, begin, end)
            if not self._end_line(lines):
                # Not one by one: a piece of 64 KB may have as many of them.
                self._dropped += data.count(b"\n", end + 1)
                begin = data.rfind(b"\n") + 1
                break
            begin = end + 1
        self._add(data, begin, len(data))
        return lines

    def finish(self) -> list[str]:
        """What has come since the last line, as if it were one, and how many were left out."""
        lines: list[str] = []
        if self._line:
            self._end_line(lines)
        self._tell(lines)
        return lines

    def _add(self, data: bytes, begin: int, end: int) -> None:
        room = MAX_PRINTED - len(self._line)
        self._line += data[begin : min(end, begin + room)]
        self._more += max(0, end - begin - room)

    def _end_line(self, lines: list[str]) -> bool:
        """Add the complete line to `lines` and begin another. False if too many were printed: then it is counted."""
        taken = self._allowance.take(len(self._line))
        if taken:
            self._tell(lines)
            text = self._line.decode(errors="backslashreplace").strip("\r").rstrip()
            if self._more:
                text += f"… ({self._more:,} more bytes)"
            if text:
                lines.append(text)
        else:
            self._dropped += 1
        self._line.clear()
        self._more = 0
        return taken

    def _tell(self, lines: list[str]) -> None:
        if self._dropped:
            lines.append(f"… {self._dropped:,} more {'line' if self._dropped == 1 else 'lines'}, too many to log")
            self._dropped = 0
