"""`forge version`: what is installed."""

from __future__ import annotations

import platform

import click

from forge import __version__
from forge.cli.command import Command
from forge.cli.common import Cli
from forge.fastpath import IMPL

__all__ = ["line", "native", "version"]


@click.command(cls=Command)
def version(cli: Cli) -> None:
    """What is installed."""
    cli.answer({"forge": __version__, "python": platform.python_version(), "impl": IMPL}, line())


def native() -> str:
    """Which fast path is in use, in a word."""
    return "native" if IMPL == "c" else "pure Python"


def line() -> str:
    """`forge 0.1.0 (native), Python 3.13.1`"""
    return f"forge {__version__} ({native()}), Python {platform.python_version()}"
