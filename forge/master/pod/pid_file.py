"""The pid file: written, and locked for as long as the master lives.

The lock decides, not the number: it goes with its process however that ends, so a file left by a dead master is simply
taken over, and a number that was given to another process since means nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from forge.errors import ConfigError, LockedError

__all__ = ["PidFile"]

LONGEST = 32  # bytes of a pid file; what is longer is somebody's text


class PidFile:
    """Takes the file for this process when it is made, and removes it when it is closed."""

    def __init__(
        self, path: Path, advice: str = "stop that one, or give this one another --pid-file", mode: int = 0o644
    ) -> None:
        """`LockedError` with the advice if another master holds it, `ConfigError` if it cannot be written. `mode` is
        what the file has, whatever the umask."""
        self.path = path
        try:
            self._fd = _take(path, advice, mode)
        except OSError as e:
            raise ConfigError(f"cannot write the pid file {path}: {e.strerror}") from None

    def close(self) -> None:
        """Remove the file, then release the lock: in the other order a successor's file could be removed."""
        if _is_at(self._fd, self.path):
            with contextlib.suppress(OSError):  # the folder may have been made read-only; the lock goes in any case
                self.path.unlink()
        os.close(self._fd)


def _take(path: Path, advice: str, mode: int) -> int:
    while True:
        # Python opens everything close-on-exec: neither the zygote nor a pool's program keeps the lock alive.
        fd = os.open(path, os.O_RDWR | os.O_CREAT, mode)
        try:
            _lock(fd, path, advice)
            if _is_at(fd, path):  # else its holder was leaving and removed it between our two calls
                _write(fd, path)
                with contextlib.suppress(OSError):  # left by another user's master
                    os.fchmod(fd, mode)
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _lock(fd: int, path: Path, advice: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, LONGEST, 0).decode("ascii", "replace").strip()
        who = f"pid {holder}" if holder.isdecimal() else "which has not written its pid yet"
        raise LockedError(f"another forge-master ({who}) holds {path}; {advice}") from None


def _write(fd: int, path: Path) -> None:
    left = os.pread(fd, LONGEST, 0).strip()
    if left and not left.isdigit():
        raise ConfigError(f"{path} is not a pid file: there is something else in it; name another file")
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"%d\n" % os.getpid(), 0)


def _is_at(fd: int, path: Path) -> bool:
    """Whether the open file is still the one of this name."""
    try:
        there, here = os.stat(path), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
