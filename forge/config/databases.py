"""Which database a URL means, as far as that can be told from it: two may be one behind different names of a host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from forge.config.masking import mask, split_url

__all__ = ["same_database", "shown_url", "sqlite_file"]

_HERE = ("", "localhost", "127.0.0.1", "::1", "[::1]")


def sqlite_file(url: str) -> Path | None:
    """The file of a `sqlite:///path` URL; None for another kind of database, or one without a file."""
    path, _, _ = url.removeprefix("sqlite:///").partition("?")
    return Path(path) if url.startswith("sqlite:///") and path != ":memory:" else None


def shown_url(url: str) -> str:
    """The database as it may be shown: no secrets, and a file below the current directory by its short name."""
    url = mask(url)
    file = sqlite_file(url)
    with suppress(OSError, ValueError):  # there is no current directory any more; it is elsewhere
        if file is not None and file.is_absolute():
            return f"sqlite:///{file.relative_to(Path.cwd())}"
    return url


def same_database(one: str, other: str, env: Mapping[str, str] = os.environ) -> bool:
    """Whether two URLs name one database. Who connects, and how, does not matter."""
    return one == other or _identity(one, env) == _identity(other, env)


def _identity(url: str, env: Mapping[str, str]) -> object:
    file = sqlite_file(url)
    if file is not None:
        return os.path.realpath(file)
    parts = split_url(url)
    if parts is None:
        return url
    query = dict(parse_qsl(parts["query"] or ""))
    pairs = [place.rpartition(":") if _has_port(place) else (place, "", "") for place in parts["hosts"].split(",")]
    hosts = ",".join(unquote(host) for host, _, _ in pairs).strip(",") or query.get("host") or env.get("PGHOST", "")
    ports = ",".join(port for _, _, port in pairs).strip(",") or query.get("port") or env.get("PGPORT") or "5432"
    user = unquote(parts["user"] or "") or query.get("user") or env.get("PGUSER", "")
    name = unquote(parts["name"] or "") or query.get("dbname") or env.get("PGDATABASE") or user
    where = ["" if host in _HERE else host for host in hosts.split(",")]
    return query.get("service"), query.get("hostaddr"), where, ports, name


def _has_port(place: str) -> bool:
    """An address of IPv6 has colons of its own, in brackets."""
    return ":" in place.rpartition("]")[2]
