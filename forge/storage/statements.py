"""SQL lives in files; this loads it and writes it in the placeholder style of whichever driver will run it.

A file holds queries headed `-- name: claim`, with parameters written `:name`, and parts headed `-- part: columns` that
stand in later ones as `{columns}`. PostgreSQL's files write the schema
as `forge.`, so that they run as they stand in psql; another schema name is put in when they are loaded.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any, Literal

from forge.errors import ConfigError

__all__ = ["Queries", "Query", "Style", "check_schema_name", "load_queries", "with_schema"]

# dollar: psycopg's raw cursors and asyncpg; format: Django, SQLAlchemy on psycopg; qmark and named: SQLite.
Style = Literal["dollar", "format", "qmark", "named"]

_HEAD = re.compile(r"^-- (name|part): (\w+)$", re.MULTILINE)
_PART = re.compile(r"\{(\w+)\}")
_PARAM = re.compile(r"(?<![:\w]):([a-z_]+)")
_COMMENT = re.compile(r"^\s*--.*$|\s+--\s.*$", re.MULTILINE)
_SCHEMA = re.compile(r"\bforge(?=\.[a-z_])|(?<=create schema if not exists )forge\b")
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}")


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


class Queries:
    """All queries of one dialect, as attributes."""

    def __init__(self, queries: Mapping[str, Query]) -> None:
        self._queries = queries

    def __getattr__(self, name: str) -> Query:
        try:
            return self._queries[name]
        except KeyError:
            raise AttributeError(f"no query named {name}") from None

    def __iter__(self) -> Any:
        return iter(self._queries.values())


def check_schema_name(schema: str) -> str:
    """The name itself, if it can stand in SQL unquoted; schema names are data and are never spliced unchecked."""
    if not _SCHEMA_NAME.fullmatch(schema):
        raise ConfigError(
            f"schema {schema!r} is not a name of lower-case letters, digits and _ (at most 51); choose another"
        )
    if schema.startswith("pg_") or schema == "information_schema":
        raise ConfigError(f"schema {schema} is PostgreSQL's own; choose another")
    return schema


def with_schema(sql: str, schema: str) -> str:
    """The SQL with `forge.` replaced by another schema's name."""
    return sql if schema == "forge" else _SCHEMA.sub(check_schema_name(schema), sql)


@functools.cache
def load_queries(dialect: str, schema: str = "forge") -> Queries:
    """The dialect's `queries.sql`, comments dropped (they would be sent to the server each time)."""
    text = resources.files(__package__).joinpath("sql", dialect, "queries.sql").read_text("utf-8")
    parts = _HEAD.split(with_schema(text, schema))
    shared: dict[str, str] = {}
    found: dict[str, Query] = {}
    for what, name, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        assert name not in found and name not in shared, f"{dialect}: {name} is there twice"
        sql = _PART.sub(lambda m: shared[m[1]], _COMMENT.sub("", body))
        sql = "\n".join(line.rstrip() for line in sql.splitlines() if line.strip()).strip().removesuffix(";")
        if what == "part":
            shared[name] = sql
        else:
            found[name] = Query(name, sql)
    return Queries(found)
