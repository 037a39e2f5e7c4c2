"""Orphans of processes that the master never knew, as they come to process 1 of a container: it collects them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from . import conftest
from .conftest import Project, alive, eventually

pytestmark = [pytest.mark.impl_free, pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own means")]

# Beside the master, as `docker exec` would be: no descendant of the zygote, whose orphans that one collects.
BESIDE = """
(
    while [ ! -e go ]; do sleep 0.05; done
    for n in 1 2 3 4 5 6 7 8 9 10; do sh -c 'sleep 0.1 & echo ORPHAN $! >> "$LEDGER"'; done
    echo ENDED $(exec sh -c 'echo $PPID') >> "$LEDGER"
) &
exec "$@"
"""

DAEMONS = """

@app.task
def daemon() -> None:
    import subprocess
    subprocess.run(["sh", "-c", "setsid sleep 0.1 & echo ORPHAN $! >> $LEDGER"])
"""


def gone(pid: str) -> bool:
    """It is not even a zombie."""
    return not Path(f"/proc/{pid}").exists()


def test_a_master_collects_what_it_did_not_start(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "MASTER", ["sh", "-c", BESIDE, "sh", *conftest.MASTER])
    pod = project.start()
    (project.folder / "go").touch()
    eventually(lambda: len(project.events("ORPHAN")) == 10 and len(project.events("ENDED")) == 1)
    strangers = [words[1] for words in (*project.events("ORPHAN"), *project.events("ENDED"))]
    eventually(lambda: all(map(gone, strangers)))
    assert alive(pod.process.pid)
    assert project.enqueue("add", 2, 3).result(timeout=30) == 5  # type: ignore[attr-defined]
    assert pod.stop() == 0


def test_what_handlers_detach_leaves_no_zombie(project: Project) -> None:
    (project.folder / "tasks.py").write_text(conftest.TASKS + DAEMONS)
    pod = project.start()
    jobs = [project.enqueue("daemon") for _ in range(10)]
    assert [job.result(timeout=30) for job in jobs] == [None] * 10  # type: ignore[attr-defined]
    orphans = [words[1] for words in project.events("ORPHAN")]
    assert len(orphans) == 10
    eventually(lambda: all(map(gone, orphans)))
    assert pod.stop() == 0
