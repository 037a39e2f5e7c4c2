"""Faults on purpose, for tests of what forge does about them: `FORGE_FAILPOINTS="forget_ending:1"`.

A name and how often it is to happen, several of them with commas between. Read once, when forge is imported; without
the variable nothing is ever asked.
"""

from __future__ import annotations

import os

__all__ = ["ARMED", "hit"]


def _read(text: str) -> dict[str, int]:
    found = {}
    for each in filter(None, text.split(",")):
        name, _, times = each.partition(":")
        found[name.strip()] = int(times or 1)
    return found


_left = _read(os.environ.get("FORGE_FAILPOINTS", ""))
ARMED = bool(_left)  # whether any is set


def hit(name: str) -> bool:
    """Whether the fault of this name is to happen now. Counts it: after as many as were asked for, the answer is no."""
    if _left.get(name, 0) <= 0:
        return False
    _left[name] -= 1
    return True
