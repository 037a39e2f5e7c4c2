"""How a setting is declared: once, as a dataclass field whose metadata says all that is known about it.

Reading, checking, defaults, the names of variables, `forge config show` and the tables of docs/configuration.md follow
from these declarations.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar

__all__ = ["REQUIRED", "DeclaredSetting", "Section", "Setting", "declared_settings", "setting"]

T = TypeVar("T")
REQUIRED: Any = dataclasses.MISSING

Check = Callable[[Any], str | None]  # what the value must be, in words, if it is not


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is known about a setting besides its type and default."""

    help: str  # a phrase for the reference
    low: float | None = None  # the least value, or with `clamp` what a lesser one becomes
    high: float | None = None  # the same at the other end
    clamp: bool = False  # values outside the bounds are moved to them instead of refused
    unit: str = ""  # seconds, days, bytes; bytes may also be written "64MB"
    example: str = ""  # as TOML, for errors
    check: Check | None = None  # of a value that has the right type
    secret: bool = False  # never shown
    variables: tuple[str, ...] = ()  # that override it, where the rule's FORGE_KEY is not what people expect
    rest: bool = False  # takes the tables of the section that are nothing else: [commands.NAME]


class Section:
    """A table of forge.toml."""

    __slots__ = ()

    def faults(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Of settings that are wrong only together: a key to point at, and what to say."""
        return iter(())


def setting(default: T, said: str, **about: Any) -> T:
    """A field of a section. `REQUIRED` for one without default."""
    extra: dict[str, Any] = {"metadata": {Setting: Setting(help=said, **about)}}
    if isinstance(default, dict):
        extra["default_factory"] = dict
    elif default is not REQUIRED:
        extra["default"] = default
    return typing.cast("T", dataclasses.field(**extra))


@dataclass(frozen=True, slots=True)
class DeclaredSetting:
    """A declared setting: one field of one section."""

    name: str
    type: Any  # int, Literal[...], tuple[str, ...] and so on, without the `| None`
    optional: bool  # None is a value: not set
    default: Any  # REQUIRED if there is none
    about: Setting

    @property
    def table(self) -> type[Section] | None:
        """The section, if the setting is a table such as `[web]`."""
        return self.type if isinstance(self.type, type) and issubclass(self.type, Section) else None

    @property
    def tables(self) -> type[Section] | None:
        """The section of each, if the setting is a table of named tables such as `[queues.NAME]`."""
        if typing.get_origin(self.type) is not Mapping:
            return None
        inner = typing.get_args(self.type)[1]
        return inner if isinstance(inner, type) and issubclass(inner, Section) else None

    def variables(self, table: str | None) -> tuple[str, ...]:
        """The environment variables that set it: FORGE_KEY, or FORGE_TABLE_KEY in a table."""
        if self.about.variables or self.table or self.tables:
            return self.about.variables
        return (f"FORGE_{table}_{self.name}".upper() if table else f"FORGE_{self.name}".upper(),)


_known: dict[type[Any], Mapping[str, DeclaredSetting]] = {}


def declared_settings(section: type[Any]) -> Mapping[str, DeclaredSetting]:
    """The settings of a section, in the order of their declaration."""
    if section not in _known:
        _known[section] = _declared(section)
    return _known[section]


def _declared(section: type[Any]) -> Mapping[str, DeclaredSetting]:
    hints = typing.get_type_hints(section)
    found = {}
    for field in dataclasses.fields(section):
        if Setting not in field.metadata:
            continue
        hint, optional = hints[field.name], False
        if typing.get_origin(hint) in (typing.Union, UnionType):
            (hint,) = (part for part in typing.get_args(hint) if part is not NoneType)
            optional = True
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        found[field.name] = DeclaredSetting(field.name, hint, optional, default, field.metadata[Setting])
    return found
