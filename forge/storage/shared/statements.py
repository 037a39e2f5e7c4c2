"""SQL lives in files; this loads it.

Each dialect has a folder, and in it a file for each subject. A file holds queries headed `-- name: claim`, with
parameters written `:name`, and parts headed `-- part: columns` that stand in others as `{columns}`. PostgreSQL's write
the schema as `forge.`, so that they run as they stand in psql; another schema name is put in when they are loaded.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from forge.errors import ConfigError
from forge.storage.contract.statements import Query

__all__ = ["Queries", "check_schema_name", "load_queries", "with_schema"]

_HEAD = re.compile(r"^-- (name|part): (\w+)$", re.MULTILINE)
_PART = re.compile(r"\{(\w+)\}")
_COMMENT = re.compile(r"^\s*--.*$|\s+--\s.*$", re.MULTILINE)
_SCHEMA = re.compile(r"\bforge(?=\.[a-z_])|(?<=create schema if not exists )forge\b")
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}")


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
    """All that is in the dialect's files, comments dropped (they would be sent to the server each time). Parts may
    stand in any of them."""
    folder = resources.files("forge.storage").joinpath("sql", dialect)
    shared: dict[str, str] = {}
    found: dict[str, str] = {}
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if not entry.name.endswith(".sql"):
            continue
        pieces = _HEAD.split(with_schema(entry.read_text("utf-8"), schema))
        for what, name, body in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
            assert name not in found and name not in shared, f"{dialect}/{entry.name}: {name} is there twice"
            (shared if what == "part" else found)[name] = _COMMENT.sub("", body)
    return Queries({name: Query(name, _whole(sql, shared)) for name, sql in found.items()})


def _whole(sql: str, parts: Mapping[str, str]) -> str:
    """A statement with its parts in it, and theirs in them."""
    while _PART.search(sql):
        sql = _PART.sub(lambda m: parts[m[1]].strip(), sql)
    return "\n".join(line.rstrip() for line in sql.splitlines() if line.strip()).strip().removesuffix(";")
