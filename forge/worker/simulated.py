"""Four kinds of work that is only pretended, for demos and tests: it takes time and fails now and then.

A plan is a list of steps, each a time to sleep and a probability to fail, on the first attempt only. Whether a step
fails is drawn from a hash of job, attempt and step: the same job always goes the same way.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from forge.job import Failed

__all__ = ["PLANS", "PlanStep", "draw", "perform"]


class PlanStep(NamedTuple):
    """One step of a plan."""

    milliseconds: int
    failure: float  # probability


PLANS: dict[str, tuple[PlanStep, ...]] = {
    "send_email": (PlanStep(50, 0), PlanStep(50, 0.45), PlanStep(50, 0)),
    "resize_image": (PlanStep(100, 0.25), PlanStep(200, 0)),
    "summarize_text": (PlanStep(150, 0.15),),
    "webhook_delivery": (PlanStep(80, 0.35), PlanStep(80, 0.15)),
}


def draw(id: UUID, attempt: int, step: int) -> float:
    """A number in [0, 1) that depends on nothing else."""
    digest = hashlib.blake2b(b"%s/%d/%d" % (id.bytes, attempt, step), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def perform(
    kind: str, id: UUID, attempt: int, speed: float = 1.0, before_step: Callable[[], None] = lambda: None
) -> None:
    """Go through the plan of a kind, `speed` times as fast as it is written; raises `Failed` where the draw says so.

    A cancellation is looked for by `before_step`, never in the middle of one.
    """
    plan = PLANS[kind]
    for number, step in enumerate(plan):
        before_step()
        time.sleep(step.milliseconds / 1000 / speed)
        if attempt == 1 and draw(id, attempt, number) < step.failure:
            raise Failed(f"simulated failure at step {number + 1}/{len(plan)} for kind={kind}")
