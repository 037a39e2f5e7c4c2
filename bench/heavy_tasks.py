"""A module with something sizeable to import: at the top, where all workers share it, or in every worker by itself."""

from __future__ import annotations

import importlib
import os

from forge import Forge

app = Forge()

SIZEABLE = ("sqlalchemy.orm", "asyncio", "http.client", "email.message", "xml.dom.minidom", "decimal", "difflib")


def load() -> None:
    """Import them."""
    for name in SIZEABLE:
        importlib.import_module(name)


if os.environ.get("FORGE_BENCH_PRELOAD") == "1":
    load()
else:
    app.on_worker_start(load)
