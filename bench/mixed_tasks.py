"""The handlers of `mixed.py`: a short and a long one, which note who ran them, since when and until when."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import Any

from forge import Context, Forge

app = Forge()


def _mapped(name: str) -> mmap.mmap:
    with (Path(os.environ["FORGE_BENCH_BOARD"]) / name).open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


ran = _mapped("ran")
began = memoryview(_mapped("began")).cast("d")
ended = memoryview(_mapped("ended")).cast("d")
who = memoryview(_mapped("who")).cast("d")


@app.handler("short")
def short(_ctx: Context, payload: Any) -> None:
    """As good as nothing. The clock is the machine's, the same in all processes."""
    i = payload["i"]
    began[i], who[i] = time.monotonic(), os.getpid()
    ran[i] += 1
    ended[i] = time.monotonic()


@app.handler("long")
def long(_ctx: Context, payload: Any) -> None:
    """It waits for somebody else."""
    i = payload["i"]
    began[i], who[i] = time.monotonic(), os.getpid()
    time.sleep(payload["seconds"])
    ran[i] += 1
    ended[i] = time.monotonic()
