"""From flags, environment and `forge.toml` to a `Config`, with the origin of every value."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from forge.config import checks
from forge.config.checks import suggest
from forge.config.masking import DATABASES, HIDDEN, looks_secret, mask, masked
from forge.config.model import Config, QueueConfig
from forge.config.positions import Key, Positions
from forge.config.setting import REQUIRED, DeclaredSetting, Section, declared_settings
from forge.config.values import Unfit, fit, from_text
from forge.errors import ConfigError

__all__ = ["database_url", "dotted", "find", "load"]

FILE_NAME = "forge.toml"
DEFAULT = "default"  # the origin of what nobody has set


def find(start: Path | None = None) -> Path | None:
    """The nearest `forge.toml`, from `start` (else the current directory) upward."""
    folder = (start or _here()).absolute()
    for candidate in (folder, *folder.parents):
        path = candidate / FILE_NAME
        if path.is_file():
            return path
    return None


def _here() -> Path:
    """The current directory; the root, if it has been removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/")


def load(
    path: Path | None = None, database: str | None = None, *, schema: str | None = None, start: Path | None = None
) -> Config:
    """The settings in force, from `path`, else the file FORGE_CONFIG names, else the nearest `forge.toml`, if any.

    `database` and `schema` are what flags or arguments said, and win over everything. With `start` all of that is as
    seen from this folder, and the database is the same wherever the process goes.
    """
    named = path or os.environ.get("FORGE_CONFIG") or find(start)
    source = _File.read((start or Path()) / named) if named else None
    found = _Reader(source, {"database": database, "schema": schema}, os.environ, start or _here()).config()
    return found if start is None else replace(found, database=_relative_to(found.database, start))


def database_url(flag: str | None = None, config: Path | None = None) -> str:
    """The database in force: flag > FORGE_DATABASE_URL > DATABASE_URL > file > `sqlite:///forge.db`.

    A relative SQLite path is meant from the folder of the file that names it, else from the current directory.
    """
    return load(config, flag).database


def dotted(key: Iterable[str | int]) -> str:
    """A key with its tables, as TOML writes it; a place in a list in brackets."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            quoted = part if re.fullmatch(r"[\w-]+", part, re.ASCII) else json.dumps(part, ensure_ascii=False)
            text += f".{quoted}" if text else quoted
    return text


class _Reader:
    """Reads one configuration, section by section."""

    def __init__(
        self, source: _File | None, flags: Mapping[str, str | None], env: Mapping[str, str], start: Path
    ) -> None:
        self._source, self._flags, self._env, self._start = source, flags, env, start
        self._origin: dict[Key, str] = {}
        self._folder = source.path.parent if source else start

    def config(self) -> Config:
        values = self._source.values if self._source else {}
        fields = self._fields(Config, values, ())
        if self._source and self._origin["database",] in (DEFAULT, self._place("database")):
            fields["database"] = _relative_to(fields["database"], self._folder)
        self._select_queues(fields)
        origin = {dotted(key): said for key, said in self._origin.items()}
        found = Config(**fields, path=self._source.path if self._source else None, origin=origin)
        self._check_together(found, ())
        return found

    def _section(self, section: type[Section], values: Any, key: Key) -> Any:
        """One table, read and checked."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"{self._place(*key)}: {dotted(key)} must be a table: [{dotted(key)}], not {values!r}")
        found = section(**self._fields(section, values, key))
        self._check_together(found, key)
        return found

    def _fields(self, section: type[Section], values: Mapping[str, Any], key: Key) -> dict[str, Any]:
        known = declared_settings(section)
        rest = next((setting for setting in known.values() if setting.about.rest), None)
        own = [name for name in known if rest is None or name != rest.name]
        others = {name: value for name, value in values.items() if name not in own}
        for name, value in others.items():
            if rest is None or not isinstance(value, Mapping):
                wrong = (*key, name)
                raise ConfigError(f"{self._place(*wrong)}: unknown key {dotted(wrong)}{suggest(name, own)}")
        fields = {name: self._setting(known[name], values, key) for name in own}
        if rest is not None and rest.tables:
            fields[rest.name] = self._named(rest.tables, others, key)
        return fields

    def _setting(self, setting: DeclaredSetting, values: Mapping[str, Any], table: Key) -> Any:
        """The value of one setting: a scalar, a table or named tables."""
        key = (*table, setting.name)
        if setting.tables:
            return self._named(setting.tables, values.get(setting.name, {}), key)
        if setting.table:
            if setting.optional and setting.name not in values and not self._has_variable(setting):
                return None
            return self._section(setting.table, values.get(setting.name, {}), key)
        return self._scalar(setting, values, key)

    def _named(self, section: type[Section], tables: Any, key: Key) -> dict[str, Any]:
        if not isinstance(tables, Mapping):
            raise ConfigError(
                f"{self._place(*key)}: {dotted(key)} must be tables: [{dotted(key)}.NAME], not {tables!r}"
            )
        found = {}
        for name, values in tables.items():
            here = (*key, name)
            if words := checks.name(name):
                raise ConfigError(f"{self._place(*here)}: a name under {dotted(key)} must be {words}, not {name!r}")
            self._origin[here] = self._place(*here)
            found[name] = self._section(section, values, here)
        return found

    def _scalar(self, setting: DeclaredSetting, values: Mapping[str, Any], key: Key) -> Any:
        given = self._given(setting, values, key)
        if given is None:
            if setting.default is REQUIRED:
                table, name = dotted(key[:-1]), setting.name
                raise ConfigError(f"{self._place(*key)}: {table} has no {name}; add {name} = {setting.about.example}")
            self._origin[key] = DEFAULT
            return setting.default
        value, origin, folder = given
        self._origin[key] = origin
        try:
            return fit(setting, value, folder)
        except Unfit as e:
            where = (*key, *e.inner)
            place = self._place(*where) if self._source and origin == self._place(*key) else origin
            shown = _shown(setting, where, e.value)
            raise ConfigError(f"{place}: {dotted(where)} must be {e.wanted}{shown}") from None

    def _given(self, setting: DeclaredSetting, values: Mapping[str, Any], key: Key) -> tuple[Any, str, Path] | None:
        """What was said about a setting, who said it, and what a relative path in it is meant from."""
        if len(key) == 1 and (flag := self._flags.get(setting.name)):
            return flag, f"--{setting.name}", self._start
        for variable in _variables(setting, key):
            if text := self._variable(variable):
                return from_text(setting, text), variable, self._start
        if setting.name in values:
            return values[setting.name], self._place(*key), self._folder
        return None

    def _variable(self, name: str) -> str | None:
        """Empty counts as unset. So does the URL that Kubernetes puts into FORGE_WEB_PORT where a service is called
        forge-web."""
        text = self._env.get(name)
        return None if text and name.endswith("_PORT") and text.startswith(("tcp://", "udp://")) else text

    def _has_variable(self, setting: DeclaredSetting) -> bool:
        """Whether the environment sets something in a table that the file may not have."""
        inner = declared_settings(setting.table).values() if setting.table else ()
        return any(self._variable(name) for each in inner for name in each.variables(setting.name))

    def _select_queues(self, fields: dict[str, Any]) -> None:
        """FORGE_QUEUES says which queues are served; the file says with which settings, if it knows them."""
        wanted = [name.strip() for name in self._env.get("FORGE_QUEUES", "").split(",")]
        names = list(dict.fromkeys(filter(None, wanted)))
        if not names:
            return
        kept = {}
        for name in names:
            if words := checks.name(name):
                raise ConfigError(f"FORGE_QUEUES: a queue's name must be {words}, not {name!r}")
            kept[name] = fields["queues"].get(name) or self._section(QueueConfig, {}, ("queues", name))
        fields["queues"] = kept
        self._origin = {k: said for k, said in self._origin.items() if k[0] != "queues" or k[1] in kept}
        self._origin |= {("queues", name): "FORGE_QUEUES" for name in names}

    def _check_together(self, found: Section, table: Key) -> None:
        for inner, words in found.faults():
            key = (*table, *inner)
            origin = self._origin.get(key, DEFAULT)
            raise ConfigError(f"{self._place(*key) if origin == DEFAULT else origin}: {dotted(key)} {words}")

    def _place(self, *key: str | int) -> str:
        return self._source.place(*key) if self._source else DEFAULT


def _variables(setting: DeclaredSetting, key: Key) -> tuple[str, ...]:
    """Only what there is one of can be set by a variable: top-level keys and those of tables like [web]."""
    if len(key) > 2 or (len(key) == 2 and declared_settings(Config)[str(key[0])].table is None):
        return ()
    return setting.variables(str(key[0]) if len(key) == 2 else None)


def _shown(setting: DeclaredSetting, where: Key, value: Any) -> str:
    """`, not x`, unless x may be a secret."""
    if setting.about.secret or any(isinstance(part, str) and looks_secret(part) for part in where):
        return f", not {HIDDEN}"
    text = repr(mask(value) if setting.name in DATABASES and isinstance(value, str) else masked(value))
    return f", not {text}" if len(text) <= 60 else f", not {text[:57]}…"


def _relative_to(url: str, folder: Path) -> str:
    """A SQLite URL with a relative path, made absolute from `folder`; any other as it is."""
    prefix = "sqlite:///"
    path = url.removeprefix(prefix)
    if not url.startswith(prefix) or path.startswith(("/", ":memory:")):
        return url
    return f"{prefix}{folder.absolute()}/{path}"


class _File:
    """One `forge.toml`, parsed."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path.absolute()
        here = _here()
        self._name = os.path.relpath(self.path, here) if self.path.is_relative_to(here) else str(self.path)
        try:
            self.values = tomllib.loads(text)
            self._lines = Positions(text)
        except tomllib.TOMLDecodeError as e:
            what, _, where = str(e).partition(" (at ")
            line = re.match(r"line (\d+)", where)
            number = line[1] if line else text.count("\n") + 1
            raise ConfigError(f"{self._name}:{number}: {what}") from None
        except RecursionError:
            raise ConfigError(f"{self._name}: brackets nested too deeply") from None

    @classmethod
    def read(cls, path: Path) -> _File:
        try:
            text = path.read_text("utf-8")
        except FileNotFoundError:
            raise ConfigError(f"no file {path}; `forge init DIR` makes one") from None
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"cannot read {path}: {getattr(e, 'strerror', None) or 'it is not UTF-8 text'}") from None
        return cls(path, text)

    def place(self, *key: str | int) -> str:
        """`file:line` of a key."""
        return f"{self._name}:{self._lines.of(*key)}"
