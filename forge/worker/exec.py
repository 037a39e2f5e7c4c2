"""What a forked child does to become another program: pools and commands. Runs in the child, between fork and exec."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

from forge.protocol import ExecOrder

__all__ = ["CANNOT_RUN", "become_program", "environment"]

CANNOT_RUN = 127  # exit code of a child that could not become the program, as in a shell


def environment(base: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """The base with the changes made; None takes a variable away."""
    merged = {**base, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def become_program(order: ExecOrder, fds: list[int], base: Mapping[str, str]) -> NoReturn:
    """Take the three descriptors as stdin, stdout and stderr, forget the zygote, and exec.

    What goes wrong is one line on the new stderr: the master knows it by its first words.
    """
    argv = list(order["argv"])
    try:
        os.setpgid(0, 0)  # what it starts can be killed with it
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        _close_the_rest()
        _default_signals()
        if order["cwd"]:
            os.chdir(order["cwd"])
        os.execvpe(argv[0], argv, environment(base, order["env"]))
    except BaseException as e:  # noqa: BLE001 (nothing may run on into the zygote's code)
        what = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        with suppress(OSError):
            os.write(2, f"forge: cannot run {argv[0]}: {what}\n".encode(errors="replace"))
    finally:
        os._exit(CANNOT_RUN)


def _close_the_rest() -> None:
    """All but the first three. The table of open ones is read: counting up to the limit can take minutes."""
    for name in os.listdir("/dev/fd"):
        if int(name) > 2:
            with suppress(OSError):  # among them the one that listed the folder
                os.close(int(name))


def _default_signals() -> None:
    """Ignored signals stay ignored across exec, and so does a mask: nobody would know why TERM does nothing."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError, ValueError):  # those of the C library
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
