"""What may be shown of settings: URLs without passwords, and nothing whose name says that it is secret.

Of a URL only what is understood is shown. One that is not well-formed may have its password anywhere: nothing of it is
shown but what cannot be part of that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

__all__ = ["DATABASES", "HIDDEN", "looks_secret", "mask", "masked", "scrub", "split_url", "well_formed"]

HIDDEN = "***"
DATABASES = ("database", "listen_database")  # settings that hold a URL, or were to

_SECRET_NAME = re.compile(
    r"(?i)pass(word|wd|phrase|$)|pwd|secret|token|credential|auth|(^|[_-])key$|apikey|cookie|salt"
)
_POSTGRES = ("postgresql", "postgres")
# Parameters of a connection whose values say nothing secret. One that is not known may be a misspelt password.
# fmt: off
_KNOWN = frozenset((
    "application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname", "driver",
    "gssencmode", "host", "hostaddr", "keepalives", "keepalives_count", "keepalives_idle",
    "keepalives_interval", "krbsrvname", "load_balance_hosts", "options", "passfile", "port", "require_auth",
    "service", "sslcert", "sslcompression", "sslcrl", "sslkey", "ssl_max_protocol_version",
    "ssl_min_protocol_version", "sslmode", "sslnegotiation", "sslrootcert", "target_session_attrs",
    "tcp_user_timeout", "user",
))
# fmt: on
_HOST = r"(?:\[[0-9a-fA-F:.%]*\]|[^\[\]:/?#@,\s]*)(?::\d*)?"
_TAIL = rf"(?P<hosts>{_HOST}(?:,{_HOST})*)(?:/(?P<name>[^?#@\s]*))?(?:\?(?P<query>[^@\s]*))?"
# As libpq reads it: the first @ ends the password. One that holds a @ or / unescaped is not well-formed.
_URL = re.compile(rf"(?P<scheme>[A-Za-z][\w+.-]*)://(?:(?P<user>[^@/:]*)(?::(?P<password>[^@/]*))?@)?{_TAIL}")
# Up to the last @, for a password pasted as it is.
_PASTED = re.compile(rf"(?s)\s*(?P<scheme>[A-Za-z][\w+.-]*)://(?P<user>[\w.+-]*):(?P<password>.*)@{_TAIL}")
_PAIR = re.compile(r"\s*(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|(?!')(?:[^\s\\]|\\.)*)(?=\s|$)")
# Text of any kind that may be, or hold, a URL or DSN with a secret.
_SUSPICIOUS = re.compile(r"(?is):.*@|(?:password|passwd|secret|token)[\w-]*\s*=|^\s*postgres(?:ql)?:")


_SEPARATOR = re.compile(r"[\s/?#:@=&'\"]+")


class _Parts(NamedTuple):
    """A URL, taken apart."""

    shown: str
    secrets: tuple[str, ...]


def mask(url: str) -> str:
    """The URL or DSN of a database with its secrets replaced by `***`: the only form in which one is shown."""
    if url.startswith("sqlite:///"):
        path, mark, query = url.partition("?")
        return f"{path}{mark}{_parameters(query, _KNOWN)[0]}"
    found = _parts(_URL.fullmatch(url)) or _parts(_PASTED.fullmatch(url))
    if found is not None:
        return found.shown
    if (pairs := _pairs(url)) is not None:
        return " ".join(f"{name}={value if name in _KNOWN else HIDDEN}" for name, value in pairs)
    scheme = re.match(r"[A-Za-z][\w+.-]*://", url)
    return f"{scheme[0] if scheme else ''}{HIDDEN}"


def well_formed(url: str) -> bool:
    """Whether a PostgreSQL URL means what it seems to: no part of its password is taken for something else."""
    match = _URL.fullmatch(url)
    return match is not None and match["scheme"] in _POSTGRES and _parts(match) is not None


def split_url(url: str) -> re.Match[str] | None:
    """A well-formed PostgreSQL URL in parts: `user`, `hosts`, `name` and `query`, each as it is written, or None."""
    return _URL.fullmatch(url) if well_formed(url) else None


def scrub(text: str, urls: Iterable[str]) -> str:
    """`text` without the secrets of these URLs; what else is among them is passed over."""
    secrets: set[str] = set()
    for url in filter(_SUSPICIOUS.search, urls):
        shown = mask(url)
        text = text.replace(url, shown)
        found = _parts(_URL.fullmatch(url))
        # Drivers quote pieces of a URL they could not parse.
        pieces = [p for whole in (found.secrets if found else [url]) for p in (whole, *_SEPARATOR.split(whole))]
        secrets.update(piece for piece in pieces if len(piece) > 2 and (found is not None or piece not in shown))
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def looks_secret(name: str) -> bool:
    """Whether a value of this name had better not be shown."""
    return _SECRET_NAME.search(name) is not None


def masked(value: Any) -> Any:
    """A value of plain dicts, lists and scalars as it may be shown."""
    if isinstance(value, Mapping):
        return {k: HIDDEN if looks_secret(k) and not isinstance(v, Mapping) else masked(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(item) for item in value]
    return mask(value) if isinstance(value, str) and _SUSPICIOUS.search(value) else value


def _parts(match: re.Match[str] | None) -> _Parts | None:
    """None: it is not understood, after all."""
    if match is None:
        return None
    scheme, user, password = match["scheme"], match["user"], match["password"]
    postgres = scheme in _POSTGRES
    query, secrets = _parameters(match["query"] or "", _KNOWN if postgres else None)
    if postgres and not all(pair.partition("=")[1] for pair in (match["query"] or "").split("&") if pair):
        return None  # a ? of the password, perhaps
    if "%3a" in (user or "").lower():
        return None  # the password is part of the user's name
    shown = f"{scheme}://"
    if user is not None:
        shown += f"{user}{'' if password is None else f':{HIDDEN}'}@"
    shown += match["hosts"]
    shown += "" if match["name"] is None else f"/{match['name']}"
    shown += "" if match["query"] is None else f"?{query}"
    plain = [*secrets, *([password] if password else [])]
    return _Parts(shown, tuple(dict.fromkeys([*plain, *map(unquote, plain)])))


def _parameters(query: str, known: frozenset[str] | None) -> tuple[str, list[str]]:
    """The query as it may be shown, and what is not. `known` are names that may be; None: those that look harmless.
    Behind a secret, which may have a & in it, what is not known may be the rest of it."""
    shown, secrets = list[str](), list[str]()
    for pair in query.split("&"):
        name, mark, value = pair.partition("=")
        if secrets and unquote(name) not in _KNOWN:
            shown.append(HIDDEN)
            secrets.append(pair)
            continue
        harmless = unquote(name) in known if known is not None else not looks_secret(unquote(name))
        if not mark or harmless:
            shown.append(pair)
        else:
            shown.append(f"{name}={HIDDEN}")
            secrets.append(value)
    return "&".join(shown), secrets


def _pairs(dsn: str) -> list[tuple[str, str]] | None:
    """The pairs of `host=h password='x y'`; None if it is something else."""
    pairs, at = [], 0
    dsn = dsn.rstrip()
    while at < len(dsn):
        pair = _PAIR.match(dsn, at)
        if pair is None:
            return None
        pairs.append((pair[1], pair[2]))
        at = pair.end()
    return pairs or None
