"""Runs `forge` in the test's own process, in a folder of the test's own, with nothing left behind."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from forge.cli import main

TASKS = """\
from forge import Forge

app = Forge()


@app.task
def add(a: int, b: int = 1) -> int:
    return a + b


@app.task(queue="mail", max_attempts=2, backoff=lambda n: 60.0)
def flaky() -> None:
    raise ValueError("no luck")


@app.handler("raw", queue="raw")
def raw(ctx, payload):
    print(ctx.id, payload)
"""


class Ran(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output as the one document it must be."""
        return orjson.loads(self.out)


class Shell:
    """Types commands."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object) -> Ran:
        """`forge …`"""
        self._capsys.readouterr()
        code = main([str(word) for word in words])
        return Ran(code, *self._capsys.readouterr())

    def ok(self, *words: object) -> str:
        """The output of a command that must succeed."""
        ran = self(*words)
        assert (ran.code, ran.err) == (0, "")
        return ran.out

    def fails(self, code: int, *words: object) -> str:
        """The one line that a command which must fail leaves on stderr."""
        ran = self(*words)
        assert (ran.code, ran.out) == (code, ""), ran
        assert ran.err.startswith("error: ")
        assert ran.err.count("\n") == 1
        return ran.err.removeprefix("error: ").rstrip("\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory. Variables, the import path, modules and the log are as before afterwards."""
    for name in ("FORGE_DATABASE_URL", "DATABASE_URL", "FORGE_SCHEMA", "FORGE_CONFIG", "FORGE_QUEUES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    variables, path, modules = dict(os.environ), list(sys.path), set(sys.modules)
    handlers, level = list(logging.root.handlers), logging.root.level
    yield tmp_path
    os.environ.clear()
    os.environ.update(variables)
    sys.path[:] = path
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    for name in set(sys.modules) - modules:
        if str(tmp_path) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


@pytest.fixture
def forge(folder: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    """The command line in an empty folder."""
    return Shell(capsys)


@pytest.fixture
def project(folder: Path) -> Path:
    """A folder with a forge.toml and a module of tasks."""
    (folder / "forge.toml").write_text('modules = ["tasks"]\n\n[queues.default]\nmax_workers = 4\n')
    (folder / "tasks.py").write_text(TASKS)
    return folder
