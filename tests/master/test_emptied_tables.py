"""An operator who empties one of forge's tables under a running master loses what was in it, and nothing else."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pytest

from .conftest import Project, eventually

pytestmark = pytest.mark.impl_free


def tables(url: str) -> list[str]:
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as conn:
            rows = conn.execute("select name from sqlite_master where type = 'table' and name not like 'sqlite%'")
            return sorted(name for (name,) in rows)
    with psycopg.connect(url) as pg:
        found = pg.execute("select tablename from pg_tables where schemaname = 'forge'").fetchall()
    return sorted(name for (name,) in found)


def empty(url: str, table: str) -> None:
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30) as conn:
            conn.execute(f"delete from {table}")
    else:
        with psycopg.connect(url) as pg:
            pg.execute(f"delete from forge.{table}")


def test_the_master_goes_on_whichever_table_is_emptied(project: Project) -> None:
    project.settings("leader_ttl = 1.0\nheartbeat = 0.2\npoll_interval = 0.2\n[queues.default]\nmax_workers = 1\n")
    pod = project.start()
    eventually(lambda: pod.says("this pod leads"))
    for table in tables(project.url):
        if table.endswith("migration"):
            continue  # read at the start alone
        empty(project.url, table)
        job: Any = project.enqueue("add", 2, 3)
        assert job.result(timeout=60) == 5, (table, pod.lines[-5:])
    leads = [line for line in pod.lines if "this pod leads (term " in line]
    terms = [int(line.split("(term ")[1].split(")")[0]) for line in leads]
    assert len(terms) >= 2 and terms == sorted(set(terms))  # none came twice
    assert not pod.says("IndexError") and not pod.says("ValueError") and not pod.says("Traceback"), pod.lines
    assert pod.stop() == 0
