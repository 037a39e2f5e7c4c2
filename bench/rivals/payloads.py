"""The payload that every contender gets: about 100 bytes of JSON."""

from __future__ import annotations

import time
from typing import Any

CHUNK = 1000  # jobs in one call of a bulk interface, for everybody
PAD = "x" * 62


def payload(i: int) -> dict[str, Any]:
    """Job number i, as of now. The Node side makes the same one."""
    return {"i": i, "t": time.monotonic(), "pad": PAD}


def chunks(payloads: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The calls of a bulk interface."""
    return [payloads[k : k + CHUNK] for k in range(0, len(payloads), CHUNK)]
