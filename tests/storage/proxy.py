"""A proxy in front of PostgreSQL that can lose the answer to a commit (the server did it, the client cannot know), and
fall silent: connections stay open, and nothing passes."""

from __future__ import annotations

import contextlib
import socket
import struct
import tempfile
import threading
from types import TracebackType
from typing import Self
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

SOCKET = ".s.PGSQL.5432"


class Proxy:
    """Listens on a Unix socket of its own; `url` leads through it. Everything passes until `cut_after`."""

    def __init__(self, url: str) -> None:
        parts = conninfo_to_dict(url)
        self._target = f"{parts['host']}/{SOCKET}"
        self._folder = tempfile.TemporaryDirectory(prefix="forge-px-")
        self.url = f"postgresql://postgres@/{parts['dbname']}?host={quote(self._folder.name)}"
        self.cut = threading.Event()  # a connection was cut
        self._tag: bytes | None = None
        self._made = 0  # connections
        self._deaf = self._mute = 0  # of the first so many nothing is passed on, or no answer
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(f"{self._folder.name}/{SOCKET}")
        self._server.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for sock in (self._server, *self._sockets):
            _hang_up(sock)
        for thread in self._threads:
            thread.join(5)
        for sock in (self._server, *self._sockets):
            sock.close()
        self._folder.cleanup()

    def cut_after(self, rows: int) -> None:
        """Cut the next connection that commits a transaction with a statement of so many rows, keeping the answer."""
        self.cut.clear()
        self._tag = b" %d\0" % rows

    def fall_silent(self, *, answers_only: bool = False) -> None:
        """On every connection there is; new ones are not concerned."""
        self._mute = self._made
        if not answers_only:
            self._deaf = self._made

    def crash(self) -> None:
        """Hang up on every connection there is, with the words that a server has for it when it must stop at once."""
        fields = b"SWARNING\0VWARNING\0C57P02\0Mterminating connection due to immediate shutdown command\0\0"
        for n, sock in enumerate(list(self._sockets)):
            if n % 2 == 0:
                sock.sendall(b"N" + struct.pack("!i", 4 + len(fields)) + fields)
            _hang_up(sock)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                upstream = socket.socket(socket.AF_UNIX)
                upstream.connect(self._target)
                self._sockets += [client, upstream]
                self._made += 1
                pumps = [
                    threading.Thread(target=self._forth, args=(client, upstream, self._made), daemon=True),
                    threading.Thread(target=self._back, args=(client, upstream, self._made), daemon=True),
                ]
                self._threads += pumps
                for pump in pumps:
                    pump.start()

    def _forth(self, client: socket.socket, upstream: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if number <= self._deaf:
                    self._over.wait()
                upstream.sendall(data)
        _hang_up(upstream)

    def _back(self, client: socket.socket, upstream: socket.socket, number: int) -> None:
        """Pass answers on message by message; while armed, only once a whole answer is there."""
        held, seen = b"", False
        with contextlib.suppress(OSError, EOFError):
            while True:
                kind, message = _read_message(upstream)
                held += message
                tag = self._tag
                if kind == b"C" and tag is not None and message.endswith(tag):
                    seen = True
                ready = kind == b"Z"
                if ready and message.endswith(b"I"):
                    if seen and self._claim_the_cut():
                        break
                    seen = False
                if number <= self._mute:
                    self._over.wait()
                if tag is None or ready or kind in b"GN":  # a COPY waits for its G before it goes on
                    client.sendall(held)
                    held = b""
        _hang_up(client)
        _hang_up(upstream)
        if seen:
            self.cut.set()

    def _claim_the_cut(self) -> bool:
        with self._lock:
            armed, self._tag = self._tag is not None, None
            return armed


def _read_message(sock: socket.socket) -> tuple[bytes, bytes]:
    """(type, whole message) of the server's next one."""
    head = _read(sock, 5)
    (length,) = struct.unpack("!i", head[1:])
    return head[:1], head + _read(sock, length - 4)


def _read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _hang_up(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
