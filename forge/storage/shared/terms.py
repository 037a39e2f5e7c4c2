"""How a leader's write is bound to its term: the first statement of its transaction, `hold_term`, looks whether the
term goes on, and keeps it from ending before the transaction does. `_led` of each database's facets does that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forge.errors import LostLease

__all__ = ["check_held"]


def check_held(term: int, rows: Sequence[Any]) -> None:
    """`LostLease` unless `hold_term` has found the term; raised in its transaction, which it undoes."""
    if not rows:
        raise LostLease(f"term {term} is over, another pod may lead; nothing was written")
