"""The master's side of a zygote: starting it, asking for workers, hearing of their ends."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from forge.descendants import how_it_ended, parent_of
from forge.errors import ConfigError, ExitCode, ForgeError
from forge.fence import Fence
from forge.host_limits import explain, files_at_start
from forge.master.message_checks import zygote_message
from forge.protocol import FrameSplitter, ProtocolError, ToZygote, TrialKind, channel_pair, frame_of
from forge.storage.contract.schedules import NewSchedule

__all__ = ["ZygoteProcess"]

READY_WITHIN = 60.0  # seconds for the imports


class ZygoteProcess:
    """One zygote and its children. Ready once `receive` or `wait_until_ready` has heard so."""

    within = READY_WITHIN  # seconds from its start until it must be

    def __init__(
        self,
        config_path: str | None,
        *,
        may_be_empty: bool = False,
        trial: TrialKind = "",
        ready_within: float = 0.0,
        fence: Fence | None = None,
    ) -> None:
        """`may_be_empty`: there are pools or commands, so it is no mistake that the modules define no task. `trial`: it
        is ready only if a worker can start, or start and stop, each within `ready_within`; see `forge.worker.trial`.
        `fence` is that of the zygotes before this one."""
        try:
            self.fence = fence or Fence()
            self.process, ours = _start_zygote(config_path, self.fence, trial)
        except OSError as e:
            raise ForgeError(f"the zygote cannot be started: {explain(e, forking=True) or e}") from e
        ours.setblocking(False)
        self.control = ours
        self.ready = False
        self.gone = False  # seen to be; its workers go with it
        self.started_at = time.monotonic()
        if trial:
            self.within += 2 * ready_within
        self._pinged_at: float | None = None  # monotonic: nothing has been heard since
        self._overdue = False
        self.kinds: dict[str, dict[str, Any]] = {}
        self.unsafe: list[str] = []
        self.remarks: list[str] = []
        self.schedules: tuple[NewSchedule, ...] = ()  # of the configuration and of code
        self._may_be_empty = may_be_empty
        self._lines = FrameSplitter()
        self._pids: set[int] = set()  # of its children
        self._orders: deque[tuple[bytes, list[int]]] = deque()  # with the descriptors that go along

    def wait_until_ready(self) -> None:
        """Wait until the modules are imported. Raises what went wrong with that, in one line."""
        control = select.poll()  # `select()` knows 1,024 descriptors, and a master may have more
        control.register(self.control, select.POLLIN)
        while not self.ready:
            left = self.started_at + self.within - time.monotonic()
            if left <= 0 or not control.poll(left * 1000):
                self.kill()
                raise self.too_slow()
            try:
                self.receive()
            except EOFError:
                raise ConfigError(f"the modules were not imported: the importing process {self.end()}") from None
            except ProtocolError as e:
                self.kill()
                raise ConfigError(
                    f"the modules were not imported: the importing process broke the protocol: {e}"
                ) from None

    def too_slow(self) -> ConfigError:
        """The error of a zygote that has not become ready in time."""
        return ConfigError(f"the modules were not imported within {self.within:.0f} s; look at what they do at import")

    def receive(self) -> list[dict[str, Any]]:
        """What the zygote has said about its children. Raises EOFError if it is gone, ForgeError if it cannot become
        ready, ProtocolError if it says what no zygote may."""
        try:
            data = self.control.recv(65536)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.gone = True
            raise EOFError
        self._pinged_at, self._overdue = None, False
        messages = [zygote_message(line) for line in self._lines.feed(data)]
        return [message for message in messages if self._heard(message)]

    def _heard(self, message: dict[str, Any]) -> bool:
        """Take a message in. Returns whether it is about a child of the zygote, and so for somebody else."""
        begins = "ready" in message or "failed" in message
        if begins == self.ready:
            raise ProtocolError(f"{next(iter(message))} {'again' if begins else 'before it was ready'}")
        if "failed" in message:
            raise ImportFailed(message)
        if begins:
            self._is_ready(message)
        if begins or "pong" in message:
            return False
        if "exited" in message:
            known = message["exited"] in self._pids
            self._pids.discard(message["exited"])
            return known
        if pid := message["pid"]:
            # It will be killed by this number, with its group: not before it is known whose child it is. One that is
            # gone already, and collected, has no parent.
            if parent_of(pid) not in (self.process.pid, None):
                raise ProtocolError(f"process {pid} is no child of it")
            self._pids.add(pid)
        return True

    def _is_ready(self, message: dict[str, Any]) -> None:
        self.kinds, self.schedules = message["kinds"], message["schedules"]
        self.unsafe, self.remarks = message["unsafe"], message["remarks"]
        if not self._may_be_empty and all(about.get("builtin") for about in self.kinds.values()):
            raise ConfigError('no tasks to run; name their modules in forge.toml: modules = ["tasks"]')
        self.ready = True

    def warnings(self, *, strict: bool) -> list[str]:
        """What there is to say about its modules, first what they left running that does not survive a fork. With
        `strict` that is a `ConfigError`."""
        if self.unsafe and strict:
            raise ConfigError(f'{"; ".join(self.unsafe)}; fork_safety = "warn" starts all the same')
        return [*(f"not safe to fork: {sentence}" for sentence in self.unsafe), *self.remarks]

    def fork(
        self, label: str, serial: int, *, alone: bool = False, output: tuple[int, int] | None = None
    ) -> socket.socket:
        """Ask for a worker, with `alone` for one of capacity 1. Returns our end of its socket, which can be used at
        once. The zygote will say `{"forked": label, "serial": …, "pid": …}`, with an `error` and pid 0 if it could not.
        `output` are the worker's stdout and stderr, which are closed here once they are sent; without it the worker has
        the zygote's."""
        ours, theirs = channel_pair()
        piped = output is not None
        order: ToZygote = {"do": "fork", "label": label, "serial": serial, "alone": alone, "output": piped}
        self._order(order, [theirs.detach(), *(output or ())])
        return ours

    def exec(
        self, number: int, argv: Sequence[str], env: Mapping[str, str | None], cwd: str, fds: Sequence[int]
    ) -> None:
        """Ask for a program with these descriptors as stdin, stdout and stderr, which are closed here once they are
        sent. The zygote will say `{"started": number, "pid": …}`, and at its end `{"exited": pid, "status": …}`."""
        self._order({"do": "exec", "number": number, "argv": argv, "env": env, "cwd": cwd}, fds)

    def answers(self, now: float, within: float) -> bool:
        """Whether it has said anything since it was asked to, `within` seconds at most; asks, if it has.

        To be called now and then, with what it said read in between: a master that was itself stopped for long has
        answers to read, so who is late is given one more look."""
        if self._pinged_at is None:
            self._pinged_at = now
            self.tell("ping")
        late = now - self._pinged_at > within
        late, self._overdue = late and self._overdue, late
        return not late

    def tell(self, order: Literal["retire", "stacks", "ping"]) -> None:
        """Give an order. `retire`: it forks no more and leaves after its last child. `stacks`: it logs where its
        threads are."""
        self._order({"do": order})

    def _order(self, order: ToZygote, fds: Sequence[int] = ()) -> None:
        self._orders.append((frame_of(order), list(fds)))
        self.flush()

    @property
    def wants_to_write(self) -> bool:
        """Whether orders wait to be written."""
        return bool(self._orders)

    def flush(self) -> None:
        """Write the orders that wait, as far as the zygote takes them."""
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

    def kill(self) -> None:
        """Kill it. Its workers die with it."""
        self.process.kill()

    def give_up(self) -> None:
        """Count it as gone from now on."""
        self.gone = True

    def end(self) -> str:
        """Close it, which has closed its socket. Returns how it ended, in words."""
        self.close()
        return how_it_ended(self.process.returncode)

    def close(self) -> None:
        """Close our end of its socket, which makes it leave, and wait for that; kill it if it does not."""
        self.control.close()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _start_zygote(
    config_path: str | None, fence: Fence, trial: TrialKind
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the process. Returns it, and our end of its socket."""
    ours, theirs = channel_pair()
    fds = [theirs.fileno(), fence.fd]
    words = [str(fds[0]), str(os.getpid()), config_path or "", str(fds[1]), trial, str(files_at_start() or "")]
    command = [sys.executable, "-m", "forge.worker.zygote", *words]
    with theirs:
        try:
            return subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL), ours
        except OSError:
            ours.close()
            raise


class ImportFailed(ForgeError):
    """The zygote could not import the modules; `exit_code` is the one that it would have ended with itself."""

    def __init__(self, message: dict[str, Any]) -> None:
        super().__init__(message["failed"])
        self.exit_code = ExitCode(message["code"])
