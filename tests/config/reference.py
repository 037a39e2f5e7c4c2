"""The tables of docs/configuration.md, made from the declarations. `python -m tests.config.reference` writes them."""

from __future__ import annotations

import json
import re
import typing
from pathlib import Path
from typing import Any, Literal

from forge.config.model import Config
from forge.config.setting import REQUIRED, DeclaredSetting, Section, declared_settings
from forge.config.values import wanted

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
_MARKED = re.compile(r"(<!-- settings: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def sections() -> dict[str, type[Section]]:
    """Every table, by the name it is marked with in the page."""
    found: dict[str, type[Section]] = {"top": Config}
    for name, setting in declared_settings(Config).items():
        if section := setting.table or setting.tables:
            found[name] = section
            found |= {f"{name}.NAME": each.tables for each in declared_settings(section).values() if each.tables}
    return found


def table(section: type[Section]) -> str:
    """The reference of one table."""
    rows = [
        _row(setting) for setting in declared_settings(section).values() if not setting.table and not setting.tables
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in [("key", "default", "takes", "meaning"), ("---",) * 4, *rows])


def _row(setting: DeclaredSetting) -> tuple[str, str, str, str]:
    return f"`{setting.name}`", _default(setting), _takes(setting), setting.about.help


def _default(setting: DeclaredSetting) -> str:
    if setting.default is REQUIRED:
        return "required"
    if setting.default is None or setting.default in ((), {}):
        return "none"
    value: Any = int(setting.default) if isinstance(setting.default, float) else setting.default
    return f"`{json.dumps(value)}`"


def _takes(setting: DeclaredSetting) -> str:
    if typing.get_origin(setting.type) is Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(setting.type))
    words = wanted(setting).partition(", such as")[0]
    about = setting.about
    return f"{words}, moved into {about.low:g} to {about.high:g}" if about.clamp else words


def written(page: str) -> str:
    """The page with its tables as they should be."""
    known = sections()
    return _MARKED.sub(lambda m: f"{m[1]}{table(known[m[2]])}{m[3]}", page)


def marked(page: str) -> set[str]:
    """The tables that the page has."""
    return {m[2] for m in _MARKED.finditer(page)}


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
