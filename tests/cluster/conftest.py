"""Several real masters on one PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.master.conftest import Project, making


@pytest.fixture
def project(tmp_path: Path, pg_url: str) -> Iterator[Project]:
    """A project whose pods find out soon what happens to the others."""
    for made in making(tmp_path, pg_url):
        made.settings("heartbeat = 0.2\nstale_after = 2.0\n[queues.default]\nmax_workers = 10\n")
        yield made
