"""The `forge` command: which commands there are, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence

import click

from forge import early
from forge.cli.command import Group, run_words
from forge.cli.common import for_terminal
from forge.config import load, scrub
from forge.errors import ExitCode, ForgeError
from forge.host_limits import explain

__all__ = ["forge", "main", "report"]

INTERRUPTED, BROKEN_PIPE = 130, 141  # 128 + the signal's number, as shells have it

# The headings of `forge --help`. A command is in the module of its name, or in the one that is named here.
HEADINGS = {
    "Jobs": ["enqueue", "show", "jobs", "cancel", "retry", "requeue", "delete"],
    "Queues": ["queues", "queue", "prune", "tasks", "schedules", "budgets"],
    "Pods": ["top", "metrics", "pods", "run"],
    "Setting up": ["init", "doctor", "db", "config", "completion", "version"],
}
MODULES = dict.fromkeys(("show", "cancel", "retry", "requeue", "delete"), "jobs") | {
    "queue": "queues",
    "prune": "queues",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the answer is its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        early.hide_arguments("forge")
    return report(lambda: run_words(forge, "forge", words), words)


def report(run: Callable[[], int], words: Sequence[str]) -> int:
    """`run`, with whatever it raises turned into one line on stderr and a code. No secret of a URL gets through."""
    try:
        code = run()
        sys.stdout.flush()
    except ForgeError as e:
        _complain(f"error: {' '.join(str(e).split())}" if "   (" not in str(e) else f"error: {e}", words)
        return e.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left; say nothing more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as e:  # noqa: BLE001 (the last line of defence, and it says so)
        if limit := explain(e):
            _complain(f"error: {limit}", words)
            return ExitCode.INTERNAL
        _complain(f"{traceback.format_exc()}error: this is a bug in forge; please report the lines above", words)
        return ExitCode.INTERNAL
    return code


def _complain(text: str, words: Sequence[str]) -> None:
    urls = [*words, *(word.partition("=")[2] for word in words)]
    urls += [os.environ.get(name, "") for name in ("FORGE_DATABASE_URL", "DATABASE_URL")]
    with contextlib.suppress(ForgeError):
        urls.append(load().database)
    sys.stderr.write(for_terminal(scrub(text, [url for url in urls if url])) + "\n")


class AllCommands(Group):
    """All of them. Only the module of the one that is asked for is loaded."""

    def list_commands(self, _: click.Context) -> list[str]:
        return [name for names in HEADINGS.values() for name in names]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        found: click.Command = getattr(importlib.import_module(f"forge.cli.{MODULES.get(name, name)}"), name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            for heading, names in HEADINGS.items():
                with formatter.section(heading):
                    found = [(name, self.get_command(ctx, name)) for name in names]
                    formatter.write_dl([(name, each.get_short_help_str(100)) for name, each in found if each])


def _say_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from forge.cli.version import line

        click.echo(line())
        ctx.exit()


@click.group(cls=AllCommands)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_say_version, help="say what is installed"
)
def forge() -> None:
    """Jobs on PostgreSQL or SQLite."""
