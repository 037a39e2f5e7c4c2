"""The settings in force as plain values that may be shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.config.masking import DATABASES, HIDDEN, mask, masked
from forge.config.model import Config
from forge.config.reading import dotted
from forge.config.setting import Section, declared_settings

__all__ = ["Shown", "shown"]


@dataclass(frozen=True, slots=True)
class Shown:
    """One setting, or the head of a table."""

    key: tuple[str, ...]
    value: Any  # what JSON can hold; no secrets
    origin: str | None
    head: bool = False  # a table: what follows is in it


def shown(config: Config) -> Iterator[Shown]:
    """Everything that is in force, in the order of a forge.toml: plain settings of a table before the tables in it."""
    return _section(config, (), config.origin)


def _section(section: Section, key: tuple[str, ...], origin: Mapping[str, str]) -> Iterator[Shown]:
    tables: list[tuple[tuple[str, ...], Section]] = []
    for name, setting in declared_settings(type(section)).items():
        value, here = getattr(section, name), (*key, name)
        if setting.tables:
            tables += [
                (((*key, inner) if setting.about.rest else (*here, inner)), each) for inner, each in value.items()
            ]
        elif setting.table:
            tables += [(here, value)] if value is not None else []
        else:
            secret = setting.about.secret and value is not None
            seen = mask(value) if value and name in DATABASES else masked(_plain(value))
            yield Shown(here, HIDDEN if secret else seen, origin.get(dotted(here)))
    for inner_key, inner_section in tables:
        yield Shown(inner_key, None, origin.get(dotted(inner_key)), head=True)
        yield from _section(inner_section, inner_key, origin)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
