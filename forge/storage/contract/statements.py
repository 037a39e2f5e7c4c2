"""Statements as a storage hands them out, for a connection of the caller's, of whatever library."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from forge.job import Receipt

__all__ = ["Plan", "Query", "Step", "Style"]

# dollar: psycopg's raw cursors and asyncpg; format: Django, SQLAlchemy on psycopg; qmark and named: SQLite.
Style = Literal["dollar", "format", "qmark", "named"]

_PARAM = re.compile(r"(?<![:\w]):([a-z_]+)")


class Query:
    """One named statement, ready in every style it is asked for."""

    __slots__ = ("_rendered", "name", "names", "sql")

    def __init__(self, name: str, sql: str) -> None:
        self.name = name
        self.sql = sql
        self.names = tuple(dict.fromkeys(_PARAM.findall(sql)))
        self._rendered: dict[Style, str] = {}

    def text(self, style: Style) -> str:
        """The statement with this style's placeholders."""
        found = self._rendered.get(style)
        if found is None:
            found = self._rendered[style] = self._render(style)
        return found

    def _render(self, style: Style) -> str:
        if style == "named":
            return self.sql
        if style == "dollar":
            number = {name: f"${i}" for i, name in enumerate(self.names, 1)}
            return _PARAM.sub(lambda m: number[m[1]], self.sql)
        if style == "format":
            return _PARAM.sub("%s", self.sql.replace("%", "%%"))
        return _PARAM.sub("?", self.sql)

    def args(self, style: Style, params: Mapping[str, Any]) -> tuple[Any, ...]:
        """The parameters in the order this style wants them (`named` takes the mapping itself)."""
        if style == "dollar":
            return tuple([params[name] for name in self.names])
        return tuple([params[name] for name in _PARAM.findall(self.sql)])


class Step(NamedTuple):
    """One statement of a plan."""

    query: Query
    params: Mapping[str, Any]


# A verb written once for every kind of connection: it yields statements and is sent their rows. `forge.app` runs one
# on a connection of the caller's, sync or async.
Plan = Generator[Step, Sequence[Sequence[Any]], list[Receipt]]
