"""Checks of the settings of a queue that the database keeps."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Mapping
from typing import Any

from forge.codec import check_name
from forge.config.model import QUEUE_KEYS, QueueConfig
from forge.config.setting import declared_settings
from forge.errors import UsageError

__all__ = ["check_settings"]


def check_settings(queue: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of a queue, None where it is left alone; a wrong name or value is a UsageError."""
    check_name(queue, "queue")
    for name, value in settings.items():
        if name not in QUEUE_KEYS:
            near = difflib.get_close_matches(name, QUEUE_KEYS, 1)
            raise UsageError(
                f"queue {queue}: no setting {name!r}; "
                + (f"did you mean {near[0]}?" if near else f"use one of {', '.join(QUEUE_KEYS)}")
            )
        if wanted := _wanted(name, value):
            raise UsageError(f"queue {queue}: {name} is {wanted}, not {value!r}")
    return {name: settings.get(name) for name in QUEUE_KEYS}


def _wanted(name: str, value: Any) -> str | None:
    """What the value must be, if it is not: as `[queues.NAME]` declares it."""
    declared = declared_settings(QueueConfig)[name]
    if declared.type is bool:
        return None if isinstance(value, bool) else "true or false"
    if words := typing.get_args(declared.type):
        return None if value in words else " or ".join(map(repr, words))
    low, high = declared.about.low, declared.about.high
    assert low is not None and high is not None
    kind = int if declared.type is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
        return f"a number from {low:g} to {high:g}"
    return None
