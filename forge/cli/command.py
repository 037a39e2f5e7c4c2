"""How commands are declared: click's, with the settings that all of them take and complaints of one line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import click

from forge.cli.common import Cli
from forge.config import suggest
from forge.errors import ExitCode, UsageError

__all__ = [
    "NUMBER",
    "WHOLE",
    "BareCommand",
    "Command",
    "Group",
    "OneOf",
    "TaskCommand",
    "read",
    "run_words",
    "variable",
]

CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


class OneOf(click.Choice[str]):
    """A choice that names the nearest word for a wrong one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value not in self.choices:
            assert param is not None
            assert ctx is not None
            raise _wrong(f"no {_name(param)} {value}{suggest(value, self.choices)}", ctx)
        return value


def read(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """The type of a word as `convert` reads it, which raises ValueError for one that it cannot read."""

    def reading(word: str) -> Any:
        try:
            return convert(word)
        except ValueError:
            raise click.BadParameter(f"invalid {convert.__name__} value: {word!r}") from None

    return reading


WHOLE, NUMBER = read(int), read(float)


def _remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """These options may stand before or behind a command's name: an absent one does not undo one that stood before."""
    if value is not None:
        setattr(ctx.obj, str(param.name), value)


def _setting(*words: str, **about: Any) -> click.Option:
    return click.Option(words, expose_value=False, callback=_remember, **about)


SETTINGS = (
    _setting("--database", metavar="URL", help="postgresql://… or sqlite:///path"),
    _setting("-c", "--config", "file", metavar="FILE", type=click.Path(), help="default: the nearest forge.toml"),
    _setting("--schema", metavar="NAME", help="PostgreSQL schema of the tables"),
)
OUTPUT = _setting("-o", "--output", type=OneOf(("text", "json")), help="default: text")


class Parsing(click.Command):
    """Whatever reads words: what is wrong with them is said in forge's words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as e:
            raise _in_forges_words(e, ctx, words) from None


class BareCommand(Parsing):
    """A function of one `Cli` and what the command line says. It answers an exit code, or nothing if all is well, and
    raises `ForgeError` for anything a person did wrong."""

    allow_extra_args = True  # refused below, in forge's words

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params += SETTINGS

    def invoke(self, ctx: click.Context) -> Any:
        if ctx.args:
            raise _unrecognized(ctx.args, ctx)
        assert self.callback is not None
        return ctx.invoke(self.callback, ctx.obj, **ctx.params)


class Command(BareCommand):
    """A command of `forge`: what it prints may be for a program to read."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params.append(OUTPUT)


class TaskCommand(Command):
    """A command that takes the arguments of a task: a word such as -5 is a number there, not an option."""

    ignore_unknown_options = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        literal = args[args.index("--") :] if "--" in args else []  # behind it nothing is an option
        options = [word for word in args if re.match(r"-\D", word) and word not in literal]
        rest = super().parse_args(ctx, args)
        taken = [ctx.params.get(str(param.name)) for param in self.params if isinstance(param, click.Argument)]
        words = [word for value in taken for word in ([value] if isinstance(value, str) else value or ())]
        unknown = [word for word in options if word in words]
        if unknown and not ctx.resilient_parsing:
            raise _unrecognized(unknown, ctx)
        return rest


class Group(Parsing, click.Group):
    """Commands below a name."""

    command_class = Command

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params += [*SETTINGS, OUTPUT]
        self.no_args_is_help = False

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            raise _wrong(f"no command {args[0]}{suggest(args[0], self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)


def run_words(command: click.Command, name: str, words: Sequence[str]) -> int:
    """The exit code of a command line. `UsageError` for one that says something wrong."""
    with Cli() as cli:
        if instruction := os.environ.get(variable(name)):
            from click.shell_completion import shell_complete

            return shell_complete(command, {"obj": cli, **CONTEXT}, name, variable(name), instruction)
        try:
            with command.make_context(name, list(words), obj=cli, **CONTEXT) as ctx:
                return command.invoke(ctx) or ExitCode.OK
        except click.exceptions.Exit as e:  # --help and --version
            return e.exit_code
        except click.UsageError as e:  # of a group, since all else has become forge's own
            raise _wrong("the following arguments are required: COMMAND", e.ctx or ctx) from None


def variable(name: str) -> str:
    """The variable by which a shell asks this command for completions."""
    return f"_{name.replace('-', '_').upper()}_COMPLETE"


def _wrong(text: str, ctx: click.Context) -> UsageError:
    return UsageError(f"{text}   ({ctx.command_path} --help)")


def _unrecognized(words: Sequence[str], ctx: click.Context) -> UsageError:
    return _wrong(f"unrecognized arguments: {' '.join(words)}", ctx.find_root())


def _in_forges_words(e: click.UsageError, ctx: click.Context, words: Sequence[str]) -> UsageError:
    """What click complains of."""
    arguments = [param for param in ctx.command.params if isinstance(param, click.Argument)]
    match e:
        case click.NoSuchOption():
            at = next((i for i, word in enumerate(words) if word.partition("=")[0] == e.option_name), None)
            if at is None:  # one of several letters behind one dash
                return _unrecognized([e.option_name], ctx)
            # A command that takes no words of its own does not know the value of such an option either.
            takes_words = arguments or isinstance(ctx.command, click.Group)
            values = [] if takes_words else takewhile(lambda word: not word.startswith("-"), words[at + 1 :])
            return _unrecognized([words[at], *values], ctx)
        case click.MissingParameter():
            # Words fill arguments from the first to the last: those behind a missing one are missing too.
            missing = [param for param in arguments[arguments.index(e.param) :] if param.required]  # type: ignore[arg-type]
            return _wrong(f"the following arguments are required: {', '.join(map(_name, missing))}", ctx)
        case click.BadParameter(param=click.Parameter() as param):
            return _wrong(f"argument {_name(param)}: {e.message}", ctx)
        case click.BadOptionUsage():
            option = next(param for param in ctx.command.params if e.option_name in param.opts)
            given = [word.partition("=")[2] for word in words if word.startswith(f"{e.option_name}=")]
            flaw = f"ignored explicit argument {given[0]!r}" if given else "expected one argument"
            return _wrong(f"argument {_name(option)}: {flaw}", ctx)
    return _wrong(e.format_message(), ctx)


def _name(param: click.Parameter) -> str:
    """As a person would type it: `-o/--output`, or `KEY=VALUE` for an argument."""
    if isinstance(param, click.Argument):
        return (param.metavar or str(param.name)).strip("[].")
    return "/".join(param.opts)
