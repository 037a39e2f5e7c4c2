"""The master's side of the zygote: starting it, asking for workers, hearing of their ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from forge.errors import ConfigError, ExitCode, ForgeError
from forge.protocol import Lines, order_line

__all__ = ["Nursery"]

READY_WITHIN = 60.0  # seconds for the imports


class Nursery:
    """One zygote and its children."""

    def __init__(self, config_path: str | None) -> None:
        ours, theirs = socket.socketpair()
        words = [str(theirs.fileno()), str(os.getpid()), config_path or ""]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forge.worker.zygote", *words], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()
        self.control = ours
        self._lines = Lines()
        self._orders: deque[tuple[bytes, list[int]]] = deque()  # with the descriptors that go along
        self.kinds: dict[str, dict[str, Any]] = {}
        self.unsafe: list[str] = []

    def wait_until_ready(self) -> None:
        """The modules are imported. What went wrong there is raised here, in one line."""
        self.control.settimeout(READY_WITHIN)
        end = time.monotonic() + READY_WITHIN
        while time.monotonic() < end:
            try:
                messages = list(self.messages())
            except (EOFError, TimeoutError):
                break
            for message in messages:
                if "failed" in message:
                    raise _as_error(message)
                if message.get("ready"):
                    self.kinds, self.unsafe = message["kinds"], message["unsafe"]
                    self.control.setblocking(False)
                    if not self.kinds:
                        raise ConfigError('no tasks to run; name their modules in forge.toml: modules = ["tasks"]')
                    return
        self.process.kill()
        raise ConfigError(f"the modules were not imported within {READY_WITHIN:.0f} s; look at what they do at import")

    def fork(self, label: str) -> socket.socket:
        """Ask for a worker; the answer is our end of its channel, usable at once."""
        ours, theirs = socket.socketpair()
        self._order(order_line("fork", label=label), [theirs.detach()])
        return ours

    def exec(
        self, number: int, argv: Sequence[str], env: Mapping[str, str | None], cwd: str, fds: Sequence[int]
    ) -> None:
        """Ask for a program with these as stdin, stdout and stderr, which are the zygote's from here on. It tells
        `{"started": number, "pid": …}`, then `{"exited": pid, "status": …}` as of any child."""
        self._order(order_line("exec", number=number, argv=argv, env=env, cwd=cwd), fds)

    def _order(self, line: bytes, fds: Sequence[int] = ()) -> None:
        self._orders.append((line, list(fds)))
        self.flush()

    def flush(self) -> None:
        """Write the orders that wait, as far as the zygote takes them: a command's words may be many."""
        while self._orders:
            line, fds = self._orders[0]
            try:
                sent = socket.send_fds(self.control, [line], fds) if fds else self.control.send(line)
            except BlockingIOError:
                return
            except OSError:
                sent = len(line)  # it is gone, which is seen on the reading side
            for fd in fds:
                os.close(fd)
            if sent < len(line):
                self._orders[0] = (line[sent:], [])
            else:
                self._orders.popleft()

    def retire(self) -> None:
        """No more forks; the zygote leaves after its last child."""
        self._order(order_line("retire"))

    def messages(self) -> Iterator[dict[str, Any]]:
        """What has come in. EOFError: the zygote is gone."""
        try:
            data = self.control.recv(65536)
        except BlockingIOError:
            return
        if not data:
            raise EOFError
        for line in self._lines.feed(data):
            yield orjson.loads(line)

    def close(self) -> None:
        """Let go, and wait for it to leave."""
        self.control.close()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _as_error(message: dict[str, Any]) -> ForgeError:
    error = ForgeError(message["failed"])
    error.exit_code = ExitCode(message["code"])
    return error
