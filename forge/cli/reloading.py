"""`forge-master --reload`: a thread that watches the project's files and sends this process SIGHUP when one changes.

What a reload is, and that one which fails leaves the old code running, is the master's business.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from forge.config import Config
from forge.errors import UsageError

__all__ = ["Watcher", "prepare_to_reload"]

DEBOUNCE = 200  # ms: an editor or a checkout writes many files in one go


def prepare_to_reload() -> None:
    """Before the first zygote starts. `UsageError` where watchfiles is not installed."""
    try:
        import watchfiles  # noqa: F401
    except ImportError:
        raise UsageError("--reload needs watchfiles; run: pip install 'forge-jobs[reload]'") from None
    # Bytecode is told apart by seconds and size; two edits in one second would look alike.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


class Watcher:
    """Watches from when it is made until it is closed."""

    def __init__(self, config: Config, say: Callable[[str], None]) -> None:
        self._folder, self._settings, self._say = config.folder.absolute(), config.path, say
        # It tells of each change at level info; so does this, in its own words.
        logging.getLogger("watchfiles").setLevel(logging.WARNING)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="reload", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no more."""
        self._over.set()
        self._thread.join(2)

    def _watch(self) -> None:
        try:
            self._loop()
        except OSError as e:  # such as: too many files for the system's watches
            self._say(f"cannot watch {self._folder}: {e}; changes are taken in on SIGHUP only")

    def _loop(self) -> None:
        import watchfiles

        ordinary = watchfiles.DefaultFilter()  # no .git, .venv, __pycache__ and so on

        def wanted(change: watchfiles.Change, path: str) -> bool:
            return ordinary(change, path) and (path.endswith(".py") or Path(path) == self._settings)

        self._say(f"watching {self._folder} for changes")
        for changes in watchfiles.watch(
            self._folder, watch_filter=wanted, debounce=DEBOUNCE, stop_event=self._over, raise_interrupt=False
        ):
            names = sorted({os.path.relpath(path, self._folder) for _, path in changes})
            self._say(f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''} changed; reloading")
            os.kill(os.getpid(), signal.SIGHUP)
