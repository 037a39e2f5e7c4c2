"""Kinds that every worker knows, for demos and tests: `noop_echo`, and four that only pretend to work.

A handler of the user's own under the same kind takes their place.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from forge.app import Context, Forge, Handler
from forge.job import Failed, Throttled
from forge.worker.simulated import PLANS, perform

__all__ = ["BUILTIN", "app"]

app = Forge()  # it connects to nothing unless it is used: its handlers enqueue nothing


@app.handler("noop_echo")
def noop_echo(ctx: Context, payload: Any) -> Any:
    """`{"sleep_ms": 100, "fail": false, "throttle_ms": null}`: sleep, then do as told; the result is the payload."""
    told = payload if isinstance(payload, dict) else {}
    time.sleep(float(told.get("sleep_ms", 100)) / 1000)
    ctx.raise_if_cancelled()
    if told.get("fail"):
        raise Failed("demo-fail")
    if told.get("throttle_ms") is not None:
        raise Throttled(float(told["throttle_ms"]) / 1000)
    return payload


def _simulated(ctx: Context, payload: Any) -> None:  # noqa: ARG001 (any will do)
    perform(ctx.kind, ctx.id, ctx.attempt, before_step=ctx.raise_if_cancelled)


for kind in PLANS:
    app.handler(kind)(_simulated)

BUILTIN: Mapping[str, Handler] = app.tasks
