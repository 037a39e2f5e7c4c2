"""Running a verb that is written as a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from forge.job import Receipt
from forge.storage.contract.statements import Plan, Step

__all__ = ["run_plan"]


def run_plan(plan: Plan, execute: Callable[[Step], Sequence[Sequence[Any]]]) -> list[Receipt]:
    """Run a plan on a connection: `execute` runs one step and answers its rows."""
    try:
        step = next(plan)
        while True:
            step = plan.send(execute(step))
    except StopIteration as end:
        receipts: list[Receipt] = end.value
        return receipts
