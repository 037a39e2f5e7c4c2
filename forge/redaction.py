"""What is shown of payloads, results, errors and log lines: the values of secret fields are replaced by `***`.

Which fields are secret the setting `redact` says, by patterns of their names: `password`, `*_token`. They are globs,
mean the whole name, and take no notice of case, or of whether words are joined by `-` or `_`. In values a field counts
at any depth, with all that is in it. In text (of errors, of lines of a log) it counts where it is written as
`name=value`, `name: value` or `"name": "value"`: that is found by its looks and can be missed, so secrets had better
not get there.

Only what is shown changes. What is stored, and what handlers and `handle.result()` are given, stays whole.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from forge.config.masking import HIDDEN
from forge.job import Job

__all__ = ["HIDDEN", "redact", "redact_job", "redact_text", "restore"]

_Secret = Callable[[str], object]  # whether a field of this name is

# A name, and what joins it to its value. The name is taken whole at once, so a long word costs no more than its length.
_NAMED = re.compile(r"""(?<![\w-])(?P<name>[\w-]++)\\*+["']?[ \t]{0,8}(?:=>|[=:](?!=))[ \t]{0,8}""")
# A value, where one begins. Text that was cut may end before the quote does.
_QUOTED = re.compile(r"""(?s)[bBuUrR]{0,2}(?P<quote>\\*+["'])(?:(?!(?P=quote))(?:\\.|.))*+(?P=quote)?""")
_BARE = re.compile(r"(?i)(?:(?:bearer|basic|digest|token|negotiate)[ \t]+)?[^\s,;&\"'<>()\[\]{}]++")
_JOINT = re.compile(r"\[[^\]]*\]|-")  # not in [a-z]
_BRACKET = re.compile(r"[\[({]|([\])}])")


def redact(value: Any, patterns: Sequence[str]) -> Any:
    """A copy of a JSON value as it may be shown; the value itself if there is nothing to hide."""
    return _redacted(value, _secret(tuple(patterns))) if patterns else value


def redact_text(text: str, patterns: Sequence[str]) -> str:
    """Text as it may be shown, as far as secrets in it look like ones."""
    if not patterns:
        return text
    secret, parts, at = _secret(tuple(patterns)), [], 0
    for named in _NAMED.finditer(text):
        if named.start() < at or not secret(named["name"]):
            continue
        end = _end_of_value(text, named.end())
        if end > named.end():
            parts += [text[at : named.end()], HIDDEN]
            at = end
    return "".join([*parts, text[at:]]) if parts else text


def redact_job(job: Job, patterns: Sequence[str]) -> Job:
    """A job as it may be shown: its payload, result, errors and progress."""
    if not patterns:
        return job
    return dataclasses.replace(
        job,
        payload=redact(job.payload, patterns),
        result=redact(job.result, patterns),
        errors=tuple(_texts_redacted(error, patterns) for error in job.errors),
        progress=None if job.progress is None else _texts_redacted(job.progress, patterns),
    )


def restore(edited: Any, stored: Any, patterns: Sequence[str]) -> Any:
    """What somebody made of a value that was shown to them, with what they could not see as it is stored: a secret
    field that still says `***` has not been edited."""
    return _restored(edited, stored, _secret(tuple(patterns))) if patterns else edited


@lru_cache(maxsize=64)
def _secret(patterns: tuple[str, ...]) -> _Secret:
    one = "|".join(fnmatch.translate(_JOINT.sub(_same_joint, pattern)) for pattern in patterns)
    matches = re.compile(one, re.IGNORECASE).match
    return lru_cache(maxsize=4096)(lambda name: matches(name.replace("-", "_")) is not None)


def _same_joint(found: re.Match[str]) -> str:
    return "_" if found[0] == "-" else found[0]


def _redacted(value: Any, secret: _Secret) -> Any:
    if isinstance(value, Mapping):
        return {k: HIDDEN if isinstance(k, str) and secret(k) else _redacted(v, secret) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redacted(item, secret) for item in value]
    return value


def _restored(edited: Any, stored: Any, secret: _Secret) -> Any:
    if isinstance(edited, Mapping) and isinstance(stored, Mapping):
        return {
            name: stored[name]
            if name in stored and value == HIDDEN and secret(name)
            else _restored(value, stored.get(name), secret)
            for name, value in edited.items()
        }
    if isinstance(edited, list) and isinstance(stored, list):
        rest = [None] * (len(edited) - len(stored))
        return [_restored(value, old, secret) for value, old in zip(edited, [*stored, *rest], strict=False)]
    return edited


def _texts_redacted(fields: Mapping[str, Any], patterns: Sequence[str]) -> dict[str, Any]:
    return {name: redact_text(value, patterns) if isinstance(value, str) else value for name, value in fields.items()}


def _end_of_value(text: str, begin: int) -> int:
    """Where the value that begins here ends: a quoted text, a list or object, or a word."""
    if quoted := _QUOTED.match(text, begin):
        return quoted.end()
    if text[begin : begin + 1] in ("[", "{", "("):
        depth = 0
        for bracket in _BRACKET.finditer(text, begin):
            depth += -1 if bracket[1] else 1
            if not depth:
                return bracket.end()
        return len(text)
    bare = _BARE.match(text, begin)
    return bare.end() if bare else begin
