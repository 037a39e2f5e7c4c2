"""A worker: the process that runs handlers. It is forked from the zygote, so the modules are there already.

The main thread runs one job after another, so that a handler may do what only a main thread can (signal handlers, an
event loop of its own). A second thread reads the master's lines: it can be told to give back what has not started
while a handler runs. Replies are gathered while more work is waiting: a no-op job costs a send per
hundred, a lone one is answered at once.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Mapping

import orjson
import setproctitle

from forge.app.registry import Handler
from forge.job import Claim, Ending, Released
from forge.protocol import Lines, claim_of, reply_line
from forge.worker.inline import execute

__all__ = ["Worker"]

GATHERED = 64  # replies sent at once at most,
GATHER_SECONDS = 0.005  # and none waits longer than this for the next job to end


class Worker:
    """One forked process, from its first line to its last."""

    def __init__(self, label: str, channel: socket.socket, handlers: Mapping[str, Handler]) -> None:
        self._label = label
        self._channel = channel
        self._handlers = handlers
        self._jobs: queue.SimpleQueue[Claim | None] = queue.SimpleQueue()  # None: no more will come
        self._draining = threading.Event()
        self._replies: list[bytes] = []
        self._sent_at = 0.0

    def run(self) -> None:
        """Serve until the master says drain or is gone."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the terminal's Ctrl-C is the master's to interpret
        setproctitle.setproctitle(f"forge: worker {self._label}")
        self._channel.sendall(orjson.dumps({"hello": os.getpid()}) + b"\n")
        threading.Thread(target=self._read, name="reader", daemon=True).start()
        while (claim := self._next()) is not None:
            began = time.monotonic()
            if self._draining.is_set():
                ending = Ending(claim, Released())
            else:
                ending = execute(claim, self._handlers)
            self._replies.append(reply_line(ending, time.monotonic() - began))
            if len(self._replies) >= GATHERED or time.monotonic() - self._sent_at >= GATHER_SECONDS:
                self._send()
        self._send()

    def _next(self) -> Claim | None:
        try:
            return self._jobs.get_nowait()
        except queue.Empty:
            self._send()  # nothing to do: nobody should wait for what is done
            return self._jobs.get()

    def _send(self) -> None:
        self._sent_at = time.monotonic()
        if self._replies:
            self._channel.sendall(b"".join(self._replies))
            self._replies.clear()

    def _read(self) -> None:
        """The second thread. A master that is gone takes this process with it, handler or not."""
        lines = Lines()
        while data := self._receive():
            for line in lines.feed(data):
                message = orjson.loads(line)
                if "do" not in message:
                    self._jobs.put(claim_of(message))
                elif message["do"] == "drain":
                    self._draining.set()
                    self._jobs.put(None)
        os._exit(0)

    def _receive(self) -> bytes:
        try:
            return self._channel.recv(1 << 18)
        except OSError:
            return b""
