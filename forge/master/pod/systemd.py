"""What systemd is told: that the master is ready, what it does, that it reloads, stops, and is not stuck.

The protocol is a datagram of KEY=value lines to the socket that $NOTIFY_SOCKET names. Without it every call does
nothing. The master must not stop because of it: what cannot be sent is dropped.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from collections.abc import MutableMapping

__all__ = ["Systemd"]


class Systemd:
    """Tells whoever started this process. Must be made before any child is: it takes the variables out of the
    environment, so that no worker can speak in the master's name."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        interval, guarded = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        self._status = ""
        self._every = math.inf  # seconds between signs of life
        self.due = math.inf  # monotonic time of the next one; the loop must not sleep past it
        if not self._address.startswith(("/", "\0")):
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        if interval.isdecimal() and int(interval) > 0 and guarded in ("", str(os.getpid())):
            self._every = int(interval) / 2e6  # half of it: one may come late
            self.due = 0.0

    def ready(self, status: str) -> None:
        """The pod serves, or has reloaded; `status` is shown by `systemctl status`."""
        self._status = status
        self._send("READY=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        """One line for `systemctl status`; sent only if it has changed."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def reloading(self) -> None:
        """A reload has begun; `ready` ends it."""
        self._status = "reloading"
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reloading")

    def stopping(self) -> None:
        """The pod stops: its exit is wanted from now on."""
        self._status = "stopping"
        self._send("STOPPING=1", "STATUS=stopping")

    def alive(self, now: float) -> None:
        """Send a sign of life, if it is time. Called by each turn of the loop and by nobody else: a loop that is stuck
        is to be seen."""
        if now >= self.due:
            self.due = now + self._every
            self._send("WATCHDOG=1")

    def close(self) -> None:
        """Close the socket. Nothing is sent any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto("\n".join(lines).encode(), self._address)
