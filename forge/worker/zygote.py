"""The zygote: the process workers are forked from. Started by exec, single-threaded, with no socket but its own.

It imports the handler modules once, freezes the heap so that forked pages stay shared, and forks whenever the master
asks. A fork from here takes no lock, thread, event loop or database connection along, because there is none; an audit
after the imports says so, or names what a module has left running.
"""

from __future__ import annotations

import dataclasses
import errno
import gc
import itertools
import logging
import math
import os
import random
import resource
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import orjson
import setproctitle

from forge import config, logs
from forge.app.lazy_storage import read_settings
from forge.config.model import QueueConfig
from forge.descendants import adopt_orphans, end_all, kill_marked, mark, signal_at_parents_death
from forge.errors import ForgeError, StartError
from forge.fence import Deadlines, clock
from forge.host_limits import explain
from forge.protocol import ExecOrder, FrameSplitter, FromZygote, ToZygote, TrialKind, channel_of, channel_pair, frame_of
from forge.retry import DEFAULT_BACKOFF, Backoff
from forge.worker import output
from forge.worker import trial as trials
from forge.worker.audit import Audit
from forge.worker.bindings import elsewhere
from forge.worker.builtin import BUILTIN
from forge.worker.child import StartFailed, Worker
from forge.worker.exec import become_program
from forge.worker.modules import Known, known_tasks
from forge.worker.schedules import declared

__all__ = ["die_with_parent", "main"]

# The signal that tells of the master's death: one that no module has a use for. Elsewhere the closed socket must do.
PARENT_GONE = signal.SIGRTMIN if sys.platform == "linux" else 0
LEAVE_WITHIN = 1.5  # seconds for everything below it to be gone; only what the kernel itself waits for takes any time
UNKILLED = 0.01  # seconds between two looks at what is to be killed, and is not gone yet
START_FAILED = 78  # the exit code of a worker whose start hook raised; EX_CONFIG of sysexits.h


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies. Elsewhere than on Linux the closed socket must do."""
    signal_at_parents_death(signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


class Zygote:
    """Imports, then forks until told to stop. What its workers and programs detach comes to it, and goes with them."""

    def __init__(self, control: socket.socket, parent: int, deadlines: Deadlines) -> None:
        self._control, self._parent, self._deadlines = control, parent, deadlines
        self._config: config.Config
        self._known: Known
        self._audit: Audit
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

    def run(self, config_path: str | None, flags: Mapping[str, str | None], trial: TrialKind = "") -> None:
        """Everything, from the imports on. With a trial, it is only ready if that has gone well."""
        _hold_signals()
        self._config = config.load(Path(config_path) if config_path else None, start=self._folder)
        logs.setup(self._config.logging, "zygote", self._config.redact)
        # SIGCHLD only has to interrupt the wait; children are collected in the loop.
        reader, writer = channel_pair()
        writer.setblocking(False)
        self._audit = Audit()
        self._known = known_tasks(self._config, flags=flags, after_import=self._audit.look)
        _hold_signals()  # whatever the modules have made of them
        read_settings(self._folder)
        schedules, remarks = declared(self._config, self._known)
        remarks += elsewhere(self._known, self._config)
        gc.collect()
        gc.freeze()
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if trial:
            self._try_workers(trial)
        told, unsafe = [schedule.as_message() for schedule in schedules], self._audit.found
        kinds = _described(self._known)
        # The master says what there is to say: a module may have turned off all logging here.
        self._say({"ready": True, "kinds": kinds, "schedules": told, "unsafe": unsafe, "remarks": remarks})
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
        frames = FrameSplitter()
        fds: list[int] = []  # come with the first byte of their order, which may be longer than one read
        while not (self._retired and not self._children):
            if os.getppid() != self._parent:
                self._leave_nobody_behind()
            for key, _ in selector.select(self._patience()):
                if key.fileobj is woken:
                    woken.recv(4096)
                    continue
                data, came, _, _ = socket.recv_fds(self._control, 65536, 16)
                if not data:
                    self._leave_nobody_behind()
                fds += came
                for frame in frames.feed(data):
                    self._obey(orjson.loads(frame), fds)
            self._collect()
            self._fence()

    def _patience(self) -> float | None:
        """Seconds until its children may no longer run, as things stand."""
        left = self._deadlines.kill_at - clock() if self._children else math.inf
        return None if left == math.inf else max(left, UNKILLED)

    def _fence(self) -> None:
        """Others may soon take the pod for dead, and its jobs: nothing that runs them may be there then. See
        `forge.fence`: its master may be cut off, or stopped; it says no word here."""
        now = clock()  # before the time that is compared with it is read
        if now >= self._deadlines.kill_at:
            for pid in self._children:
                _kill_group(pid)

    def _obey(self, order: ToZygote, fds: list[int]) -> None:
        if order["do"] == "retire":
            self._retired = True
        elif order["do"] == "fork":
            mine, why = _taken(fds, 3 if order["output"] else 1)
            if why is None:
                self._fork(order["label"], order["serial"], mine, alone=order["alone"])
            else:
                self._say({"forked": order["label"], "serial": order["serial"], "pid": 0, "error": why})
        elif order["do"] == "exec":
            mine, why = _taken(fds, 3)
            if why is None:
                self._exec(order, mine)
            else:
                self._say({"started": order["number"], "pid": 0, "error": why})
        elif order["do"] == "stacks":
            logs.write_stacks("the zygote")
        elif order["do"] == "ping":
            self._say({"pong": True})

    def _fork(self, label: str, serial: int, fds: list[int], *, alone: bool) -> None:
        """A worker of the queue that the label names; `alone`: one that runs a single job at a time. Its descriptors
        are the channel, and what it has as stdout and stderr, if not ours."""
        pid, why = self._start_worker(label, fds, alone=alone)
        for fd in fds:
            os.close(fd)
        self._say({"forked": label, "serial": serial, "pid": pid, "error": why})

    def _start_worker(
        self, label: str, fds: list[int], *, alone: bool = False, unwanted: Sequence[socket.socket] = ()
    ) -> tuple[int, str | None]:
        """Its pid, or 0 and why there is none. `unwanted` are sockets of this process that it must not keep."""
        settings = self._config.queues.get(label.rpartition("/")[0], QueueConfig())
        if alone:
            settings = dataclasses.replace(settings, concurrency=1)

        def make() -> Worker:
            for each in unwanted:
                each.close()
            self._audit.cut(set(fds))
            return _worker(label, settings, fds, self._config, self._known, self._deadlines)

        return self._child(lambda parent: _become_worker(parent, make, self._control))

    def _try_workers(self, kind: TrialKind) -> None:
        """See `forge.worker.trial`; `StartError` if that fails. Nothing is left of it then."""
        tried: list[trials.Tried] = []
        for queue in trials.one_of_each(self._config.queues):
            each = trials.Tried(queue)
            tried.append(each)
            unwanted = [one.channel for one in tried]
            pid, why = self._start_worker(each.label, [each.theirs.fileno()], unwanted=unwanted)
            each.forked(pid)
            if not pid:
                raise StartError(f"a worker of {queue} could not be forked: {why}")
        trials.watch(tried, self._config.ready_within, self._how_ended)
        kill_marked(lambda number: number != self._own_mark)  # what they had detached
        trials.conclude(tried, kind)

    def _how_ended(self, pid: int) -> int | None:
        if (ended := _ended(self._children, pid)) is None:
            return None
        del self._children[pid]
        return os.waitstatus_to_exitcode(ended[1])

    def _exec(self, order: ExecOrder, fds: list[int]) -> None:
        """A child that becomes another program, in a group of its own; see `forge.worker.exec`."""

        def become(parent: int) -> NoReturn:
            die_with_parent(parent)
            os.umask(self._umask)
            with suppress(OSError):  # it may be gone
                os.chdir(self._folder)
            become_program(order, fds, self._environ)

        pid, why = self._child(become)
        if pid:
            with suppress(OSError):  # here and there: whoever comes first, a kill of the group finds it
                os.setpgid(pid, pid)
        for fd in fds:
            os.close(fd)
        self._say({"started": order["number"], "pid": pid, "error": why})

    def _child(self, become: Callable[[int], NoReturn]) -> tuple[int, str | None]:
        """A marked child in which `become` is called with the parent's pid: its pid, or 0 and why there is none."""
        parent, number = os.getpid(), next(self._marks)
        try:
            with warnings.catch_warnings():  # of threads that a module has left: told of already, and no reason to fail
                warnings.simplefilter("ignore")
                pid = os.fork()
        except OSError as e:  # no room for another process now
            return 0, explain(e, forking=True) or str(e)
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
                    self._say({"exited": pid, "status": os.waitstatus_to_exitcode(status)})
        if any_ended:  # of those that are killed here too: then there may be more
            living = {self._own_mark, *self._children.values()}
            with suppress(OSError):  # no descriptor to look with: when the next one ends, then
                kill_marked(lambda number: number not in living, self._children)

    def _leave_nobody_behind(self) -> NoReturn:
        """The master is gone: its workers and programs go, and what they started."""
        for pid in self._children:
            _kill_group(pid)
        end_all(LEAVE_WITHIN)
        os._exit(0)

    def _say(self, message: FromZygote) -> None:
        self._control.sendall(frame_of(message))


def _taken(fds: list[int], count: int) -> tuple[list[int], str | None]:
    """So many of those that came with an order; or none, and why: the kernel drops what there is no room for."""
    mine, fds[:count] = fds[:count], []
    if len(mine) == count:
        return mine, None
    for fd in mine:
        os.close(fd)
    return [], explain(OSError(errno.EMFILE, ""))


def _hold_signals() -> None:
    """The terminal's Ctrl-C is the master's to interpret, and the ends of children must be heard of. No alarm that was
    meant for an import may go off later."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _ended(known: Container[int], only: int = 0) -> tuple[int, int] | None:
    """A child that has ended, any or this one, and how. What is left of the group of a known one is killed before it is
    collected: until then its number cannot be another's."""
    if hasattr(os, "waitid"):
        which = os.P_PID if only else os.P_ALL
        found = os.waitid(which, only, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        if found.si_pid in known:
            _kill_group(found.si_pid)
        return os.waitpid(found.si_pid, 0)
    pid, status = os.waitpid(only or -1, os.WNOHANG)  # macOS
    if pid == 0:
        return None
    if pid in known:
        _kill_group(pid)
    return pid, status


def _kill_group(pid: int) -> None:
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _worker(
    label: str, queue: QueueConfig, fds: list[int], settings: config.Config, known: Known, deadlines: Deadlines
) -> Worker:
    """In the child: a worker of a queue with these settings."""
    channel, *pipes = fds
    output.take_pipes(pipes)
    logs.setup(settings.logging, label, settings.redact)
    return Worker(
        label,
        channel_of(channel),
        known.handlers,
        queue,
        apps=known.apps,
        give_up_after=settings.unknown_kind_ttl,
        deadlines=deadlines,
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
    except BaseException as e:  # noqa: BLE001 (nothing may run on into the zygote's code)
        if words := explain(e):
            logging.getLogger("forge.worker").error("%s", words)  # noqa: TRY400 (it says it all)
        else:
            import traceback

            traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()  # a handler may have made it another
            output.finish()
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
    """`python -m forge.worker.zygote FD PARENT CONFIG FENCE [TRIAL [FILES]]`, by the master alone. FILES is how many
    workers may open, where the master has taken more for itself."""
    fd, parent, path, deadlines = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] or None, Deadlines(int(sys.argv[4]))
    said: list[Any] = [*sys.argv[5:], "", ""]
    trial, files = said[:2]
    die_with_parent(parent)
    if files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(files), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    adopt_orphans()
    setproctitle.setproctitle("forge: zygote")
    output.install()
    control = channel_of(fd)
    try:
        Zygote(control, parent, deadlines).run(path, {}, trial)
    except ForgeError as e:
        control.sendall(frame_of({"failed": str(e), "code": int(e.exit_code)}))
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        end_all(LEAVE_WITHIN)


if __name__ == "__main__":
    main()
