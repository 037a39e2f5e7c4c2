"""Runs the examples of one Markdown file in the current directory: `python docs_runner.py README.md`.

Blocks run in order, in one namespace. What follows the language on the fence, and what the first line says, matter:

    ```python            is run; `await` may stand at the top level
    ```python no-run     is compiled only
    # tasks.py           as the first line of any block: the block becomes that file (a module is imported, too)
    ```console           every line after `$ ` is run by bash; the lines below it must be what it prints, where … or ...
                         stands for anything. It must succeed, unless a line shown starts with `error:`. With no lines
                         below, what it prints does not matter. `cd` and `export` last until the end of the file.
    ```console no-run    is left alone
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_FENCE = re.compile(r"^( *)```(\w*) *([\w-]*) *$")
_FILE = re.compile(r"^# ([\w-]+(?:/[\w-]+)*\.\w+)$")
_ANYTHING = re.compile(r"…|\.\.\.")


class Block(NamedTuple):
    language: str
    no_run: bool
    line: int  # of the fence
    text: str

    @property
    def file(self) -> str | None:
        """The file that this block is, if it says so."""
        found = _FILE.match(self.text.partition("\n")[0])
        return found[1] if found and self.language != "console" else None


class Command(NamedTuple):
    line: int
    text: str
    expected: str


class Wrong(Exception):
    """An example does not do what it shows."""


def blocks(markdown: str) -> Iterator[Block]:
    """Every fenced block, its own indentation removed."""
    opening: re.Match[str] | None = None
    start, body = 0, list[str]()
    for number, line in enumerate(markdown.splitlines(), 1):
        fence = _FENCE.match(line)
        if opening is None:
            if fence:
                opening, start, body = fence, number, []
        elif fence and not fence[2]:
            yield Block(opening[2], opening[3] == "no-run", start, "".join(f"{each}\n" for each in body))
            opening = None
        else:
            body.append(line.removeprefix(opening[1]))
    if opening is not None:
        raise Wrong(f"line {start}: the block has no end")


def commands(block: Block) -> Iterator[Command]:
    """The commands of a console block, each with the output shown for it."""
    found: list[tuple[int, list[str], list[str]]] = []
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if line.startswith("$ "):
            found.append((number, [line[2:]], []))
        elif not found:
            raise Wrong(f"line {number}: output before the first `$ `")
        elif found[-1][1][-1].endswith("\\") and not found[-1][2]:
            found[-1][1].append(line)
        else:
            found[-1][2].append(line)
    for number, text, expected in found:
        yield Command(number, "\n".join(text), "\n".join(expected).strip("\n"))


def matches(expected: str, printed: str) -> bool:
    """Whether a command printed what is shown; spaces at the ends of lines do not count."""
    lines = [[line.rstrip() for line in text.strip("\n").splitlines()] for text in (expected, printed)]
    wanted, got = ("\n".join(each) for each in lines)
    pattern = ".*".join(re.escape(part) for part in _ANYTHING.split(wanted))
    return re.fullmatch(pattern, got, re.DOTALL) is not None


def run_command(command: Command, env: dict[str, str]) -> None:
    """Run it here; `cd` and `export` are carried over into this process and `env`."""
    reading, writing = os.pipe()
    script = f'{command.text}\nstatus=$?; {{ pwd; printf "\\0"; env -0; }} >&{writing}; exit $status'
    try:
        run = subprocess.run(
            ["bash", "-c", script],
            env=env,
            pass_fds=[writing],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        state = pipe.read().decode()
    printed = run.stdout.decode(errors="replace")
    shown = f"line {command.line}: $ {command.text}\n"
    if command.expected and not matches(command.expected, printed):
        raise Wrong(f"{shown}printed:\n{printed}\ninstead of:\n{command.expected}")
    fails = any(line.startswith("error:") for line in command.expected.splitlines())
    if (run.returncode != 0) is not fails:
        raise Wrong(f"{shown}ended with status {run.returncode} and printed:\n{printed}")
    if state:
        folder, *pairs = state.split("\0")
        os.chdir(folder.rstrip("\n"))
        env.clear()
        env.update(pair.partition("=")[::2] for pair in pairs if pair)


def compiled(block: Block, name: str) -> Any:
    """The block as code whose lines are those of the file it stands in."""
    return compile("\n" * block.line + block.text, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def write_file(block: Block, file: str) -> None:
    """Make the file that the block says it is; a module at the top is imported anew, so that its errors show here."""
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text, "utf-8")
    if path.suffix == ".py" and path.parent == Path() and not block.no_run:
        importlib.invalidate_caches()
        sys.modules.pop(path.stem, None)
        importlib.import_module(path.stem)


def run_file(path: Path) -> None:
    """Every block of the file, in order."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    env = dict(os.environ)
    for block in blocks(path.read_text("utf-8")):
        if block.file:
            write_file(block, block.file)
        elif block.language == "python":
            code = compiled(block, str(path))
            if block.no_run:
                continue
            running = eval(code, namespace)
            if code.co_flags & inspect.CO_COROUTINE:
                asyncio.run(running)
        elif block.language == "console" and not block.no_run:
            for command in commands(block):
                run_command(command, env)


if __name__ == "__main__":
    sys.path[0] = ""
    try:
        run_file(Path(sys.argv[1]))
    except Wrong as wrong:
        sys.exit(f"{Path(sys.argv[1]).name}: {wrong}")
