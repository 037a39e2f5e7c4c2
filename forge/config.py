"""Where forge's settings come from: a flag, the environment, `forge.toml`, a default, in that order.

This module reads and checks; it opens no database and imports no user code. Of every value it remembers the origin,
so that `forge config show --origin` can say why a setting is what it is. A URL that is shown to anybody goes through
`mask`.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge.errors import ConfigError
from forge.job import QueueSettings

__all__ = ["MAX_PAYLOAD", "Config", "database_url", "find", "load", "mask", "scrub", "suggest"]

FILE_NAME = "forge.toml"
DEFAULT_DATABASE = "sqlite:///forge.db"
DEFAULT_SCHEMA = "forge"
MAX_PAYLOAD = 1024 * 1024  # bytes of JSON text

# Tables of forge.toml. `queues` is read here; the others are handed on as they stand to the parts they configure.
TABLES = ("queues", "cron", "pools", "commands", "limits", "web", "faktory", "logging")
KEYS = ("database", "schema", "modules", "max_payload", *TABLES)

# What `[queues.NAME]` takes: exactly what operators can set at run time.
QUEUE_KEYS = tuple(f.name for f in dataclasses.fields(QueueSettings) if f.compare and f.name != "name")


@dataclass(frozen=True, slots=True)
class Config:
    """What one command or one `Forge()` runs with."""

    database: str = DEFAULT_DATABASE  # URL, password and all: show it through `mask`
    schema: str = DEFAULT_SCHEMA  # PostgreSQL schema that holds the tables
    modules: tuple[str, ...] = ()  # Python modules that define tasks
    path: Path | None = None  # the file that was read
    max_payload: int = MAX_PAYLOAD
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # TABLES of the file, undigested
    origin: Mapping[str, str] = field(default_factory=dict)  # of each setting: a flag, a variable, file:line or default

    @property
    def queues(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings of the queues that the file declares."""
        return self.tables.get("queues", {})


def find(start: Path | None = None) -> Path | None:
    """The nearest `forge.toml`, from `start` (else the current directory) upward."""
    folder = (start or Path.cwd()).absolute()
    for candidate in (folder, *folder.parents):
        path = candidate / FILE_NAME
        if path.is_file():
            return path
    return None


def load(path: Path | None = None, database: str | None = None, *, schema: str | None = None) -> Config:
    """The settings in force, from `path`, else the file FORGE_CONFIG names, else the nearest `forge.toml`, if any.

    `database` and `schema` are what flags or arguments said, and win over everything.
    """
    named = path or os.environ.get("FORGE_CONFIG") or find()
    source = _File.read(Path(named)) if named else None
    at: dict[str, str] = {}

    def pick(key: str, flag: str | None, variables: Iterable[str], default: Any) -> Any:
        if flag:
            at[key] = f"--{key}"
            return flag
        for variable in variables:
            if value := os.environ.get(variable):
                at[key] = variable
                return value
        if source is not None and key in source.values:
            at[key] = source.place(key)
            return source.values[key]
        at[key] = "default"
        return default

    url = pick("database", database, ("FORGE_DATABASE_URL", "DATABASE_URL"), DEFAULT_DATABASE)
    if source is not None and at["database"] in (source.place("database"), "default"):
        url = _relative_to(url, source.path.parent)
    return Config(
        database=url,
        schema=pick("schema", schema, ("FORGE_SCHEMA",), DEFAULT_SCHEMA),
        modules=tuple(pick("modules", None, (), ())),
        path=source.path if source else None,
        max_payload=pick("max_payload", None, (), MAX_PAYLOAD),
        tables={key: source.values[key] for key in TABLES if key in source.values} if source else {},
        origin=at,
    )


def database_url(flag: str | None = None, config: Path | None = None) -> str:
    """The database in force: flag > FORGE_DATABASE_URL > DATABASE_URL > file > `sqlite:///forge.db`.

    A relative SQLite path is meant from the folder of the file that names it, else from the current directory.
    """
    return load(config, flag).database


def suggest(wrong: str, valid: Iterable[str], show: int = 30) -> str:
    """`; did you mean x?`, else what there is if it is not more than `show` names: the tail of an error."""
    names = sorted(valid)
    if near := difflib.get_close_matches(wrong, names, n=1):
        return f"; did you mean {near[0]}?"
    return f"; there are {', '.join(names)}" if 0 < len(names) <= show else ""


_SECRET_PARAMETER = re.compile(r"(?i)([\w-]*(?:password|passwd|secret|token)[\w-]*\s*=\s*)('[^']*'|[^&\s'#]+)")
# Up to the last @, because a password pasted unescaped may hold / ? : or @ itself. Too much hidden is no harm.
_USERINFO = re.compile(r"(?s)^(\s*[\w+.-]+://[^:/?#@]*):(.*)@")


def mask(url: str) -> str:
    """The URL or DSN with its secrets replaced by `***`: the only form in which one is shown."""
    return _SECRET_PARAMETER.sub(r"\1***", _USERINFO.sub(r"\1:***@", url))


def scrub(text: str, urls: Iterable[str]) -> str:
    """`text` without the secrets of these URLs. Drivers quote pieces of a URL they could not parse."""
    secrets: set[str] = set()
    for url in urls:
        text = text.replace(url, mask(url))
        found = [m[2].strip("'") for m in _SECRET_PARAMETER.finditer(url)]
        if m := _USERINFO.match(url):
            found.append(m[2])
        secrets.update(piece for secret in found for piece in (secret, *re.split(r"[/?#:@]", secret)) if len(piece) > 2)
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _relative_to(url: str, folder: Path) -> str:
    """A SQLite URL with a relative path, made absolute from `folder`; any other as it is."""
    prefix = "sqlite:///"
    path = url.removeprefix(prefix)
    if not url.startswith(prefix) or path.startswith(("/", ":memory:")):
        return url
    return f"{prefix}{folder.absolute()}/{path}"


class _File:
    """One parsed and checked `forge.toml`."""

    def __init__(self, path: Path, text: str, values: Mapping[str, Any]) -> None:
        self.path = path.absolute()
        self.name = os.path.relpath(self.path) if self.path.is_relative_to(Path.cwd()) else str(self.path)
        self.text = text
        self.values = values

    @classmethod
    def read(cls, path: Path) -> _File:
        try:
            text = path.read_text("utf-8")
        except FileNotFoundError:
            raise ConfigError(f"no file {path}; `forge init DIR` makes one") from None
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"cannot read {path}: {getattr(e, 'strerror', None) or 'it is not UTF-8 text'}") from None
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as e:
            what, _, where = str(e).partition(" (at ")
            line = re.match(r"line (\d+)", where)
            number = line[1] if line else text.count("\n") + 1
            raise ConfigError(f"{cls(path, text, {}).name}:{number}: {what}") from None
        file = cls(path, text, values)
        file._check()
        return file

    def place(self, *keys: str) -> str:
        """`file:line` of a key, as near as a look at the lines can tell."""
        return f"{self.name}:{_line_of(self.text, keys)}"

    def _check(self) -> None:
        for key, value in self.values.items():
            if key not in KEYS:
                raise ConfigError(f"{self.place(key)}: unknown key {key}{suggest(key, KEYS)}")
            if wanted := _wrong_type(key, value):
                raise ConfigError(f"{self.place(key)}: {key} must be {wanted}, not {value!r}")
        for name, settings in self.values.get("queues", {}).items():
            self._check_queue(name, settings)

    def _check_queue(self, name: str, settings: Any) -> None:
        place = self.place("queues", name)
        if not name or "," in name:
            raise ConfigError(f"{place}: a queue's name has at least one character and no comma, unlike {name!r}")
        if not isinstance(settings, dict):
            raise ConfigError(f"{place}: queues.{name} must be a table: [queues.{name}]")
        for key in settings:
            if key not in QUEUE_KEYS:
                place = self.place("queues", name, key)
                raise ConfigError(f"{place}: unknown key queues.{name}.{key}{suggest(key, QUEUE_KEYS)}")


def _wrong_type(key: str, value: Any) -> str | None:
    """What the value should have been, if it is not."""
    if key in ("database", "schema"):
        return None if isinstance(value, str) and value else "text"
    if key == "modules":
        fits = isinstance(value, list) and all(isinstance(name, str) and name for name in value)
        return None if fits else 'a list of module names, such as ["tasks"]'
    if key == "max_payload":
        return None if type(value) is int and value > 0 else "a whole number of bytes above 0"
    return None if isinstance(value, dict) else f"a table: [{key}]"


def _line_of(text: str, keys: tuple[str, ...]) -> int:
    """The line where a key, given with the tables it stands in, is written; 1 if it is written some unusual way.

    tomllib keeps no positions, so this reads the lines again: headers, `key =` and dotted keys.
    """
    table: tuple[str, ...] = ()
    best, depth = 1, 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+([^\[\]]+)\]", line):
            here = table = _parts(header[1])
        elif pair := re.match(r"\s*([\w\"'., -]+?)\s*=", line):
            here = (*table, *_parts(pair[1]))
        else:
            continue
        common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(here, keys, strict=False)))
        if common > depth:
            best, depth = number, common
    return best


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
