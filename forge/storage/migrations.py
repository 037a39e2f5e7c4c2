"""Migrations: what each one is, and whether a release may work on the schema that they have made.

They are numbered and only add, so a release may find a schema that is newer than itself: in a deployment the database
is migrated first, and the pods follow one by one. Each migration says in its head how far back that holds:
`-- oldest: 9` means that a release whose own last migration is 9 runs on it. One that is older still refuses to.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple, Self

from forge.errors import SchemaError
from forge.storage.statements import with_schema

__all__ = ["Migration", "SchemaState", "migrations"]

_OLDEST = re.compile(r"^-- oldest: (\d+)$", re.MULTILINE)
_logger = logging.getLogger("forge.storage")


class Migration(NamedTuple):
    """One step of the schema."""

    number: int
    title: str
    sql: str
    oldest: int  # the last migration of the oldest release that runs on it


@dataclass(frozen=True, slots=True)
class SchemaState:
    """What `forge db status` shows."""

    current: int  # 0: nothing there
    latest: int  # what this release needs
    pending: tuple[tuple[int, str], ...]  # (number, title) not yet applied
    oldest: int = 0  # what a release must have at least to run on it, if it is newer than this one

    @classmethod
    def of(cls, known: Sequence[Migration], current: int, oldest: int = 0) -> Self:
        """Where a database stands, to a release that has these migrations."""
        pending = tuple((each.number, each.title) for each in known if each.number > current)
        return cls(current, known[-1].number, pending, oldest)

    @property
    def newer(self) -> str | None:
        """What to say of a schema that is newer than this release and that it may work on; None of any other."""
        if not self.latest < self.current or self.oldest > self.latest:
            return None
        return (
            f"the schema is at {self.current}, newer than this release, which knows {self.latest} and may run on it; "
            "upgrade forge-jobs on this host soon"
        )

    def check(self, missing: str) -> None:
        """`SchemaError` unless this release can work on it; a warning in the log if it is newer. `missing` is what to
        say if there is nothing."""
        if self.current == 0:
            raise SchemaError(f"{missing} yet; run: forge db migrate")
        if self.current < self.latest:
            raise SchemaError(
                f"the schema is at {self.current}, this release needs {self.latest}; run: forge db migrate"
            )
        if self.newer is not None:
            _logger.warning(self.newer)
        elif self.current > self.latest:
            raise SchemaError(
                f"the schema is at {self.current} and needs a release that knows {self.oldest}, this one knows "
                f"{self.latest}; upgrade forge-jobs on this host"
            )


@functools.cache
def migrations(dialect: str, schema: str = "forge") -> tuple[Migration, ...]:
    """Every migration, in order. Their numbers are 1, 2, 3 … without a gap."""
    folder = resources.files(__package__).joinpath("sql", dialect, "migrations")
    found = []
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".sql"):
            number, _, title = entry.name.removesuffix(".sql").partition("_")
            text = entry.read_text("utf-8")
            said = _OLDEST.search(text)
            oldest = int(said[1] if said else number)
            found.append(Migration(int(number), title.replace("_", " "), with_schema(text, schema), oldest))
    assert [each.number for each in found] == list(range(1, len(found) + 1)), (
        f"{dialect}: migrations are not numbered 1, 2, 3 …"
    )
    return tuple(found)
