"""All backends of a pod are stopped in the middle of its life: it goes on without them (PostgreSQL)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from .conftest import Project, eventually

pytestmark = pytest.mark.impl_free

MINE = "datname = current_database() and application_name = 'forge'"


@contextmanager
def stopped_backends(conn: psycopg.Connection[Any]) -> Iterator[list[int]]:
    """Every backend of forge's, stopped while it waited for its client: one in the middle of a statement might hold
    what the whole server needs."""
    while True:
        pids = [pid for (pid,) in conn.execute(f"select pid from pg_stat_activity where {MINE}").fetchall()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        busy = f"select count(*) from pg_stat_activity where {MINE} and state <> 'idle' and pid = any(%s)"
        if conn.execute(busy, (pids,)).fetchall() == [(0,)]:
            break
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    try:
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_pod_whose_connections_have_all_fallen_silent_goes_on_with_new_ones(project_on_postgres: Project) -> None:
    project = project_on_postgres
    pod = project.start()
    jobs: list[Any] = [project.enqueue("wait_for", f"go{n}") for n in range(4)]
    eventually(lambda: len(project.events("START")) == 4)
    (known,) = project.app.storage.pods()
    project.app.close()
    with psycopg.connect(project.url, autocommit=True) as conn, stopped_backends(conn) as pids:
        assert 1 <= len(pids) <= 5
        for n in range(4):
            (project.folder / f"go{n}").touch()
        assert [job.result(timeout=60) for job in jobs] == ["went"] * 4
        later: Any = project.enqueue("add", 2, 3)
        assert later.result(timeout=60) == 5
        eventually(lambda: pod.says("the database is back after"), within=60)
        assert pod.says("the database has not answered for")
        # The one that listens, too: it is made anew, and wakes the pod up.
        eventually(lambda: connections(conn, pids) >= 4, within=60)
        assert connections(conn, pids) <= 5
    assert not pod.says("taken for dead")
    assert [each.id for each in project.app.storage.pods()] == [known.id]
    assert len(project.events("START")) == 4
    assert pod.stop() == 0
    assert not any("error ignored" in line for line in pod.lines)


def connections(conn: psycopg.Connection[Any], but: list[int]) -> int:
    """Of the pod, on backends that answer: those of the app are closed."""
    listed = f"select count(*) from pg_stat_activity where {MINE} and not pid = any(%s)"
    row = conn.execute(listed, (but,)).fetchone()
    assert row is not None
    return int(row[0])


def test_an_outage_of_a_moment_is_told_of(project_on_postgres: Project) -> None:
    """The backends are stopped for less time than it takes to give them up."""
    project = project_on_postgres
    pod = project.start()
    project.app.close()
    with psycopg.connect(project.url, autocommit=True) as conn:
        eventually(lambda: connections(conn, []) >= 3)
        with stopped_backends(conn):
            eventually(lambda: pod.says("the database has not answered for"))
        eventually(lambda: pod.says("the database is back after"))
    job: Any = project.enqueue("add", 2, 3)
    assert job.result(timeout=60) == 5
