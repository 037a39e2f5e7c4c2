"""What a pod asks of PostgreSQL: a handful of connections whatever its size, and next to nothing while it is idle."""

from __future__ import annotations

import psycopg
from psycopg.conninfo import conninfo_to_dict

from .conftest import Project, eventually


def test_a_pod_holds_five_connections_with_sixty_four_workers(project_on_postgres: Project) -> None:
    project = project_on_postgres
    project.settings("heartbeat = 0.1\nstale_after = 1.0\n[queues.default]\nmax_workers = 64\n")
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
    """Ten queues: a count of statements in a time that the database measures, whatever the machine's speed."""
    project = project_on_postgres
    project.settings("".join(f"[queues.q{n}]\n" for n in range(10)))
    project.start()
    project.app.close()
    name = conninfo_to_dict(project.url)["dbname"]
    with psycopg.connect(pg_server, autocommit=True) as conn:

        def look() -> tuple[int, float]:
            row = conn.execute(
                "select xact_commit + xact_rollback, extract(epoch from clock_timestamp())::float8"
                "  from pg_stat_database where datname = %s",
                [name],
            ).fetchone()
            assert row is not None
            return row[0], row[1]

        _, started = look()
        eventually(lambda: look()[1] - started >= 3)  # what its start asked has been counted by then
        first, began = look()
        eventually(lambda: look()[1] - began >= 10)
        last, ended = look()
    assert 1 <= last - first <= 3 * (ended - began)
