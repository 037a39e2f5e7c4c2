"""What the commands share: their settings, the storage they work on, and how they print.

`forge.cli.command` says how a command is declared.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeVar
from uuid import UUID

import orjson

from forge import config as settings
from forge.config import sqlite_file
from forge.errors import JobNotFound, SchemaError, UsageError
from forge.job import Job, JobFilter, Line
from forge.logs import counted, escaped
from forge.storage import Storage, open_storage

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

__all__ = [
    "Cli",
    "counted",
    "draw",
    "duration",
    "find_job",
    "for_terminal",
    "line",
    "progress",
    "sqlite_file",
    "table",
    "until",
]


class Closes(Protocol):
    """Anything that holds connections."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closes)
UNLIMITED = 1_000_000  # columns: rich would leave out what does not fit, and a terminal wraps it


class Cli:
    """One run of a command: the settings it was given, and what it opens on the way, closed at the end."""

    def __init__(self) -> None:
        self.database: str | None = None
        self.file: str | None = None
        self.schema: str | None = None
        self.output = "text"
        self._open = ExitStack()
        self._storage: Storage | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def closing(self, thing: T) -> T:
        """`thing`, to be closed when the command ends."""
        self._open.callback(thing.close)
        return thing

    @property
    def flags(self) -> dict[str, str | None]:
        """The flags that choose settings, as the variables that say the same to a `Forge()` in a task module."""
        path = str(Path(self.file).absolute()) if self.file else None
        return {"FORGE_CONFIG": path, "FORGE_DATABASE_URL": self.database, "FORGE_SCHEMA": self.schema}

    @cached_property
    def config(self) -> settings.Config:
        """The settings in force."""
        return settings.load(Path(self.file) if self.file else None, self.database, schema=self.schema)

    @property
    def shown_url(self) -> str:
        """The database as it may be shown: no secrets, and a file below the current directory by its short name."""
        return settings.shown_url(self.config.database)

    def raw_storage(self) -> Storage:
        """The storage, with whatever schema it has."""
        # A person would rather be told at once that the server is not there.
        return self._open.enter_context(open_storage(self.config.database, schema=self.config.schema, patience=0.0))

    def storage(self, *, create: bool = False) -> Storage:
        """The storage, its schema checked. `create`: a SQLite database that is not there yet is made, as a newcomer
        expects; a PostgreSQL database is never changed without `forge db migrate`."""
        if self._storage is not None:
            return self._storage
        if not create:
            self.require_file()
        opened = self.raw_storage()
        if create and sqlite_file(self.config.database) and opened.schema_state().current == 0:
            opened.migrate()
        opened.check_schema()
        self._storage = opened
        return opened

    def require_file(self) -> None:
        """Refuse a SQLite file that is not there: merely opening it would make one."""
        file = sqlite_file(self.config.database)
        if file is not None and not file.exists():
            raise SchemaError(f"there is no database {self.shown_url} yet; run: forge db migrate")

    @property
    def json(self) -> bool:
        """Whether a program reads the output."""
        return self.output == "json"

    def print(self, text: object = "") -> None:
        """One line for a person, or several."""
        sys.stdout.write(f"{for_terminal(str(text))}\n")

    def document(self, value: object) -> None:
        """The one JSON document of a command. Times are ISO 8601 in UTC."""
        options = orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
        sys.stdout.write(orjson.dumps(value, default=_plain, option=options).decode())

    def answer(self, document: object, text: str) -> None:
        """What a command did: a document for a program, a line or several for a person."""
        if self.json:
            self.document(document)
        else:
            self.print(text)

    def listing(self, document: object, head: Sequence[str], rows: Iterable[Sequence[object]], none: str = "") -> None:
        """What a command found, in the same two ways; `none` stands for an empty table."""
        found = [] if self.json else list(rows)
        if self.json or (none and not found):
            self.answer(document, none)
        else:
            draw(table(head, found))

    def note(self, text: str) -> None:
        """A remark beside the output proper, so that the output can be piped."""
        sys.stderr.write(f"{for_terminal(text)}\n")


def for_terminal(text: str) -> str:
    """Lines that do nothing but appear there, whatever a job has put into them."""
    return "\n".join(map(escaped, text.split("\n")))


def _plain(value: object) -> object:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Line):
        return value._asdict()
    return str(value)


def draw(*parts: RenderableType) -> None:
    """Print what rich draws, such as a table: in colour on a terminal, plain elsewhere, and as wide as it must be."""
    from rich.console import Console

    console = Console(width=UNLIMITED)
    with console.capture() as drawn:
        for part in parts:
            console.print(part, soft_wrap=True)
    sys.stdout.write("".join(f"{text.rstrip()}\n" for text in drawn.get().splitlines()))


@contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """Takes how far it is, to be shown beside `what` on a terminal until it is done. Nothing is shown elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(what) as status:
        yield lambda far: status.update(f"{what}: {far}")


def line(text: str, *, word: str = "") -> Text:
    """A line for `draw` that does nothing but appear; `word` at its beginning in the word's colour."""
    from rich.text import Text

    return Text().append(word, STYLES.get(word)).append(escaped(text))


# What stands out on a terminal: a cell that begins with such a word, and a number other than 0 below one.
STYLES = {
    "dead": "red", "error": "red", "failed": "yellow", "paused": "yellow", "warn": "yellow", "disabled": "yellow",
    "done": "green", "ok": "green", "in_progress": "cyan", "running": "cyan", "cancelled": "dim",
}  # fmt: skip


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Columns as wide as they must be, numbers to the right."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    cells = [[escaped(str(cell)) for cell in row] for row in rows]
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=None)
    numeric = [bool(cells) and all(re.fullmatch(r"-|[\d.,]+( s)?", row[i]) for row in cells) for i in range(len(head))]
    for i, name in enumerate(head):
        widest = max(cell_len(row[i]) for row in [head, *cells])
        justify: Literal["right", "left"] = "right" if numeric[i] else "left"
        made.add_column(Text().append(name, "bold"), justify=justify, no_wrap=True, min_width=widest)
    for row in cells:
        words = (head[i] if numeric[i] and cell.strip("0-") else cell.partition(",")[0] for i, cell in enumerate(row))
        # The style is the text's alone, not that of the spaces around it: those at a line's end go.
        made.add_row(*(Text().append(cell, STYLES.get(word)) for cell, word in zip(row, words, strict=True)))
    return made


def duration(seconds: float) -> str:
    """A span in the unit a person would use: `0.02 s`, `4 s`, `3 min`, `2 h`, `5 d`."""
    if seconds < 0.995:
        return f"{max(seconds, 0):.2f} s"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def until(moment: datetime, now: float) -> str:
    """`in 4 s`, or `now` for what is past."""
    left = moment.astimezone(UTC).timestamp() - now
    return f"in {duration(left)}" if left > 0 else "now"


SHORTEST_PREFIX = 8


def find_job(storage: Storage, text: str) -> Job:
    """The job of an id, or of the first digits of one (at least 8) that fit only one job."""
    digits = text.lower().replace("-", "")
    if not re.fullmatch(r"[0-9a-f]+", digits) or len(digits) > 32:
        raise UsageError(f"{text} is not a job id; ids look like 0198c0de-0000-7000-8000-000000000001")
    if len(digits) == 32:
        wanted = UUID(digits)
        if found := storage.get([wanted]).get(wanted):
            return found
        raise JobNotFound(f"no job {wanted}   (forge jobs lists them)")
    if len(digits) < SHORTEST_PREFIX:
        raise UsageError(f"{text} is too short for a job id; give at least {SHORTEST_PREFIX} digits")
    first, last = (UUID(digits.ljust(32, fill)) for fill in "0f")
    # Ids are listed newest first from a cursor down; the cursor is the id to stay below.
    page = storage.find(JobFilter(), limit=3, cursor=str(UUID(int=min(last.int + 1, 2**128 - 1))))
    fits = [job for job in page.jobs if first <= job.id <= last]
    if not fits:
        raise JobNotFound(f"no job whose id starts with {text}   (forge jobs lists them)")
    if len(fits) > 1:
        raise UsageError(
            f"several jobs start with {text}: {', '.join(str(job.id) for job in fits)} …; give more digits"
        )
    return fits[0]
