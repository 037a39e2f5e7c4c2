"""`forge config show`: the settings in force."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import orjson

from forge.cli.command import Group
from forge.cli.common import Cli
from forge.config import Shown, shown
from forge.config.reading import dotted

__all__ = ["config"]


@click.group(cls=Group)
def config() -> None:
    """The settings in force."""


@config.command()
@click.option("--origin", is_flag=True, help="say where each value comes from")
def show(cli: Cli, origin: bool) -> None:
    """The settings in force, as the lines of a forge.toml; secrets are masked."""
    found = [_shortened(cli, entry) for entry in shown(cli.config)]
    lines = (_line(entry) + (f"   # {entry.origin}" if origin and entry.origin else "") for entry in found)
    cli.answer(_document(cli, found, origin), "\n".join(lines))


def _shortened(cli: Cli, entry: Shown) -> Shown:
    """The database by its short name, if it is a file below the current directory."""
    return Shown(entry.key, cli.shown_url, entry.origin) if entry.key == ("database",) else entry


def _document(cli: Cli, found: list[Shown], with_origin: bool) -> dict[str, Any]:
    """The same as one object; a table that is not there is left out."""
    document: dict[str, Any] = {}
    origin = {}
    for entry in found:
        table = document
        for part in entry.key[:-1]:
            table = table.setdefault(part, {})
        table[entry.key[-1]] = {} if entry.head else entry.value
        if entry.origin:
            origin[dotted(entry.key)] = entry.origin
    path: Path | None = cli.config.path
    document["path"] = str(path) if path else None
    return document | ({"origin": origin} if with_origin else {})


def _line(entry: Shown) -> str:
    if entry.head:
        return f"\n[{dotted(entry.key)}]"
    name = dotted(entry.key[-1:])
    # TOML has no null: a setting that is not set is not written.
    return f"# {name} is not set" if entry.value is None else f"{name} = {_toml(entry.value)}"


def _toml(value: Any) -> str:
    """A value on one line. Strings, numbers and booleans are written as in JSON."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{dotted([key])} = {_toml(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return orjson.dumps(value).decode()
