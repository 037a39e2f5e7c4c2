"""When a worker has done enough: after so many jobs, or when it has grown too large. Asked between jobs."""

from __future__ import annotations

import os
import resource
import sys

from forge.config.model import QueueConfig

__all__ = ["Recycling", "rss"]

_PAGE = os.sysconf("SC_PAGE_SIZE")


def rss() -> int:
    """Bytes of memory that this process has in use; elsewhere than on Linux, the most it ever had."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * _PAGE
    except FileNotFoundError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class Recycling:
    """Counts the jobs of one worker."""

    def __init__(self, settings: QueueConfig) -> None:
        self._left = settings.max_jobs
        self._max_jobs, self._max_rss = settings.max_jobs, settings.max_rss
        self.wanted = self._max_jobs is not None or self._max_rss is not None

    def after_job(self) -> str | None:
        """Why the worker should leave now, if it should."""
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                return f"{self._max_jobs} job{'s' if self._max_jobs != 1 else ''}"
        if self._max_rss is not None and (size := rss()) > self._max_rss:
            return f"{size / 1e6:.0f} MB of memory"
        return None
