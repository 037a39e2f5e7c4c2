"""Processes that come from forge's own, however they have hidden: the kernel's means to find and to end them.

A process whose parent has died becomes a child of the nearest ancestor that is a *child subreaper*: the zygote, and
above it the master. And the zygote, every worker and every program carries a *mark* that all its descendants inherit,
through `fork`, `exec`, `setsid` and an empty environment: the soft limit of the time that a realtime process may run
without a pause, which is unlimited for everybody, and with the mark some 146,000 years. So whoever adopts a process can
tell whose it was, while the process itself notices nothing.

Linux only. Elsewhere nothing is adopted or marked, and a process that leaves its group is out of reach.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path

if sys.platform == "linux":
    import resource

__all__ = [
    "adopt_orphans",
    "children",
    "collect_strangers",
    "end_all",
    "how_it_ended",
    "kill_group",
    "kill_marked",
    "left_running",
    "mark",
    "mark_of",
    "parent_of",
    "signal_at_parents_death",
]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LINUX = sys.platform == "linux"
_adopter = 0  # the process that orphans come to, of which this one may be a fork
_FIRST_MARK = 2**62  # microseconds; a limit above this is a mark


def signal_at_parents_death(number: int) -> None:
    """Have the kernel send this process a signal when its parent dies; 0: none."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """What descends from this process and loses its parent becomes its child. Not inherited by children."""
    global _adopter  # noqa: PLW0603 (the kernel's flag is as global)
    _adopter = os.getpid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def collect_strangers(known: Container[int]) -> None:
    """Collect the children that have ended and that nobody here has started: to whom orphans come, as to an adopter or
    to process 1 of a container, nobody else does it, and each would stay as a zombie. One call to the kernel, if there
    are none."""
    if os.getpid() not in (1, _adopter) or not hasattr(os, "waitid"):
        return
    with contextlib.suppress(ChildProcessError):  # there is none at all
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and found.si_pid not in known:
            os.waitpid(found.si_pid, 0)


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def mark(number: int) -> None:
    """Mark this process and all that will descend from it, with a number above 0."""
    if sys.platform == "linux":
        _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
        with contextlib.suppress(OSError, ValueError):  # whoever has set a limit there means it
            resource.setrlimit(resource.RLIMIT_RTTIME, (_FIRST_MARK + number, hard))


def mark_of(pid: int) -> int:
    """The mark of a process; 0 if it has none, or is gone."""
    try:
        limits = Path(f"/proc/{pid}/limits").read_text("ascii")
        soft = limits.partition("Max realtime timeout")[2].split()[0]
    except (OSError, IndexError, UnicodeDecodeError):
        return 0
    return max(0, int(soft) - _FIRST_MARK) if soft.isdigit() else 0


def parent_of(pid: int) -> int | None:
    """The parent of a process; None if it is gone, or nobody can tell. While it is being collected it has parent 0."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[1]) or None
    except (OSError, IndexError, ValueError):
        return None


def kill_group(pid: int, *parents: int) -> None:
    """Kill the process and its group, which it leads, if it is a child of one of these. If it is gone, and collected,
    the number may be somebody else's by now, and whoever collected it has seen to its group."""
    if pid and (not _LINUX or parent_of(pid) in parents):
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


def children(of: int = 0) -> Iterator[int]:
    """The children of this process, or of another one, adopted ones and dead ones among them."""
    if not _LINUX:
        return
    of = of or os.getpid()
    if not Path("/proc/thread-self/children").exists():  # a kernel that was made without it
        yield from (pid for name in os.listdir("/proc") if name.isdigit() and parent_of(pid := int(name)) == of)
        return
    for thread in os.listdir(f"/proc/{of}/task"):  # each has its own
        with contextlib.suppress(OSError):
            yield from map(int, Path(f"/proc/{of}/task/{thread}/children").read_text("ascii").split())


def left_running() -> bool:
    """Whether something runs that comes from this process: a child, or what is detached and was adopted by its parent.
    Where nobody can tell, nothing does."""
    try:
        own, me = mark_of(os.getpid()), os.getpid()
        adopted = (pid for pid in children(os.getppid()) if pid != me and mark_of(pid) == own) if own else ()
        return any(_runs(pid) for pid in (*children(), *adopted))
    except OSError:  # no descriptor to look with
        return False


def _runs(pid: int) -> bool:
    """Whether it is there, and not merely waiting to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def kill_marked(ours: Callable[[int], bool], known: Container[int] = ()) -> list[int]:
    """Kill the children of this process, other than the `known` ones, that have a mark for which `ours` says so. The
    answer are those: as they die, what they have started becomes a child of this process, so look again then."""
    found = [pid for pid in children() if pid not in known and (number := mark_of(pid)) and ours(number)]
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return found


def end_all(within: float) -> None:
    """Kill everything that descends from this process, which adopts orphans, and wait until it is gone."""
    end = time.monotonic() + within
    with contextlib.suppress(ChildProcessError):  # there is none left
        while time.monotonic() < end:
            with contextlib.suppress(OSError):  # no descriptor to look with
                for pid in children():
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.002)


def how_it_ended(status: int | None) -> str:
    """A process's end in words."""
    if status is None:
        return "is gone"
    if status >= 0:
        return f"exited with {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
