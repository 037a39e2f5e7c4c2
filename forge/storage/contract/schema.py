"""The schema of a database as a release sees it.

Migrations are numbered and only add, so a release may find a schema that is newer than itself: in a deployment the
database is migrated first, and the pods follow one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from forge.errors import SchemaError

__all__ = ["Migration", "SchemaState"]

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
