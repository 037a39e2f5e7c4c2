"""Chooses between the native path (`_fastpath`, Cython) and its reference (`_fastpath_py`), and makes ids.

The native one is taken where it was built. `FORGE_IMPL=c` insists on it, `FORGE_IMPL=py` does without.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from typing import TYPE_CHECKING, Literal
from uuid import UUID

from forge import _fastpath_py as _impl
from forge._reference.endings import Plain
from forge._reference.histogram import BOUNDS, BUCKETS
from forge.errors import ConfigError

__all__ = [
    "BOUNDS",
    "BUCKETS",
    "IMPL",
    "Plain",
    "answers",
    "burst",
    "check_json",
    "claims",
    "copy_rows",
    "delay",
    "done_line",
    "int8_array",
    "job_lines",
    "jobs_in",
    "plain_endings",
    "resp_bulk",
    "resp_commands",
    "resp_error",
    "resp_int",
    "resp_simple",
    "resp_values",
    "survey",
    "task_jobs",
    "text_array",
    "timed",
    "uuid7",
    "uuid7_many",
    "uuid_array",
    "uuids",
]

IMPL: Literal["c", "py"] = "py"

if not TYPE_CHECKING:
    _wanted = os.environ.get("FORGE_IMPL", "")
    if _wanted not in ("", "c", "py"):
        raise ConfigError(f"FORGE_IMPL is {_wanted!r}; set it to c or py, or unset it to take the faster one there is")
    if _wanted != "py":
        try:
            _impl, IMPL = importlib.import_module("forge._fastpath"), "c"
        except ImportError as error:
            if _wanted == "c":
                raise ConfigError(
                    f"FORGE_IMPL=c, but forge's extension cannot be loaded ({error}); unset FORGE_IMPL, or build it: "
                    "FORGE_REQUIRE_EXT=1 pip install --force-reinstall --no-binary forge-jobs forge-jobs"
                ) from None

uuids = _impl.uuids
check_json = _impl.check_json
claims = _impl.claims
task_jobs = _impl.task_jobs
survey = _impl.survey
copy_rows = _impl.copy_rows
uuid_array = _impl.uuid_array
int8_array = _impl.int8_array
text_array = _impl.text_array
plain_endings = _impl.plain_endings
delay = _impl.delay
timed = _impl.timed
job_lines = _impl.job_lines
jobs_in = _impl.jobs_in
done_line = _impl.done_line
answers = _impl.answers
burst = _impl.burst
resp_simple = _impl.resp_simple
resp_error = _impl.resp_error
resp_int = _impl.resp_int
resp_bulk = _impl.resp_bulk
resp_commands = _impl.resp_commands
resp_values = _impl.resp_values


class _Ticks:
    """Hands out ticks (see `uuids`) that only go up, whatever the clock does."""

    def __init__(self) -> None:
        self.last = 0
        self.lock = threading.Lock()

    def take(self, n: int, ms: int, seed: int) -> int:
        """The first of n new ticks. A new millisecond starts its counter at `seed`, of 11 bits: half is left to use."""
        with self.lock:
            tick = ms << 12 | seed if ms > self.last >> 12 else self.last + 1
            self.last = tick + n - 1
            return tick

    def after_fork(self) -> None:
        """In the child: the lock may be held by a thread that is no more, and siblings should not count in step."""
        self.lock = threading.Lock()
        self.last += _seed(os.urandom(2))


def _seed(rand: bytes) -> int:
    return int.from_bytes(rand, "big") >> 5


_ticks = _Ticks()
os.register_at_fork(after_in_child=_ticks.after_fork)


def uuid7() -> UUID:
    """A new id, greater than every one this process made before (as `uuid7_many`'s are too)."""
    return uuid7_many(1)[0]


def uuid7_many(n: int) -> list[UUID]:
    """n new ids in ascending order; 62 bits of each are from the system's randomness."""
    if n < 1:
        return []
    rand = os.urandom(8 * n + 2)
    return uuids(_ticks.take(n, time.time_ns() // 1_000_000, _seed(rand[-2:])), rand[:-2])
