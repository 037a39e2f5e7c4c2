"""Where jobs live: one contract, two databases, chosen by the URL."""

from __future__ import annotations

from typing import Literal

from forge.errors import ConfigError
from forge.storage.contract import Storage

__all__ = ["Storage", "open_storage"]


def open_storage(
    url: str,
    *,
    schema: str = "forge",
    pool_size: int = 4,
    listen_url: str | None = None,
    listen: bool = True,
    timeout: float | None = None,
    patience: float | None = None,
    keep: float | None = None,
    role: Literal["work", "heart", "services"] | None = None,
) -> Storage:
    """The storage behind a URL: `postgresql://…` or `sqlite:///path`. Nothing is connected before the first verb.

    `schema` names the PostgreSQL schema forge lives in; SQLite has no such thing and ignores it. Wake-ups need a
    session of their own, which a pooler does not give: `listen_url` leads past it, and without `listen` there are none.
    `timeout` is the most seconds that one statement may take (PostgreSQL) or wait for other writers (SQLite).

    For PostgreSQL alone: `patience` is for how many seconds a server that cannot be reached is tried again; connections
    that were not used for `keep` seconds are closed; `role` is what a pod needs the storage for, which says how many it
    has.
    """
    scheme = url.partition(":")[0]
    if scheme in ("postgresql", "postgres"):
        from forge.storage.postgres import PostgresStorage

        return PostgresStorage(
            url,
            schema=schema,
            pool_size=pool_size,
            listen_url=listen_url,
            listen=listen,
            timeout=timeout,
            patience=patience,
            keep=keep,
            role=role,
        )
    if scheme == "sqlite":
        from forge.storage.sqlite import SqliteStorage

        return SqliteStorage(url, listen=listen, timeout=timeout)
    # Without a scheme it may be a DSN of another form, password and all: it is not quoted.
    found = f"starts with {scheme!r}" if "://" in url else "has no scheme"
    raise ConfigError(f"database URL {found}; use postgresql://… or sqlite:///path/to/forge.db")
