"""The handlers of the benches' pods: they do nothing but mark, in a file that all processes share, that they ran.

Loaded by the zygote of a master that `bench/pod.py` has started. Every job has a cell of its own in each file, so
processes never race for one.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import time
from pathlib import Path
from typing import Any

from forge import Context, Forge

app = Forge()


def _mapped(name: str) -> mmap.mmap:
    with (Path(os.environ["FORGE_BENCH_BOARD"]) / name).open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


ran = _mapped("ran")
late = memoryview(_mapped("late")).cast("d")


@app.handler("noop")
def noop(_ctx: Context, payload: Any) -> None:
    """How often job `i` has run."""
    ran[payload["i"]] += 1


@app.handler("timed")
def timed(_ctx: Context, payload: Any) -> None:
    """The same, and how many seconds after `t` it started; the clock is the machine's, the same in all processes."""
    late[payload["i"]] = time.monotonic() - payload["t"]
    ran[payload["i"]] += 1


@app.handler("nap")
def nap(_ctx: Context, payload: Any) -> None:
    """The same as `noop`, after a wait of 2 ms: a job that waits for somebody else."""
    time.sleep(0.002)
    ran[payload["i"]] += 1


@app.handler("brief")
async def brief(_ctx: Context, payload: Any) -> None:
    """The same on an event loop, after a wait of 1 ms."""
    await asyncio.sleep(0.001)
    ran[payload["i"]] += 1


@app.handler("held")
def held(ctx: Context, payload: Any) -> None:
    """Runs until it is cancelled, and notes when it saw that."""
    ran[payload["i"]] += 1
    while not ctx.cancelled:
        time.sleep(0.001)
    late[payload["i"]] = time.monotonic()
    ctx.raise_if_cancelled()


@app.handler("kept")
def kept(ctx: Context, payload: Any) -> None:
    """The same, but it notes who runs it, as soon as it does."""
    late[payload["i"]] = os.getpid()
    ran[payload["i"]] += 1
    while not ctx.cancelled:
        time.sleep(0.01)
    ctx.raise_if_cancelled()


@app.handler("poison")
def poison(_ctx: Context, _payload: Any) -> None:
    """Kills its worker."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="typed", keep_result=False)
def typed(i: int, t: float, pad: str) -> None:  # noqa: ARG001 (they are there to be checked)
    """The same as `noop` as a task, its arguments checked."""
    ran[i] += 1
