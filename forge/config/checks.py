"""Checks of single values. Each answers what the value must be, in words that follow "must be", or None if it is."""

from __future__ import annotations

import difflib
import math
import re
import string
import zoneinfo
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from forge.job import BAD_IN_NAME, MAX_NAME

__all__ = [
    "argv",
    "json_value",
    "name",
    "parameters",
    "patterns",
    "schedule",
    "seconds_last",
    "suggest",
    "template",
    "timezone",
    "token_hash",
]

# What cron has for the commonest schedules.
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_RANGE_OF_ONE = re.compile(r"(?<![\w#/-])(\w+)-\1(?:/\d+)?(?![\w/-])", re.IGNORECASE)
_FOREIGN = re.compile(r"(?<![a-z])[hrw](?![a-z])", re.IGNORECASE)


def suggest(wrong: str, valid: Iterable[str], show: int = 40) -> str:
    """`; did you mean x?`, else what there is if it is not more than `show` names: the tail of an error."""
    names = sorted(valid)
    if near := difflib.get_close_matches(wrong, names, n=1):
        return f"; did you mean {near[0]}?"
    return f"; there are {', '.join(names)}" if 0 < len(names) <= show else ""


def name(value: str) -> str | None:
    """Of a queue, kind, pool, command, schedule or limit."""
    if 0 < len(value) <= MAX_NAME and not BAD_IN_NAME.search(value):
        return None
    return f"1 to {MAX_NAME} characters without comma or control character"


def names(values: Sequence[str]) -> str | None:
    """Names of modules, none of them empty."""
    return None if all(values) else 'a list of module names, such as ["tasks"]'


def patterns(values: Sequence[str]) -> str | None:
    """Globs of the names of fields."""
    fits = all(0 < len(value) <= MAX_NAME and "\0" not in value for value in values)
    return None if fits else f'a list of patterns of up to {MAX_NAME} characters, such as ["password", "*token"]'


def argv(value: Sequence[str]) -> str | None:
    """A program and its arguments."""
    if not value or not value[0]:
        return 'a program and its arguments, such as ["node", "render.js"]'
    return "text without NUL characters" if any("\0" in word for word in value) else None


def template(value: Sequence[str]) -> str | None:
    """The same with {fields} of the payload in the arguments. Which program runs is the operator's to say, so there
    are none in the first word."""
    if wanted := argv(value):
        return wanted
    try:
        fields = [parameters([word]) for word in value]
    except ValueError as e:
        return f"arguments with fields such as {{width}} and {{{{ }}}} for braces ({e})"
    return "a program without {fields} in its name" if fields[0] else None


def parameters(words: Sequence[str]) -> tuple[str, ...]:
    """The names of the {fields} in a template, each once, in order; ValueError if they cannot be read."""
    found: dict[str, None] = {}
    for word in words:
        for _, field, layout, conversion in string.Formatter().parse(word):
            if field is None:
                continue
            if not field.isidentifier() or layout or conversion:
                raise ValueError(f"{{{field}}} is not a plain name")
            found[field] = None
    return tuple(found)


def seconds_last(expression: str) -> str:
    """A schedule of 6 fields, seconds first, as croniter wants it: they are last there, and 3-3 would mean any."""
    plain = _RANGE_OF_ONE.sub(r"\1", NICKNAMES.get(expression.strip().lower(), expression))
    first, *others = plain.split()
    return " ".join([*others, first] if len(others) == 5 else [first, *others])


def schedule(value: str) -> str | None:
    """A cron expression that has a next time."""
    if value.strip().startswith("@"):
        known = value.strip().lower() in NICKNAMES
        return None if known else f"5 or 6 cron fields, or one of {', '.join(NICKNAMES)}"
    if len(value.split()) not in (5, 6):
        return '5 cron fields, or 6 with seconds first, such as "0 3 * * *"'
    if foreign := _FOREIGN.search(value):
        # croniter reads 15W as 15, and R as another number at each start.
        return f"a cron expression without {foreign[0].upper()}, which forge does not know"
    import croniter  # a user without schedules need not wait for it

    try:
        croniter.croniter(seconds_last(value), datetime.now(UTC)).get_next()
    except croniter.CroniterBadDateError:
        return "a schedule that ever comes"
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as e:
        return f"a cron expression ({' '.join(str(e).split())})"
    return None


def timezone(value: str) -> str | None:
    """A name of the time zone database."""
    if value == "UTC":  # also where the database is missing
        return None
    try:
        zoneinfo.ZoneInfo(value)
    except (OSError, ValueError, KeyError):  # a folder of the database is an OSError
        known = zoneinfo.available_timezones()
        if not known:
            return "UTC, as this system has no time zone database (pip install tzdata brings one)"
        near = difflib.get_close_matches(value, known, n=1) or ["Europe/Berlin"]
        return f'the name of a time zone, such as "{near[0]}"'
    return None


def json_value(value: Any) -> str | None:
    """What JSON can hold: no dates, no NaN."""
    if isinstance(value, Mapping):
        return next(filter(None, map(json_value, value.values())), None)
    if isinstance(value, (list, tuple)):
        return next(filter(None, map(json_value, value)), None)
    if isinstance(value, float):
        return None if math.isfinite(value) else "made of finite numbers"
    return None if isinstance(value, (str, int)) else "made of what JSON has: write dates and times as text"


def token_hash(value: str) -> str | None:
    """The hash of a token, `sha256:…`."""
    fits = re.fullmatch(r"sha256:[0-9a-fA-F]{64}", value)
    return None if fits else '"sha256:" and the 64 hexadecimal digits of the token\'s SHA-256'
