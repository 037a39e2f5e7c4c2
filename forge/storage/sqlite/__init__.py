"""The storage contract on SQLite. A file for each subject, named as in `forge.storage.postgres` and among the SQL."""

from __future__ import annotations

from forge.storage.sqlite.storage import SqliteStorage

__all__ = ["SqliteStorage"]
