"""What a module leaves behind when it is imported and a fork cannot take along: running threads, open sockets.

In the zygote, after each import. A forked worker has the socket too, and both would talk on it; it does not have the
thread, but it has the locks that the thread held.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
from contextlib import suppress

__all__ = ["Audit"]


class Audit:
    """Knows what was there before; `look` says what is new."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._threads = set(threading.enumerate())
        self._sockets = _sockets()

    def look(self, module: str) -> None:
        """After the import of a module: add a sentence for each thread and socket that it has left."""
        for thread in threading.enumerate():
            if thread not in self._threads:
                self._threads.add(thread)
                self.found.append(f"{module}: left the thread {thread.name} running")
        sockets = _sockets()
        for fd, inode in sockets - self._sockets:
            self.found.append(f"{module}: left a socket open{_to(fd)} (fd {fd})")
            self._sockets.add((fd, inode))


def _sockets() -> set[tuple[int, int]]:
    """Descriptors that are sockets, with what tells two under the same number apart."""
    found = set()
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # the one that listed them is closed by now
            info = os.fstat(int(name))
            if stat.S_ISSOCK(info.st_mode):
                found.add((int(name), info.st_ino))
    return found


def _to(fd: int) -> str:
    """` to 10.0.0.5:5432`, if it is connected to something that has a name."""
    blocking = os.get_blocking(fd)
    with suppress(OSError), socket.socket(fileno=os.dup(fd)) as copy:
        os.set_blocking(fd, blocking)  # a default timeout of theirs has changed it for both
        peer = copy.getpeername()
        if isinstance(peer, tuple):
            return f" to {peer[0]}:{peer[1]}"
        if isinstance(peer, str) and peer:
            return f" to {peer}"
    return ""
