"""What the client's tests are written with: a twenty-line worker, and rows of the caller's own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from forge import Forge
from forge.codec import decode, encode_payload
from forge.job import Done, Ending, Outcome

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run async work to its end."""
    return asyncio.run(work)


def work_off(app: Forge, queue: str = "default", outcome: Outcome | None = None) -> int:
    """Claim every due job of a queue and end it: by `outcome`, or by calling its task. Answers how many there were."""
    who = app.storage.register("test", [queue], "host", 1)
    claims = app.storage.claim(who, queue, 1000)
    endings = []
    for claim in claims:
        if outcome is not None:
            endings.append(Ending(claim, outcome))
            continue
        call = decode(claim.payload)
        handler = app.tasks[claim.kind]
        answer = handler.fn(*call["args"], **call["kwargs"])
        value = asyncio.run(answer) if handler.is_async else answer
        endings.append(Ending(claim, Done(), result=encode_payload(value) if claim.keep_result else None))
    assert app.storage.finalize(endings) == []
    app.storage.deregister(who)
    return len(claims)
