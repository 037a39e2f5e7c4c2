"""What may be shown of settings: URLs without passwords, and nothing whose name says that it is secret."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["HIDDEN", "looks_secret", "mask", "masked", "scrub"]

HIDDEN = "***"

_SECRET_PARAMETER = re.compile(r"(?i)([\w-]*(?:password|passwd|secret|token)[\w-]*\s*=\s*)('[^']*'|[^&\s'#]+)")
# Up to the last @, because a password pasted unescaped may hold / ? : or @ itself. Too much hidden is no harm.
_USERINFO = re.compile(r"(?s)^(\s*[\w+.-]+://[^:/?#@]*):(.*)@")
_SECRET_NAME = re.compile(
    r"(?i)pass(word|wd|phrase|$)|pwd|secret|token|credential|auth|(^|[_-])key$|apikey|cookie|salt"
)


def mask(url: str) -> str:
    """The URL or DSN with its secrets replaced by `***`: the only form in which one is shown."""
    return _SECRET_PARAMETER.sub(r"\1***", _USERINFO.sub(r"\1:***@", url))


def scrub(text: str, urls: Iterable[str]) -> str:
    """`text` without the secrets of these URLs. Drivers quote pieces of a URL they could not parse."""
    secrets: set[str] = set()
    for url in urls:
        text = text.replace(url, mask(url))
        found = [m[2].strip("'") for m in _SECRET_PARAMETER.finditer(url)]
        if m := _USERINFO.match(url):
            found.append(m[2])
        secrets.update(piece for secret in found for piece in (secret, *re.split(r"[/?#:@]", secret)) if len(piece) > 2)
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
    return mask(value) if isinstance(value, str) else value
