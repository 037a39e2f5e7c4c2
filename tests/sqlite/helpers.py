"""Sample jobs and child processes."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from forge import fastpath
from forge.job import NewJob


def some_jobs(n: int, **changes: Any) -> list[NewJob]:
    """Jobs that are alike."""
    return [NewJob(id_, "noop", b'{"n":1}')._replace(**changes) for id_ in fastpath.uuid7_many(n)]


def ids(jobs: Sequence[Any]) -> list[UUID]:
    """Their ids, in order."""
    return [job.id for job in jobs]


def start_child(work: Callable[[], object]) -> int:
    """Fork and do `work` in the child, which never returns from here; its process number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except Exception:  # noqa: BLE001  # whatever it is, the parent's test must not go on in the child
        traceback.print_exc()
    finally:
        os._exit(code)


def in_child(work: Callable[[], object]) -> int:
    """Do `work` in a child and answer its wait status: 0 when it returned."""
    return os.waitpid(start_child(work), 0)[1]


def elsewhere(path: Path, code: str) -> str:
    """Run Python in a process of its own, where `conn` is an apsw connection to the file; its output."""
    head = f"import apsw, sys\nconn = apsw.Connection({str(path)!r})\nconn.set_busy_timeout(10_000)\n"
    return subprocess.run(
        [sys.executable, "-c", head + code], check=True, capture_output=True, text=True
    ).stdout.strip()
