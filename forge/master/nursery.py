"""The master's side of the zygote: starting it, asking for workers, hearing of their ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
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
        line = orjson.dumps({"do": "fork", "label": label}) + b"\n"
        socket.send_fds(self.control, [line], [theirs.fileno()])
        theirs.close()
        return ours

    def retire(self) -> None:
        """No more forks; the zygote leaves after its last child."""
        self.control.send(order_line("retire"))

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
