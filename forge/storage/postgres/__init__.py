"""The storage contract on PostgreSQL. A file for each subject, named as in `forge.storage.sqlite` and among the SQL."""

from __future__ import annotations

from forge.storage.postgres.storage import PostgresStorage

__all__ = ["PostgresStorage"]
