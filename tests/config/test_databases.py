"""Which database a URL means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forge.config import same_database, shown_url

pytestmark = pytest.mark.impl_free

PG = "postgresql://ann:secret@db.example:5432/jobs"


@pytest.mark.parametrize(
    "other",
    [
        "postgres://ann:secret@db.example:5432/jobs",
        "postgresql://db.example/jobs",
        "postgresql://bob:else@db.example/jobs?sslmode=require&application_name=x",
        "postgresql:///jobs?host=db.example&port=5432",
        "postgresql://db.example?dbname=jobs",
        "postgresql://db.example/%6Aobs",
    ],
)
def test_who_connects_and_how_it_is_written_does_not_matter(other: str) -> None:
    assert same_database(PG, other, {}) and same_database(other, PG, {})


@pytest.mark.parametrize(
    "other",
    [
        "postgresql://ann:secret@db.example:5433/jobs",
        "postgresql://ann:secret@db.example/other",
        "postgresql://ann:secret@db2.example/jobs",
        "postgresql://ann:secret@db.example,db2.example/jobs",
        "postgresql://ann:secret@db.example",
        "postgresql://ann:secret@[::2]:5432/jobs",
        "sqlite:////jobs",
        "nonsense",
    ],
)
def test_another_host_port_or_name_is_another_database(other: str) -> None:
    assert not same_database(PG, other, {}) and not same_database(other, PG, {})


def test_what_a_url_leaves_out_is_what_libpq_takes() -> None:
    env = {"PGHOST": "db.example", "PGPORT": "6432", "PGDATABASE": "jobs"}
    assert same_database("postgresql://", "postgresql://db.example:6432/jobs", env)
    assert same_database("postgresql:///jobs", "postgresql://localhost:5432/jobs", {})
    assert same_database("postgresql://127.0.0.1/jobs", "postgresql://[::1]/jobs", {})
    assert same_database("postgresql://ann@h", "postgresql://h/ann", {})


def test_a_file_is_the_same_by_every_path_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.symlink(tmp_path, tmp_path / "link")
    for path in ("jobs.db", f"{tmp_path}/jobs.db", f"{tmp_path}/link/link/jobs.db", "jobs.db?driver=sqlite3"):
        assert same_database("sqlite:///jobs.db", f"sqlite:///{path}")
    assert not same_database("sqlite:///jobs.db", "sqlite:///link/other.db")


def test_no_secret_is_shown_and_a_file_by_its_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_url(PG) == "postgresql://ann:***@db.example:5432/jobs"
    assert shown_url(f"sqlite:///{tmp_path}/jobs.db") == "sqlite:///jobs.db"
    assert shown_url("sqlite:////elsewhere/jobs.db") == "sqlite:////elsewhere/jobs.db"
