"""A folder with one forge.toml, and no variables."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from forge import config

Load = Callable[[str], config.Config]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """The configuration that a text makes."""
    for name in [name for name in os.environ if name.startswith("FORGE_") or name == "DATABASE_URL"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def loaded(text: str) -> config.Config:
        (tmp_path / "forge.toml").write_text(text, "utf-8")
        return config.load()

    return loaded
