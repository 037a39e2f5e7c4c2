"""Results of handlers, as they are stored. One that cannot be is final: to run the job again would repeat its work."""

from __future__ import annotations

import logging
from typing import Any

from forge.app.registry import Handler
from forge.codec import as_text, encode_payload
from forge.errors import Interrupted, InvalidJob
from forge.job import Claim, unstorable

__all__ = ["encode_result"]

MAX_REASON = 1_000  # characters

_log = logging.getLogger("forge.worker")
_told: set[str] = set()  # kinds of which it was logged that a result was left out


def encode_result(
    claim: Claim,
    handler: Handler | None,
    result: Any,
    otherwise: str = "its work was done, but its result cannot be stored",
) -> bytes | None:
    """The JSON to keep of a job's result. If it cannot be stored that is nothing where the task says
    `keep_result="if_possible"`, and else `Dead` is raised, which begins with these words."""
    if result is None or not claim.keep_result:
        return None
    try:
        return encode_payload(result, name="result")
    except (Interrupted, KeyboardInterrupt):
        raise
    except BaseException as e:  # noqa: BLE001 (a class of the user's may raise anything when it is looked at)
        why = str(e) if isinstance(e, InvalidJob) else as_text(e, MAX_REASON)
    if handler is None or not handler.result_optional:
        raise unstorable(why, otherwise)
    if claim.kind not in _told:
        _told.add(claim.kind)
        _log.warning("a job of %s is done without its result, which cannot be stored: %s (told once)", claim.kind, why)
    return None
