"""Several real masters on one PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.master.conftest import Pod, Project, eventually, making

LEADS = re.compile(r"this pod leads \(term (\d+)\)")


@pytest.fixture
def project(tmp_path: Path, pg_url: str) -> Iterator[Project]:
    """A project whose pods find out soon what becomes of each other."""
    for made in making(tmp_path, pg_url):
        made.settings("heartbeat = 0.1\nstale_after = 2.5\nleader_ttl = 2.0\n[queues.default]\nmax_workers = 6\n")
        yield made


def term_of(pod: Pod) -> int:
    """The last term in which it came to lead, by its log; 0 if never."""
    found = [int(words[1]) for line in pod.lines if (words := LEADS.search(line))]
    return found[-1] if found else 0


def leader(pods: list[Pod]) -> Pod:
    """The one that leads, once one does."""
    eventually(lambda: any(term_of(pod) for pod in pods))
    return max(pods, key=term_of)
