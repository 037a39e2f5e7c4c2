"""Migrations, read from their files.

Each says in its head how old a release may be to run on it: `-- oldest: 9` means that one whose own last migration is 9
does. One that is older still refuses to.
"""

from __future__ import annotations

import functools
import re
from importlib import resources

from forge.storage.contract.schema import Migration
from forge.storage.shared.statements import with_schema

__all__ = ["migrations"]

_OLDEST = re.compile(r"^-- oldest: (\d+)$", re.MULTILINE)


@functools.cache
def migrations(dialect: str, schema: str = "forge") -> tuple[Migration, ...]:
    """Every migration, in order. Their numbers are 1, 2, 3 … without a gap."""
    folder = resources.files("forge.storage").joinpath("sql", dialect, "migrations")
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
