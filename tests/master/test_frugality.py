"""What a pod asks of PostgreSQL: a handful of connections whatever its size, and next to nothing while it is idle."""

from __future__ import annotations

import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from .conftest import Project, eventually

pytestmark = pytest.mark.impl_free

BEAT = "with me as ("  # how the statement of an idle pod's beat begins
# A master that takes its hands for full, and looks who else is there, sooner. In all else it is a real one.
HASTY = """
import forge.cli.master, forge.master.queues.wake_switch as wakes
wakes.SATURATED_FOR, wakes.CHANGE_EVERY, wakes.LOOK_EVERY = 0.2, 0.2, 0.5
raise SystemExit(forge.cli.master.main())
"""


def test_a_pod_holds_five_connections_with_sixty_four_workers(project_on_postgres: Project) -> None:
    project = project_on_postgres
    project.settings("heartbeat = 0.1\nstale_after = 30\n[queues.default]\nmax_workers = 64\n")
    pod = project.start()
    jobs = [project.app.job("tasks.slow", {"args": [n, 0.0], "kwargs": {}}) for n in range(2000)]
    project.app.enqueue_many(jobs)
    project.app.close()
    most = 0
    with psycopg.connect(project.url, autocommit=True) as conn:
        while len(project.events("END")) < len(jobs):
            row = conn.execute(
                "select count(*) from pg_stat_activity"
                " where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"
            ).fetchone()
            assert row is not None
            most = max(most, row[0])
    assert 1 <= most <= 5
    assert len(pod.children()) == 65


def test_an_idle_pod_asks_little_of_its_database(project_on_postgres: Project, pg_server: str) -> None:
    """Ten queues: a count of the statements between beats, whatever the machine's speed."""
    project = project_on_postgres
    name = conninfo_to_dict(project.url)["dbname"]
    with psycopg.connect(pg_server, autocommit=True) as conn:
        conn.execute(f"alter database {name} set log_statement = 'all'".encode())
        row = conn.execute("show data_directory").fetchone()
        assert row is not None
    server_log = Path(row[0]) / "log"
    project.settings("".join(f"[queues.q{n}]\n" for n in range(10)))
    project.app.close()
    before = len(server_log.read_text())
    project.start()

    def settled() -> bool:
        """Six beats in a row brought the beat, which brings the shares, and the look for due jobs, once a second each;
        and some of what the leader does, which is rarer."""
        found = [line for line in server_log.read_text()[before:].splitlines() if "LOG:  execute" in line]
        beats = [i for i, line in enumerate(found) if BEAT in line]
        return any(beats[i + 6] - beats[i] <= 3 * 6 + 12 for i in range(len(beats) - 6))

    eventually(settled)


def test_producers_need_not_notify_a_pod_that_has_its_hands_full(
    project_on_postgres: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.master.conftest.MASTER", [sys.executable, "-c", HASTY, "-c", "forge.toml"])
    project = project_on_postgres
    project.configure(1)
    project.start()
    with psycopg.connect(project.url, autocommit=True) as conn:

        def wakes() -> bool:
            row = conn.execute("select wake from forge.queue where name = 'default'").fetchone()
            assert row is not None
            return bool(row[0])

        jobs = [project.app.job("tasks.slow", {"args": [n, 0.01], "kwargs": {}}) for n in range(300)]
        project.app.enqueue_many(jobs)
        eventually(lambda: not wakes())
        eventually(lambda: len(project.events("END")) == len(jobs), within=60)
        eventually(wakes)
    project.enqueue("slow", 301, 0.0)
    eventually(lambda: len(project.events("END")) == len(jobs) + 1)
