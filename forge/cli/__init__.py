"""The `forge` command: what it takes, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence

from forge import config, early
from forge.cli import (
    budgets,
    cluster,
    db,
    doctor,
    enqueue,
    jobs,
    metrics,
    modules,
    project,
    queues,
    schedules,
    settings,
)
from forge.cli import top as live
from forge.cli.common import Cli, Parser, for_terminal
from forge.errors import ExitCode, ForgeError
from forge.host_limits import explain

__all__ = ["main", "report"]

Command = Callable[[Cli], int]
INTERRUPTED, BROKEN_PIPE = 130, 141  # 128 + the signal's number, as shells have it


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the answer is its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        early.hide_arguments("forge")
    return report(lambda: _run(words), words)


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
    except SystemExit as e:  # --help
        return e.code if isinstance(e.code, int) else ExitCode.OK
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
        urls.append(config.load().database)
    sys.stderr.write(for_terminal(config.scrub(text, [url for url in urls if url])) + "\n")


def _run(words: list[str]) -> int:
    parser = build()
    args, rest = parser.parse_known_args(words)
    if rest and args.command is enqueue.enqueue and all(re.match(r"[^-]|-\d", word) for word in rest):
        args.args += rest  # argparse takes no positional words behind an option that follows some
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    with Cli(args) as cli:
        command: Command = args.command
        return command(cli)


def build() -> Parser:
    """The parser of every command."""
    parser = Parser(prog="forge", description="Jobs on PostgreSQL or SQLite.", parents=[_shared(None)])
    parser.add_argument("--version", action="version", version=project.line())
    top = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    def add(where: argparse._SubParsersAction[Parser], name: str, command: Command) -> Parser:
        said = (command.__doc__ or "").strip()
        sub = where.add_parser(name, help=said.splitlines()[0], description=said, parents=[_shared(argparse.SUPPRESS)])
        sub.set_defaults(command=command)
        return sub

    def group(name: str, said: str) -> argparse._SubParsersAction[Parser]:
        sub = top.add_parser(name, help=said, description=said, parents=[_shared(argparse.SUPPRESS)])
        return sub.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    add(top, "init", project.init).add_argument("dir", metavar="DIR", nargs="?", default=".", help="default: here")
    enqueue.add_options(add(top, "enqueue", enqueue.enqueue))
    add(top, "tasks", modules.tasks)
    one = add(top, "show", jobs.show)
    one.add_argument("id", metavar="ID", help="an id, or its first 8 or more digits")
    one.add_argument("-v", "--verbose", action="store_true", help="everything about it, with tracebacks")
    jobs.add_filters(add(top, "jobs", jobs.jobs))
    for name in ("cancel", "retry", "requeue", "delete"):
        add(top, name, getattr(jobs, name)).add_argument("id", metavar="ID", nargs="+")
    add(top, "queues", queues.queues)
    live.add_options(add(top, "top", live.top))
    add(top, "pods", cluster.pods)
    cluster.add_options(add(top, "run", cluster.run))
    metrics.add_options(add(top, "metrics", metrics.metrics))
    queue = group("queue", "Change one queue's settings.")
    change = add(queue, "set", queues.set_queue)
    change.add_argument("name", metavar="NAME")
    change.add_argument("settings", metavar="KEY=VALUE", nargs="+", help=", ".join(config.QUEUE_KEYS))
    for name in ("pause", "resume"):
        add(queue, name, getattr(queues, name)).add_argument("name", metavar="NAME")
    schedules.add_commands(add, top)
    budgets.add_commands(add, top)
    batch = add(top, "prune", queues.prune)
    batch.add_argument("--batch", type=int, default=1000, metavar="N", help="rows in one transaction; default 1000")
    database = group("db", "The database's tables.")
    add(database, "migrate", db.migrate)
    add(database, "status", db.status)
    db.add_options(add(database, "sql", db.print_sql))
    shown = add(group("config", "The settings in force."), "show", settings.show_config)
    shown.add_argument("--origin", action="store_true", help="say where each value comes from")
    add(top, "doctor", doctor.doctor)
    add(top, "version", project.version)
    return parser


def _shared(default: str | None) -> Parser:
    """Options of every command. They may stand before or behind its name: behind, an absent one must not undo one
    that stood before, so there the default is to set nothing."""
    shared = Parser(add_help=False)
    group = shared.add_argument_group("settings")
    group.add_argument("--database", metavar="URL", default=default, help="postgresql://… or sqlite:///path")
    group.add_argument("-c", "--config", metavar="FILE", default=default, help="default: the nearest forge.toml")
    group.add_argument("--schema", metavar="NAME", default=default, help="PostgreSQL schema of the tables")
    group.add_argument("-o", "--output", choices=("text", "json"), default=default or "text", help="default: text")
    return shared
