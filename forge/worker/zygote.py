"""The zygote: the process workers are forked from. Started by exec, single-threaded, with no socket but its own.

It imports the handler modules once, freezes the heap so that forked pages stay shared, and forks whenever the master
asks. A fork from here takes no lock, thread, event loop or database connection along, because there is none; an audit
after the imports says so, or names what a module has left running.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import logging
import os
import random
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import orjson
import setproctitle

from forge import config, logs
from forge.app.opening import read_settings
from forge.config.model import QueueConfig
from forge.descendants import adopt_orphans, end_all, kill_marked, mark, signal_at_parents_death
from forge.errors import ForgeError
from forge.protocol import Lines, channel_of, channel_pair
from forge.retry import DEFAULT_BACKOFF, Backoff
from forge.worker.audit import Audit
from forge.worker.builtin import BUILTIN
from forge.worker.child import StartFailed, Worker
from forge.worker.exec import become_program
from forge.worker.modules import Known, known_tasks
from forge.worker.schedules import declared

__all__ = ["die_with_parent", "main"]

# The signal that tells of the master's death: one that no module has a use for. Elsewhere the closed socket must do.
PARENT_GONE = signal.SIGRTMIN if sys.platform == "linux" else 0
LEAVE_WITHIN = 1.5  # seconds for everything below it to be gone; only what the kernel itself waits for takes any time
START_FAILED = 78  # the exit code of a worker whose start hook raised; EX_CONFIG of sysexits.h


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies. Elsewhere than on Linux the closed socket must do."""
    signal_at_parents_death(signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


class Zygote:
    """Imports, then forks until told to stop. What its workers and programs detach comes to it, and goes with them."""

    def __init__(self, control: socket.socket, parent: int) -> None:
        self._control, self._parent = control, parent
        self._config: config.Config
        self._known: Known
        self._children: dict[int, int] = {}  # workers and programs, each with the mark of its descendants
        # No other zygote has the same, in case its master runs in a worker of another one. The first is its own: what
        # the modules start when they are imported stays as long as it does.
        self._marks = itertools.count(os.getpid() << 32)
        self._own_mark = next(self._marks)
        mark(self._own_mark)
        # Before the modules can change them: what programs are given, and where apps look for their settings.
        self._environ, self._umask, self._folder = dict(os.environ), os.umask(0o077), Path.cwd()
        os.umask(self._umask)
        self._retired = False

    def run(self, config_path: str | None, flags: Mapping[str, str | None]) -> None:
        """Everything, from the imports on."""
        _hold_signals()
        self._config = config.load(Path(config_path)) if config_path else config.load()
        logs.setup(self._config.logging, "zygote")
        audit = Audit()
        self._known = known_tasks(self._config, flags=flags, after_import=audit.look)
        _hold_signals()  # whatever the modules have made of them
        read_settings(self._folder)
        schedules, remarks = declared(self._config, self._known)
        for remark in remarks:
            logging.getLogger("forge.zygote").warning("%s", remark)
        gc.collect()
        gc.freeze()
        told = [schedule.as_message() for schedule in schedules]
        self._say(ready=True, kinds=_described(self._known), unsafe=audit.found, schedules=told)
        # SIGCHLD only has to interrupt the wait; children are collected in the loop.
        reader, writer = channel_pair()
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # The master's death is no longer the end at once: there is something to do then.
        if PARENT_GONE:
            signal.signal(PARENT_GONE, lambda *_: None)
        signal_at_parents_death(PARENT_GONE)
        try:
            self._loop(reader)
        except (BrokenPipeError, ConnectionResetError):
            self._leave_nobody_behind()

    def _loop(self, woken: socket.socket) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        lines = Lines()
        fds: list[int] = []  # come with the first byte of their order, which may be longer than one read
        while not (self._retired and not self._children):
            if os.getppid() != self._parent:
                self._leave_nobody_behind()
            for key, _ in selector.select():
                if key.fileobj is woken:
                    woken.recv(4096)
                    continue
                data, came, _, _ = socket.recv_fds(self._control, 65536, 16)
                if not data:
                    self._leave_nobody_behind()
                fds += came
                for line in lines.feed(data):
                    self._obey(orjson.loads(line), fds)
            self._collect()

    def _obey(self, order: dict[str, Any], fds: list[int]) -> None:
        if order["do"] == "retire":
            self._retired = True
        elif order["do"] == "fork":
            label = order["label"]
            self._fork(label, order["serial"], fds.pop(0), alone=order["alone"])
        elif order["do"] == "exec":
            self._exec(order, [fds.pop(0) for _ in range(3)])
        elif order["do"] == "stacks":
            logs.write_stacks("the zygote")
        elif order["do"] == "ping":
            self._say(pong=True)

    def _fork(self, label: str, serial: int, fd: int, *, alone: bool) -> None:
        """A worker of the queue that the label names; `alone`: one that runs a single job at a time."""
        settings = self._config.queues.get(label.rpartition("/")[0], QueueConfig())
        if alone:
            settings = dataclasses.replace(settings, concurrency=1)

        def become(parent: int) -> NoReturn:
            _become_worker(parent, lambda: _worker(label, settings, fd, self._config, self._known), self._control)

        pid, why = self._child(become)
        os.close(fd)
        self._say(forked=label, serial=serial, pid=pid, error=why)

    def _exec(self, order: dict[str, Any], fds: list[int]) -> None:
        """A child that becomes another program, in a group of its own; see `forge.worker.exec`."""

        def become(parent: int) -> NoReturn:
            die_with_parent(parent)
            os.umask(self._umask)
            become_program(order, fds, self._environ)

        pid, why = self._child(become)
        if pid:
            with suppress(OSError):  # here and there: whoever comes first, a kill of the group finds it
                os.setpgid(pid, pid)
        for fd in fds:
            os.close(fd)
        self._say(started=order["number"], pid=pid, error=why)

    def _child(self, become: Callable[[int], NoReturn]) -> tuple[int, str | None]:
        """A marked child in which `become` is called with the parent's pid: its pid, or 0 and why there is none."""
        parent, number = os.getpid(), next(self._marks)
        try:
            with warnings.catch_warnings():  # of threads that a module has left: told of already, and no reason to fail
                warnings.simplefilter("ignore")
                pid = os.fork()
        except OSError as e:  # no room for another process now
            return 0, str(e)
        if pid == 0:
            try:
                mark(number)
                become(parent)
            finally:
                os._exit(1)  # nothing may run on into the zygote's code
        self._children[pid] = number
        return pid, None

    def _collect(self) -> None:
        """Children that have ended, with what is left of their groups, and what they had detached: that was adopted
        when its parent died. What a worker that lives has detached stays."""
        any_ended = False
        with suppress(ChildProcessError):
            while (ended := _ended(self._children)) is not None:
                any_ended = True
                pid, status = ended
                if self._children.pop(pid, None) is not None:
                    self._say(exited=pid, status=os.waitstatus_to_exitcode(status))
        if any_ended:  # of those that are killed here too: then there may be more
            living = {self._own_mark, *self._children.values()}
            kill_marked(lambda number: number not in living, self._children)

    def _leave_nobody_behind(self) -> NoReturn:
        """The master is gone: its workers and programs go, and what they started."""
        for pid in self._children:
            _kill_group(pid)
        end_all(LEAVE_WITHIN)
        os._exit(0)

    def _say(self, **message: Any) -> None:
        self._control.sendall(orjson.dumps(message) + b"\n")


def _hold_signals() -> None:
    """The terminal's Ctrl-C is the master's to interpret, and the ends of children must be heard of. No alarm that was
    meant for an import may go off later."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _ended(known: Container[int]) -> tuple[int, int] | None:
    """A child that has ended, and how. What is left of the group of a known one is killed before it is collected: until
    then its number cannot be another's."""
    if hasattr(os, "waitid"):
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        if found.si_pid in known:
            _kill_group(found.si_pid)
        return os.waitpid(found.si_pid, 0)
    pid, status = os.waitpid(-1, os.WNOHANG)  # macOS
    if pid == 0:
        return None
    if pid in known:
        _kill_group(pid)
    return pid, status


def _kill_group(pid: int) -> None:
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _worker(label: str, queue: QueueConfig, fd: int, settings: config.Config, known: Known) -> Worker:
    """In the child: a worker of a queue with these settings."""
    logs.setup(settings.logging, label)
    return Worker(
        label,
        channel_of(fd),
        known.handlers,
        queue,
        apps=known.apps,
        give_up_after=settings.unknown_kind_ttl,
    )


def _become_worker(parent: int, make: Callable[[], Worker], control: socket.socket) -> NoReturn:
    """In the child: make anew what must not be shared, then serve."""
    code = 1
    try:
        die_with_parent(parent)
        os.setpgid(0, 0)  # what a handler starts can be killed with it
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if PARENT_GONE:
            signal.signal(PARENT_GONE, signal.SIG_DFL)
        control.close()
        random.seed()
        make().run()
        code = 0
    except StartFailed as e:
        code = START_FAILED
        logging.getLogger("forge.worker").error(str(e), exc_info=e.__cause__)  # noqa: TRY400 (of the cause)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the master is gone
    except BaseException:  # noqa: BLE001 (nothing may run on into the zygote's code)
        import traceback

        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


def _described(known: Known) -> dict[str, Any]:
    """What the master, which imports no user code, must know of each kind: how long a retry waits after a timeout, if
    its task names a curve. What a callable says is the worker's to tell."""
    found: dict[str, dict[str, Any]] = {}
    for kind, handler in known.handlers.items():
        curve, found[kind] = handler.backoff, {}
        if isinstance(curve, Backoff) and curve is not DEFAULT_BACKOFF:
            found[kind] = {"curve": curve.curve, "base": curve.base, "cap": curve.cap}
        if BUILTIN.get(kind) is handler:
            found[kind]["builtin"] = True
    return found


def main() -> None:
    """`python -m forge.worker.zygote FD PARENT CONFIG`, by the master alone."""
    fd, parent, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] or None
    die_with_parent(parent)
    adopt_orphans()
    setproctitle.setproctitle("forge: zygote")
    control = channel_of(fd)
    try:
        Zygote(control, parent).run(path, {})
    except ForgeError as e:
        control.sendall(orjson.dumps({"failed": str(e), "code": int(e.exit_code)}) + b"\n")
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        end_all(LEAVE_WITHIN)


if __name__ == "__main__":
    main()
