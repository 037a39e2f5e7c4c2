"""Pairs of sockets that a module has made and kept both ends of, as an event loop has one to wake itself.

After a fork all workers have the same pair and the same epoll, and a wake-up goes to whoever looks first: the one that
was meant waits for ever. So each worker gets its own, under the same numbers. Linux only: elsewhere nobody tells which
ends belong together.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["epolls", "pairs", "peer_of", "renew_epoll", "renew_pair"]

_LINUX = sys.platform == "linux"
# Of the kernel's sock_diag(7): a question about one socket, and what there is in the answer.
_NETLINK_SOCK_DIAG, _BY_FAMILY, _REQUEST, _SHOW_PEER, _PEER = 4, 20, 1, 4, 2
_ANY = 0xFFFFFFFF
_QUESTION, _HEADER, _ATTRIBUTE = struct.Struct("=IHHIIBBHIIIII"), struct.Struct("=IHHIIBBBBIII"), struct.Struct("=HHI")


def peer_of(fd: int) -> int | None:
    """The inode of the other end of a Unix socket, 0 if it is closed; None: the kernel does not tell."""
    if not _LINUX:
        return None
    inode = os.fstat(fd).st_ino & _ANY
    question = _QUESTION.pack(
        _QUESTION.size, _BY_FAMILY, _REQUEST, 1, 0, socket.AF_UNIX, 0, 0, _ANY, inode, _SHOW_PEER, _ANY, _ANY
    )
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(1.0)
            kernel.sendto(question, (0, 0))
            answer = kernel.recv(65536)
    except OSError:
        return None
    if len(answer) < _HEADER.size or _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        return None
    at = _HEADER.size
    while at + _ATTRIBUTE.size <= len(answer):
        length, kind, value = _ATTRIBUTE.unpack_from(answer, at)
        if kind == _PEER:
            return int(value)
        at += max(4, (length + 3) & ~3)
    return 0


def pairs(fds: Iterable[int]) -> list[tuple[int, int]]:
    """Those among these Unix sockets of which both ends are here. An end that is here twice is in none of them."""
    by_inode: dict[int, list[int]] = {}
    for fd in fds:
        by_inode.setdefault(os.fstat(fd).st_ino & _ANY, []).append(fd)
    found = []
    for inode, (one, *more) in by_inode.items():
        peer = peer_of(one)
        other = by_inode.get(peer or 0, [])
        if peer is not None and inode < peer and not more and len(other) == 1:
            found.append((one, other[0]))
    return found


def renew_pair(one: int, other: int) -> None:
    """Have another pair under these numbers."""
    with socket.socket(fileno=os.dup(one)) as like:
        family, kind = like.family, like.type
    fresh = socket.socketpair(family, kind)
    for mine, fd in zip(fresh, (one, other), strict=True):
        with mine:
            os.set_blocking(mine.fileno(), os.get_blocking(fd))
            os.dup2(mine.fileno(), fd, inheritable=os.get_inheritable(fd))


def epolls() -> Iterator[int]:
    """The descriptors that are one."""
    for name in os.listdir("/dev/fd") if _LINUX else ():
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]":
                yield int(name)


def renew_epoll(fd: int) -> None:
    """Have another one under this number, which waits for the same descriptors. As Python's own do, it answers with
    their numbers; one that has other answers is a library's, and stays."""
    lines = [line.split() for line in Path(f"/proc/self/fdinfo/{fd}").read_text("ascii").splitlines()]
    waited = [(int(words[1]), int(words[3], 16), int(words[5], 16)) for words in lines if words[:1] == ["tfd:"]]
    if any(answer & _ANY != number for number, _, answer in waited):
        return
    with select.epoll() as fresh:  # type: ignore[attr-defined,unused-ignore]  # on Linux
        for number, events, _ in waited:
            with suppress(OSError):  # it is closed here
                fresh.register(number, events)
        os.dup2(fresh.fileno(), fd, inheritable=False)
