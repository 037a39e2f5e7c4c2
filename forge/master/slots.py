"""A slot: room for one worker process of a queue, the process in it, and the jobs it has in hand."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterator

import orjson

from forge.job import Claim, Ending
from forge.protocol import Lines, ending_of, job_line, order_line

__all__ = ["Slot"]


class Slot:
    """One worker as the master sees it. Jobs run in the order they were sent: the oldest unanswered one is running."""

    def __init__(self, queue: str, number: int) -> None:
        self.queue = queue
        self.label = f"{queue}/{number}"
        self.channel: socket.socket | None = None
        self.pid = 0
        self.ready = False  # has said hello
        self.draining = False
        self.in_hand: dict[str, Claim] = {}  # by the hex of its id, oldest first
        self.head_since = 0.0  # monotonic: when the oldest one came to be the running one
        self.started_at = 0.0
        self.killed_for: str | None = None  # why the master killed it, for the job's errors
        self._out: deque[bytes] = deque()
        self._lines = Lines()

    def open(self, channel: socket.socket) -> None:
        """A new process is being forked for this slot."""
        channel.setblocking(False)
        self.channel = channel
        self.pid, self.ready, self.draining, self.killed_for = 0, False, False, None
        self.started_at = time.monotonic()
        self._out.clear()
        self._lines = Lines()

    def send(self, claim: Claim) -> None:
        """Hand a job over."""
        if not self.in_hand:
            self.head_since = time.monotonic()
        self.in_hand[claim.id.hex] = claim
        self._out.append(job_line(claim))

    def drain(self) -> None:
        """Ask for what has not started, and to leave after what has."""
        if not self.draining and self.channel is not None:
            self.draining = True
            self._out.append(order_line("drain"))

    @property
    def wants_to_write(self) -> bool:
        """Whether lines wait to be written."""
        return bool(self._out)

    def flush(self) -> None:
        """Write as much as the socket takes now."""
        while self._out and self.channel is not None:
            data = b"".join(self._out)
            self._out.clear()
            try:
                sent = self.channel.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # its end is seen on the reading side
            if sent < len(data):
                self._out.append(data[sent:])
                return

    def receive(self) -> Iterator[tuple[Ending, float]]:
        """Endings that have come in, with the seconds each took. EOFError: the process is gone."""
        assert self.channel is not None
        try:
            data = self.channel.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise EOFError
        for line in self._lines.feed(data):
            reply = orjson.loads(line)
            if "hello" in reply:
                self.pid, self.ready = reply["hello"], True
                continue
            claim = self.in_hand.pop(reply["id"])
            self.head_since = time.monotonic()
            yield ending_of(reply, claim), float(reply.get("took", 0.0))

    def close(self) -> list[Claim]:
        """The process is gone: what it had in hand, the running one first."""
        left = list(self.in_hand.values())
        self.in_hand.clear()
        if self.channel is not None:
            self.channel.close()
        self.channel, self.ready = None, False
        return left

    def running(self) -> Claim | None:
        """The job that is running, if any."""
        return next(iter(self.in_hand.values()), None)
