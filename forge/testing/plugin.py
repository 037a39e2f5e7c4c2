"""Fixtures for pytest, loaded by it where forge is installed: the project's app on a database of the test's own.

`forge_app` is the only one most tests need. While a test has it, no app of the process can open another database.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, cast

import pytest

from forge import Forge, config
from forge.app.lazy_storage import lend
from forge.errors import ForgeError
from forge.inline import Summary
from forge.testing.database import open_for_test, url_in
from forge.testing.running import drain
from forge.worker.modules import known_tasks

__all__ = ["Drain", "forge_app", "forge_db", "forge_drain"]

OPTION = "forge_app_path"


class Drain(Protocol):
    """What `forge_drain` is: `forge.testing.drain` of the project's app."""

    def __call__(
        self, *, queues: list[str] | None = None, later: bool = False, raises: bool = False, limit: int = 1000
    ) -> Summary: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """The app may be named where it cannot be found."""
    parser.addini(OPTION, 'the app that forge_app is, as "module:name"; else that of the modules in forge.toml')


def pytest_configure(config: pytest.Config) -> None:
    """Make the modules of a project importable in its tests, as they are for forge itself."""
    if found := _settings_file(config.rootpath, config.invocation_params.dir):
        _importable(found.parent)


@pytest.fixture
def forge_db(tmp_path: Path) -> str:
    """URL of the database of this test. Override it to test on another, such as a PostgreSQL that may be emptied."""
    return url_in(tmp_path)


@pytest.fixture
def forge_app(forge_db: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forge]:
    """The project's app, working on the database of this test; afterwards it is as it was."""
    # For what the test starts, and for commands it runs: they read their settings anew.
    monkeypatch.setenv("FORGE_DATABASE_URL", forge_db)
    with open_for_test(forge_db) as storage, lend(storage):
        try:
            app = _find_app(request)
        except ForgeError as e:
            pytest.fail(f"forge_app: {e}", pytrace=False)
        yield app


@pytest.fixture
def forge_drain(forge_app: Forge) -> Drain:
    """`forge_drain()` runs what is due until nothing is, and says what it did: see `forge.testing.drain`."""

    def run(**options: Any) -> Summary:
        return drain(forge_app, **options)

    return cast(Drain, run)


def _find_app(request: pytest.FixtureRequest) -> Forge:
    named = str(request.config.getini(OPTION) or "")
    path = _settings_file(request.path.parent, request.config.rootpath, request.config.invocation_params.dir)
    if path is not None:
        _importable(path.parent)
    if named:
        return _named_app(named)
    advice = f'name it in the settings of pytest: {OPTION} = "tasks:app"'
    if path is None:
        raise ForgeError(f"no forge.toml in {request.path.parent} or above says where the app is; {advice}")
    settings = config.load(path)
    apps = list(dict.fromkeys(found.app for found in known_tasks(settings, flags={}).kinds.values()))
    if len(apps) != 1:
        raise ForgeError(
            f"the modules of {path} ({', '.join(settings.modules)}) have {len(apps)} apps with tasks, not 1; {advice}"
        )
    return apps[0]


def _named_app(named: str) -> Forge:
    module, _, name = named.partition(":")
    found: object = importlib.import_module(module)
    for part in (name or "app").split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Forge):
        raise ForgeError(f'{OPTION} = "{named}" names no Forge(); write it as "module:name"')
    return found


def _settings_file(*folders: Path) -> Path | None:
    if named := os.environ.get("FORGE_CONFIG"):
        return Path(named).absolute()
    return next((path for folder in folders if (path := config.find(folder))), None)


def _importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
