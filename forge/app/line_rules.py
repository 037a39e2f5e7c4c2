"""The line of a job, made of its arguments: `concurrency=`, `partition_by=` and `rate_limit=`.

Knows no database. A rule is checked when it is made, which is when the task is declared.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from forge.app.signature import Signature
from forge.codec import check_name
from forge.errors import InvalidJob
from forge.job import Line

__all__ = ["LINE_OPTIONS", "LineOptions", "LineRule", "rule_for"]

MOST_AT_ONCE = 1000  # claims of one key; each has a place of its own
NAME_BYTES = 1200  # of a line, so that it fits one entry of PostgreSQL's index

_EXAMPLE = 'a limit such as "2", or "{customer_id}:2" for each customer'


class LineOptions(TypedDict, total=False):
    """What makes a job wait for others, and which."""

    concurrency: str | int | None  # "2": so many of this kind at once; "{customer_id}:2": for each customer
    partition_by: str | None  # "{tenant}": fair turns between tenants
    rate_limit: str | None  # the budget of which a token is taken before the job is claimed


LINE_OPTIONS = tuple(LineOptions.__annotations__)


class LineRule:
    """How the lines of a kind's jobs follow from their arguments."""

    def __init__(self, kind: str, said: Mapping[str, Any], signature: Signature | None) -> None:
        """`signature` is a task's; without it patterns are filled in from the keys of the payload."""
        self.kind, self.said, self.signature = kind, dict(said), signature
        self._budget = None if (budget := said.get("rate_limit")) is None else self._checked_budget(budget)
        self._partition: str | None = said.get("partition_by")
        self._key: str | None = None
        self._limit: int | None = None
        if (limit := said.get("concurrency")) is not None:
            self._key, self._limit = self._split(limit)
        named = [
            self._checked_pattern(*each) for each in (("concurrency", self._key), ("partition_by", self._partition))
        ]
        # Of every job alike; None: each has its own.
        self.static: Line | None = None if any(named) else self.line({})

    def line(self, arguments: Mapping[str, Any]) -> Line:
        """The line of a job with these arguments, by name."""
        key = self._filled("concurrency", self._key, arguments)
        line = Line.of(
            rate_limit=self._budget,
            concurrency_key=None if key is None else f"{self.kind}:{key}" if key else self.kind,
            concurrency=self._limit,
            partition=self._filled("partition_by", self._partition, arguments),
        )
        self._check_name(line)
        return line

    def of_payload(self, payload: Any) -> Line:
        """The same for a job that is given as a whole."""
        if self.static is not None:
            return self.static
        if self.signature is None:
            return self.line(payload if isinstance(payload, Mapping) else {})
        try:
            args, kwargs = tuple(payload["args"]), dict(payload["kwargs"])
        except (TypeError, KeyError, ValueError):
            raise InvalidJob(f'{self.kind}: the payload of a task is {{"args": […], "kwargs": {{…}}}}') from None
        return self.line(self.signature.arguments(args, kwargs))

    # -- checks ------------------------------------------------------------------------------------------------

    def _checked_budget(self, value: Any) -> str:
        name = check_name(value, f"{self.kind}: rate_limit")
        if "{" in name:
            raise InvalidJob(
                f"{self.kind}: rate_limit names a budget, it is no pattern; use partition_by or concurrency"
            )
        return name

    def _split(self, value: Any) -> tuple[str, int]:
        """(pattern, limit)"""
        if isinstance(value, int) and not isinstance(value, bool):
            pattern, limit = "", str(value)
        elif isinstance(value, str):
            pattern, _, limit = value.rpartition(":")
        else:
            raise InvalidJob(f"{self.kind}: concurrency must be {_EXAMPLE}, not {value!r}")
        try:
            number = int(limit)
        except ValueError:
            raise InvalidJob(f"{self.kind}: concurrency must be {_EXAMPLE}; {value!r} has no limit") from None
        if not 1 <= number <= MOST_AT_ONCE:
            raise InvalidJob(f"{self.kind}: the limit of concurrency must be 1 to {MOST_AT_ONCE}, not {number}")
        return pattern, number

    def _checked_pattern(self, option: str, pattern: Any) -> bool:
        """Whether it names arguments."""
        if pattern is None:
            return False
        if not isinstance(pattern, str) or (option == "partition_by" and not pattern):
            raise InvalidJob(f'{self.kind}: {option} must be a pattern such as "{{tenant}}", not {pattern!r}')
        try:
            fields = [field for _, field, _, _ in string.Formatter().parse(pattern) if field is not None]
        except ValueError as e:
            raise InvalidJob(f"{self.kind}: {option} {pattern!r} cannot be read: {e}") from None
        for field in fields:
            root = field.partition(".")[0].partition("[")[0]
            if not root or (self.signature is not None and root not in self.signature.names):
                known = ", ".join(self.signature.names) if self.signature else "none"
                raise InvalidJob(
                    f"{self.kind}: {option} names {{{root}}}, which is no parameter of the task (it has: {known})"
                )
        return bool(fields)

    def _filled(self, option: str, pattern: str | None, arguments: Mapping[str, Any]) -> str | None:
        if pattern is None:
            return None
        try:
            return pattern.format_map(arguments)
        except (LookupError, AttributeError, ValueError, TypeError) as e:
            why = f"there is no {e.args[0]!r}" if isinstance(e, KeyError) and e.args else e
            raise InvalidJob(f"{self.kind}: {option} {pattern!r} cannot be filled in: {why}") from None

    def _check_name(self, line: Line) -> None:
        try:
            size = len(line.name.encode())
        except UnicodeEncodeError:
            raise InvalidJob(f"{self.kind}: its line must not hold a lone surrogate") from None
        if "\0" in line.name:
            raise InvalidJob(f"{self.kind}: its line must not hold a NUL character")
        if size > NAME_BYTES:
            raise InvalidJob(
                f"{self.kind}: rate_limit, concurrency and partition_by together must have at most {NAME_BYTES} bytes, "
                f"not {size}"
            )


def rule_for(
    kind: str, said: LineRule | None, given: Mapping[str, Any], signature: Callable[[], Signature | None]
) -> LineRule | None:
    """An enqueue's options over those of its handler; None if there are none. None for a value: not said."""
    more = {name: value for name in LINE_OPTIONS if (value := given.get(name)) is not None}
    if not more:
        return said
    return LineRule(kind, {**(said.said if said is not None else {}), **more}, signature())
