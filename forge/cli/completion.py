"""`forge completion`: what a shell needs to complete commands, options and their values with the Tab key."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from forge.cli.command import Command, OneOf, variable
from forge.cli.common import Cli

__all__ = ["completion"]


@click.command(cls=Command)
@click.argument("shell", metavar="SHELL", type=OneOf(("bash", "zsh", "fish")))
def completion(cli: Cli, shell: str) -> None:
    """Print a script by which a shell completes `forge` and `forge-master`.

    SHELL is bash, zsh or fish. The script asks the commands themselves, so it need not be made again after an upgrade.
    """
    of_shell = get_completion_class(shell)
    assert of_shell is not None
    for name in ("forge", "forge-master"):
        cli.print(of_shell(completion, {}, name, variable(name)).source().strip("\n"))
