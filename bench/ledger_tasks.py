"""The handlers of bench/ledger.py: each writes a line when it starts and one when it ends, to a file."""

from __future__ import annotations

import asyncio
import os
import time

from forge import Context, Forge

app = Forge()
_LEDGER = os.open(os.environ["FORGE_BENCH_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(word: str, number: int) -> None:
    """One write for each event: lines of many processes never mix. The clock is the machine's."""
    os.write(_LEDGER, f"{word} {number} {os.getpid()} {time.monotonic():.6f}\n".encode())


@app.handler("work")
def work(_ctx: Context, payload: int) -> None:
    """Most take no time at all, some a few milliseconds."""
    note("START", payload)
    if payload % 10 == 0:
        time.sleep(0.002)
    note("END", payload)


@app.handler("wait")
async def wait(_ctx: Context, payload: int) -> None:
    """The same on an event loop, beside others."""
    note("START", payload)
    await asyncio.sleep(0.005)
    note("END", payload)
