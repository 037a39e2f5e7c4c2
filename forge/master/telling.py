"""What the master says to whoever runs it: one line each."""

from __future__ import annotations

import logging

from forge import logs
from forge.config import Config
from forge.errors import ForgeError
from forge.logs import Sometimes

__all__ = ["Sometimes", "change_logs", "counted", "log"]

_LOGGER = logging.getLogger("forge.master")


def log(text: str, who: str = "master", level: int = logging.INFO, details: str | None = None) -> None:
    """One line, written as `forge.logs` was set up to, with `details` in lines below it."""
    more = {} if details is None else {logs.DETAILS: details}
    _LOGGER.log(level, "%s", text, extra={"who": who, **more})


def counted(n: int, noun: str) -> str:
    """`1 job`, `2 jobs`"""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def change_logs(config: Config) -> None:
    """Write them as these settings say, if that can be done."""
    try:
        logs.setup(config.logging, "master")
    except ForgeError as e:
        log(f"{e}; the log stays as it was", level=logging.ERROR)
