"""What the master says to whoever runs it: one line each."""

from __future__ import annotations

import logging
import sys
import time
import traceback

from forge import logs
from forge.config import Config
from forge.errors import ForgeError
from forge.logs import Sometimes, counted

__all__ = ["Sometimes", "a_bug", "change_logs", "counted", "log"]

_LOGGER = logging.getLogger("forge.master")
_bugs = Sometimes(3600.0)  # what one child does to a reader all others of its kind may do, again and again


def log(text: str, who: str = "master", level: int = logging.INFO, **fields: object) -> None:
    """One line, written as `forge.logs` was set up to; `fields` are for JSON alone, but for `details`, which are shown
    in lines below it."""
    _LOGGER.log(level, "%s", text, extra={"who": who, **fields})


def a_bug(where: str) -> None:
    """Log an exception that nobody expected, with its traceback and what was being done. The same one is logged once an
    hour."""
    kind, error, place = sys.exc_info()
    if _bugs(f"{kind} {traceback.extract_tb(place)[-1:]}", time.monotonic()):
        words = "an unexpected error, which is a bug in forge; please report it"
        _LOGGER.error("%s: %s", where, words, exc_info=error, extra={"who": "master"})


def change_logs(config: Config) -> None:
    """Write logs as these settings say; if that cannot be done, say so and go on as before."""
    try:
        logs.setup(config.logging, "master", config.redact)
    except ForgeError as e:
        log(f"{e}; the log stays as it was", level=logging.ERROR)
