"""Lists in the documents that the code has too: tables, services, exit codes, statuses. Both have the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forge.cluster.services import by_hand
from forge.config.model import Config
from forge.errors import ExitCode
from forge.job import Status
from forge.storage import Storage

pytestmark = pytest.mark.impl_free

ROOT = Path(__file__).parent.parent


def first_column(page: str, heading: str) -> list[str]:
    """What stands in the first column of the first table below a heading."""
    text = (ROOT / page).read_text("utf-8").split(f"\n## {heading}\n", 1)[1]
    rows = re.search(r"\n\|[^\n]*\n\| ?-[^\n]*\n((?:\|[^\n]*\n)+)", text)
    assert rows is not None
    return [row.split("|")[1].strip() for row in rows[1].splitlines()]


def test_every_table_is_described() -> None:
    described = {name for cell in first_column("docs/storage.md", "Tables") for name in re.findall(r"`(\w+)`", cell)}
    made = [path.read_text() for path in (ROOT / "forge/storage/sql/postgres/migrations").glob("*.sql")]
    assert described == set(re.findall(r"^create (?:unlogged )?table \w+\.(\w+)", "\n".join(made), re.MULTILINE))


def test_every_service_is_described(storage: Storage) -> None:
    assert first_column("docs/operating.md", "Several pods") == [
        f"`{service.name}`" for service in by_hand(storage, Config())
    ]


def test_every_exit_code_is_described() -> None:
    assert first_column("docs/operating.md", "Exit codes") == [str(code.value) for code in ExitCode]


def test_every_status_is_named() -> None:
    (line,) = re.findall(r"^Statuses: (.*)$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", line)) == {status.value for status in Status}
