"""What a module leaves behind when it is imported and a fork cannot take along: running threads, open connections.

In the zygote, after each import. A forked worker does not have the thread, but it has the locks that the thread held.
It has the socket too, and so have all others: whoever reads first would get the answer that another one waits for. So
each worker is cut off from it, and has an event loop's means to wake itself anew, see `Audit.cut`.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
import threading
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress

from forge.worker.pairs import epolls, pairs, peer_of, renew_epoll, renew_pair

__all__ = ["Audit"]

CONNECT = "connect in a function of @app.on_worker_start"
# Of these each message comes whole and from one sender, as to statsd or syslog: any number of processes may send.
_DATAGRAMS = (socket.SOCK_DGRAM, socket.SOCK_RAW)
_FAMILIES = [getattr(socket, name) for name in ("AF_INET", "AF_INET6", "AF_UNIX", "AF_VSOCK") if hasattr(socket, name)]
_SQLITE = b"SQLite format 3\0"  # a database file begins with it


class Audit:
    """Knows what was there before the imports: forge's own, and what this process was given by whoever started it.
    `look` says what is new."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._threads = set(threading.enumerate())
        self._before = frozenset(_open())
        self._known = set(self._before)
        self._epolls: set[int] = set()

    def look(self, module: str) -> None:
        """After the import of a module: add a sentence for each thread, socket and database that it has left."""
        for thread in threading.enumerate():
            if thread not in self._threads:
                self._threads.add(thread)
                self.found.append(f"{module}: left the thread {thread.name} running")
        self._epolls = set(epolls())
        opened = _open()
        own_pairs = _pairs([fd for fd, _ in opened - self._before])
        for each in sorted(opened - self._known):
            self._known.add(each)
            if not any(each[0] in pair for pair in own_pairs) and (words := _said(each[0])):
                self.found.append(f"{module}: left {words}")

    def cut(self, own: Container[int] = ()) -> None:
        """In a worker, before any other code: its copies of connections that were opened since the beginning become
        ones whose other end is closed. So a library sees that its connection is broken, and cannot read an answer that
        is another worker's, nor say goodbye on its behalf. Pairs of which it has both ends, and what waits for them,
        become its own. `own` are descriptors to leave alone.

        Looked for anew: a thread that a module has left running may have connected since the import."""
        opened = [fd for fd, _ in _open() - self._before if fd not in own]
        own_pairs = _pairs(opened)
        for pair in own_pairs:
            renew_pair(*pair)
        shared = [fd for fd in opened if not any(fd in pair for pair in own_pairs) and _is_connection(fd)]
        if shared:
            dead, other = socket.socketpair()
            with dead, other:
                other.close()
                for fd in shared:
                    os.dup2(dead.fileno(), fd, inheritable=False)
        for fd in self._epolls.intersection(epolls()) if self._epolls else ():
            renew_epoll(fd)


def _pairs(fds: list[int]) -> list[tuple[int, int]]:
    """Of which a process has both ends."""
    streams = []
    for fd in fds:
        with suppress(OSError), _copy(fd) as copy:
            if copy.family == socket.AF_UNIX and copy.type not in _DATAGRAMS and not _named(copy):
                streams.append(fd)
    return pairs(streams) if len(streams) > 1 else []


def _open() -> set[tuple[int, int]]:
    """Descriptors that are sockets or files, with what tells two under the same number apart."""
    found = set()
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # the one that listed them is closed by now
            info = os.fstat(int(name))
            if stat.S_ISSOCK(info.st_mode) or stat.S_ISREG(info.st_mode):
                found.add((int(name), info.st_ino))
    return found


def _said(fd: int) -> str:
    """What there is to say about a descriptor; nothing of most files, and of sockets that may be shared."""
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        if not _is_database(fd):
            return ""
        return f"the SQLite database {_path(fd)} open (fd {fd}), which must not be used after a fork; {CONNECT}"
    with suppress(OSError), _copy(fd) as copy:
        if copy.type in _DATAGRAMS:
            return ""
        if _listens(copy):
            return f"a socket listening (fd {fd}), which all workers have"
        if _is_own_pair(copy):
            return f"a pair of sockets open, perhaps an event loop's (fd {fd}), which all workers share"
        return f"a socket open{_to(copy)} (fd {fd}), which workers are cut off from; {CONNECT}"
    return ""


def _is_connection(fd: int) -> bool:
    """Whether it is a stream to somebody, or about to be one: what only one process can make use of."""
    with suppress(OSError), _copy(fd) as copy:
        if copy.family in _FAMILIES and copy.type not in _DATAGRAMS:
            return not _listens(copy) and not _is_own_pair(copy)
    return False


@contextmanager
def _copy(fd: int) -> Iterator[socket.socket]:
    """To ask it something. A default timeout that a module has set would change how the socket itself waits."""
    blocking = os.get_blocking(fd)
    with socket.socket(fileno=os.dup(fd)) as copy:
        os.set_blocking(fd, blocking)
        yield copy


def _listens(sock: socket.socket) -> bool:
    with suppress(OSError):
        return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return False


def _named(sock: socket.socket) -> bool:
    """Whether it listens, or is a connection to somebody who did."""
    try:
        return bool(sock.getsockname() or sock.getpeername())
    except OSError:
        return True


def _is_own_pair(sock: socket.socket) -> bool:
    """Whether this process, or the zygote that it was forked from, has made both ends, where nobody tells where they
    are. An event loop has such a pair to wake itself; cut off, it would never wake again."""
    if sock.family != socket.AF_UNIX or _named(sock) or peer_of(sock.fileno()) is not None:
        return False
    with suppress(OSError):
        return _maker(sock) in (os.getpid(), os.getppid())
    return False


def _maker(sock: socket.socket) -> int:
    """The process that made the other end of a pair, where the system tells."""
    if sys.platform != "linux":
        return os.getpid()
    pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid)


def _is_database(fd: int) -> bool:
    with suppress(OSError):
        return os.pread(fd, len(_SQLITE), 0) == _SQLITE
    return False


def _path(fd: int) -> str:
    with suppress(OSError):
        return os.path.basename(os.readlink(f"/dev/fd/{fd}"))
    return "?"


def _to(sock: socket.socket) -> str:
    """` to 10.0.0.5:5432`, if it is connected to something that has a name."""
    with suppress(OSError):
        peer = sock.getpeername()
        if isinstance(peer, tuple):
            return f" to {peer[0]}:{peer[1]}"
        if isinstance(peer, str) and peer:
            return f" to {peer}"
    return ""
