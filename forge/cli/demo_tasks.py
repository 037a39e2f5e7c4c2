"""The tasks of `make demo`: the simulated kinds, and in the payload what is to go wrong on purpose.

What happens once per job is remembered in files beside forge.toml, where the master and so its workers run: a retry may
come to another worker, and one of the jobs kills its own.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from forge import Context, Failed, Forge, Snooze, Throttled
from forge.worker.simulated import PLANS, perform

__all__ = ["app"]

RETRY, SNOOZE, COOL_DOWN = 0.4, 0.8, 1.0  # seconds: short, because somebody is watching

app = Forge()


def pretend(ctx: Context, payload: dict[str, Any]) -> None:
    """Run one simulated job, or what its payload asks for."""
    if payload.get("never_works"):
        raise Failed("550 no such mailbox")
    if payload.get("embargoed") and first_time(ctx):
        raise Snooze(SNOOZE)
    if payload.get("busy") and first_time(ctx):
        raise Throttled(COOL_DOWN)
    if payload.get("out_of_memory") and first_time(ctx):
        time.sleep(0.2)  # as a program that grows; at once, another job in this worker's hands could have been to blame
        os.kill(os.getpid(), signal.SIGKILL)
    perform(ctx.kind, ctx.id, ctx.attempt)


def first_time(ctx: Context) -> bool:
    """Whether this job has not come by before, in any process."""
    try:
        Path(f"seen-{ctx.id}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


for kind in PLANS:
    app.handler(
        kind,
        queue="webhooks" if kind == "webhook_delivery" else "default",
        max_attempts=3,
        backoff=lambda _: RETRY,
    )(pretend)
