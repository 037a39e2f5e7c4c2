"""The modules that `forge.toml` names: importing them, and the handlers found there."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from forge.app import Forge, Handler, Task
from forge.config import Config, suggest
from forge.errors import ConfigError, UsageError
from forge.worker import builtin

__all__ = ["Found", "Known", "known_tasks"]


@dataclass(frozen=True, slots=True)
class Found:
    """One kind that a worker of this project can run."""

    app: Forge
    handler: Handler
    task: Task[..., Any] | None  # None: a plain handler, or a task that is no name of its module


@dataclass(frozen=True, slots=True)
class Known:
    """Everything the configured modules define."""

    modules: tuple[str, ...]
    kinds: Mapping[str, Found]
    apps: tuple[Forge, ...] = ()

    @property
    def handlers(self) -> dict[str, Handler]:
        """As a worker takes them: with those that forge has built in, where the modules have no other."""
        return {**builtin.BUILTIN, **{kind: found.handler for kind, found in self.kinds.items()}}

    def get(self, kind: str) -> Found | None:
        """The kind, None where no modules are configured; `UsageError` if they are and none defines it."""
        if not self.modules or kind in self.kinds:
            return self.kinds.get(kind)
        if kind in builtin.BUILTIN:
            return Found(builtin.app, builtin.BUILTIN[kind], None)
        raise UsageError(f"no task {kind}{suggest(kind, self.kinds, show=0)}   (forge tasks lists all)")


def known_tasks(
    config: Config, *, flags: Mapping[str, str | None], after_import: Callable[[str], None] = lambda module: None
) -> Known:
    """Import the modules and gather their tasks. `flags` of the command are made known to apps by the environment, so
    that `Forge()` in a module means the database the command means."""
    for variable, value in flags.items():
        if value:
            os.environ[variable] = value
    folder = str(config.path.parent) if config.path else os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    kinds: dict[str, Found] = {}
    apps: dict[Forge, None] = {}
    for name in config.modules:
        module = _import(name, config.origin["modules"], folder)
        after_import(name)
        _gather(module, kinds, apps)
    return Known(config.modules, dict(sorted(kinds.items())), tuple(apps))


def _import(name: str, origin: str, folder: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name and (name == e.name or name.startswith(f"{e.name}.")):
            raise ConfigError(f"no module {name} in {folder} or installed; modules in {origin} names it") from None
        raise ConfigError(_failed(name, origin, e)) from None
    except Exception as e:  # noqa: BLE001 (a module may raise anything)
        raise ConfigError(_failed(name, origin, e)) from None


def _failed(name: str, origin: str, error: Exception) -> str:
    """One line with the place in the user's own code, if any frame of it is there."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
    outside = [f for f in frames if f.filename not in (__file__, importlib.__file__)]
    place = f" ({os.path.basename(outside[-1].filename)}:{outside[-1].lineno})" if outside else ""
    if isinstance(error, SyntaxError):
        place = f" ({os.path.basename(error.filename or '?')}:{error.lineno})"
        return f"cannot import {name}: {type(error).__name__}: {error.msg}{place}; modules in {origin} names it"
    said = " ".join(str(error).split()) or "no message"
    return f"cannot import {name}: {type(error).__name__}: {said}{place}; modules in {origin} names it"


def _gather(module: ModuleType, kinds: dict[str, Found], known_apps: dict[Forge, None]) -> None:
    values = list(vars(module).values())
    found = {value.kind: value for value in values if isinstance(value, Task)}
    apps = [value for value in values if isinstance(value, Forge)]
    apps += [app for task in found.values() if isinstance(app := task._app, Forge)]
    for app in dict.fromkeys(apps):
        known_apps[app] = None
        for kind, handler in app.tasks.items():
            if (known := kinds.get(kind)) and known.handler is not handler:
                raise ConfigError(
                    f"two apps have the kind {kind}: {known.handler.where} and {handler.where}; rename one"
                )
            kinds[kind] = Found(app, handler, found.get(kind) or (known.task if known else None))
