"""A trial: workers that are started to see whether the code can serve, before the workers there are make room for it.

In the zygote, which takes the master's part: it hears a worker's hello, tells it to leave, and gives it no job. So the
functions of `on_worker_start` and `on_worker_stop` are called as in any worker. Whatever they do (raise, hang, crash,
`os._exit`), it is their process that has it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson

from forge.config.model import QueueConfig
from forge.descendants import how_it_ended
from forge.errors import StartError
from forge.protocol import FrameSplitter, ProtocolError, TrialKind, channel_pair, frame_of

__all__ = ["Tried", "conclude", "one_of_each", "watch"]

LOOK_EVERY = 0.05  # seconds between looks whether one has ended
SAID = 1000  # characters of a reason


def one_of_each(queues: Mapping[str, QueueConfig]) -> list[str]:
    """Queues that together have every kind of worker there is to be: their functions run in different ways."""
    kinds: dict[str, str] = {}
    for name, queue in queues.items():
        kinds.setdefault(queue.worker, name)
    return sorted(kinds.values()) or ["default"]


class Tried:
    """One worker on trial."""

    def __init__(self, queue: str) -> None:
        self.queue, self.label = queue, f"{queue}/trial"
        self.channel, self.theirs = channel_pair()
        self.pid = 0
        self.ready = False
        self.reason: str | None = None  # why it failed, the first there was
        self.over = False
        self.mute = False  # it says no more
        self._frames = FrameSplitter()

    def forked(self, pid: int) -> None:
        """It is this process, which has its own copy of the other end of the channel."""
        self.pid = pid
        self.theirs.close()

    def hear(self) -> None:
        """Read what it has said so far."""
        try:
            while not self.mute:
                data = self.channel.recv(65536, socket.MSG_DONTWAIT)
                self.mute = not data
                for line in self._frames.feed(data):
                    self._said(orjson.loads(line))
        except OSError:
            pass  # nothing more now
        except ValueError:
            self.mute = True
            self.end("broke the protocol")

    def _said(self, message: Any) -> None:
        if type(message) is not dict:
            raise ProtocolError("no JSON object")
        if "hello" in message:
            self.ready = True
            self.channel.sendall(frame_of({"do": "drain"}))
        elif message.get("say") == "failed":
            self._failed(str(message.get("why"))[:SAID])

    def end(self, why: str) -> None:
        """Kill it, and what it has started, for this reason."""
        self._failed(why)
        for kill in (os.killpg, os.kill):  # it may not lead its group yet
            with suppress(OSError):
                kill(self.pid, signal.SIGKILL)

    def ended(self, status: int) -> None:
        """Its process has ended, with this exit code or minus this signal."""
        self.hear()
        self.over = True
        if status or not self.ready:
            self._failed(how_it_ended(status))
        self.channel.close()

    def _failed(self, why: str) -> None:
        self.reason = self.reason or why


def watch(tried: Sequence[Tried], within: float, ended: Callable[[int], int | None]) -> None:
    """Until all are over; each has so many seconds to become ready, and as many to leave. `ended` tells how a process
    has, if it has."""
    by = dict.fromkeys(tried, time.monotonic() + within)
    while living := [each for each in tried if not each.over]:
        said = select.poll()
        for each in living:
            if not each.mute:
                said.register(each.channel, select.POLLIN)
        said.poll(1000 * LOOK_EVERY)
        now = time.monotonic()
        for each in living:
            was_ready = each.ready
            each.hear()
            if each.ready and not was_ready:
                by[each] = now + within
            if now > by[each]:
                each.end(f"it was not {'gone' if each.ready else 'ready'} within {within:g} s")
            if (status := ended(each.pid)) is not None:
                each.ended(status)


def conclude(tried: Sequence[Tried], kind: TrialKind) -> None:
    """`StartError` if this kind of trial has failed."""
    for each in tried:
        if not each.ready:
            raise StartError(f"a worker of {each.queue} cannot start: {each.reason}")
        if each.reason is not None and kind == "stop":
            raise StartError(f"a worker of {each.queue} cannot leave in order: {each.reason}")
