"""A program that cannot reach PostgreSQL: how long it tries, and what it tells."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from forge import Forge
from forge.errors import DatabaseError
from forge.storage import open_storage
from forge.storage.postgres import database

NOWHERE = "postgresql://postgres@/nothing?host=/nowhere"  # refused at once


class Clock:
    """What stands in for `time`: a pause takes none."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(database, "time", made)
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def waited(clock: Clock, verb: Callable[[], object]) -> float:
    clock.pauses.clear()
    with pytest.raises(DatabaseError, match="cannot use PostgreSQL at /nowhere"):
        verb()
    return sum(clock.pauses)


def test_an_enqueue_is_tried_again_after_100_ms_300_ms_and_1_s(clock: Clock, folder: Path) -> None:
    with Forge(NOWHERE) as app:
        for _ in range(2):  # at the first use as at any other
            assert waited(clock, lambda: app.enqueue("kind", {})) == pytest.approx(1.4)
            assert 0.05 <= clock.pauses[0] <= 0.15 and 0.15 <= clock.pauses[1] <= 0.45
            assert len(clock.pauses) <= 4


@pytest.mark.parametrize("patience", [0, 0.25, 60])
@pytest.mark.parametrize("where", ["file", "variable"])
def test_how_long_it_is_tried_is_a_setting(
    clock: Clock, folder: Path, monkeypatch: pytest.MonkeyPatch, where: str, patience: float
) -> None:
    if where == "file":
        (folder / "forge.toml").write_text(f"database_patience = {patience}\n")
    else:
        monkeypatch.setenv("FORGE_DATABASE_PATIENCE", str(patience))
    with Forge(NOWHERE) as app:
        assert waited(clock, lambda: app.enqueue("kind", {})) == pytest.approx(patience)
        assert len(clock.pauses) < 4 + patience, "not more often than every second or so"


def test_a_server_that_is_away_for_less_is_waited_for(
    pg_url: str, clock: Clock, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Forge(pg_url) as app:
        app.enqueue("kind", {})
        refused = iter([True, True])
        real = database.PostgresConnection.connect

        def connect(*args: Any, **kwargs: Any) -> Any:
            if next(refused, False):
                raise psycopg.OperationalError("connection refused")
            return real(*args, **kwargs)

        monkeypatch.setattr(database.PostgresConnection, "connect", connect)
        with psycopg.connect(pg_url, autocommit=True) as killer:
            killer.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'forge'")
        clock.pauses.clear()
        handle = app.enqueue("kind", {})
        assert len(clock.pauses) == 3, "once for the lost one, twice for those refused"
        assert app.storage.get([handle.id]).keys() == {handle.id}


def test_a_server_that_does_not_even_refuse_is_not_waited_for_twice(
    clock: Clock, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To find that out takes longer than one is patient already."""
    tries: list[None] = []

    def connect(*args: Any, **kwargs: Any) -> Any:
        tries.append(None)
        clock.now += 10
        raise psycopg.errors.ConnectionTimeout("connection timeout expired")

    monkeypatch.setattr(database.PostgresConnection, "connect", connect)
    with Forge(NOWHERE) as app:
        assert waited(clock, lambda: app.enqueue("kind", {})) == 0
    assert len(tries) == 1


# -- what psycopg says


@pytest.fixture
def killed(pg_url: str) -> Iterator[Callable[[str], None]]:
    with psycopg.connect(pg_url, autocommit=True) as killer:
        terminate = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s"

        def kill(name: str) -> None:
            assert killer.execute(terminate, (name,)).fetchall()

        yield kill


def test_what_psycopg_ignored_while_it_cleaned_up_is_not_said_for_verbs_of_forge(
    pg_url: str, killed: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    with open_storage(pg_url) as storage, caplog.at_level(logging.WARNING):
        for verb in (storage.counts, lambda: storage.set_queue("letters", paused=True), storage.prune):
            storage.now()
            killed("forge")
            verb()
    assert [record.getMessage() for record in caplog.records] == []


def test_what_psycopg_says_to_a_program_that_uses_it_itself_is_said(
    pg_url: str, killed: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    conn = psycopg.connect(pg_url, application_name="mine")

    def ask() -> None:
        with conn.pipeline():
            killed("mine")
            conn.execute("select 1").fetchall()

    with caplog.at_level(logging.WARNING), pytest.raises(psycopg.Error):
        ask()
    conn.close()
    assert any("error ignored" in record.getMessage() for record in caplog.records)
