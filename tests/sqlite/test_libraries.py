"""apsw and the sqlite3 module: the same with either, never both on one file; and plans on the caller's connection."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Literal

import pytest

from forge import fastpath
from forge.errors import UsageError
from forge.job import Deduped, Done, Ending, Enqueued, Failed, JobFilter, Receipt, Status
from forge.storage.contract import Plan
from forge.storage.shared.plans import run_plan
from forge.storage.shared.statements import load_queries
from forge.storage.sqlite import SqliteStorage, rows
from forge.storage.sqlite.drivers import DRIVERS, DriverName

from .helpers import ids, some_jobs


def test_a_job_lives_and_ends_the_same_with_either_library(storage: SqliteStorage) -> None:
    who = storage.register("ada", ["default"], "north", 1)
    plain, keyed, bad = some_jobs(1) + some_jobs(1, dedupe_key="k", keep_result=60) + some_jobs(1, max_attempts=1)
    again = keyed._replace(id=fastpath.uuid7())
    assert storage.enqueue([plain]) == [Enqueued(plain.id)]
    assert storage.enqueue([keyed, again, bad, plain]) == [
        Enqueued(keyed.id), Deduped(keyed.id), Enqueued(bad.id), Enqueued(plain.id)
    ]  # fmt: skip
    claims = storage.claim(who, "default", 5)
    assert [(claim.id, claim.keep_result, claim.keyed) for claim in claims] == [
        (plain.id, False, False), (keyed.id, True, True), (bad.id, False, False)
    ]  # fmt: skip
    outcomes = [(Done(), None), (Done(), b"[1,2]"), (Failed("no"), None)]
    endings = [Ending(claim, outcome, result=result) for claim, (outcome, result) in zip(claims, outcomes, strict=True)]
    assert storage.finalize(endings) == []
    assert storage.finalize(endings) == endings
    found = storage.get(ids([plain, keyed, bad]))
    assert [found[job.id].status for job in (plain, keyed, bad)] == [Status.DONE, Status.DONE, Status.DEAD]
    assert found[keyed.id].result == [1, 2]
    assert found[bad.id].last_error == "no"
    assert storage.retry([bad.id]) == {bad.id}
    assert storage.cancel([bad.id, plain.id]) == {bad.id: "cancelled", plain.id: "ended"}
    assert len(storage.find(JobFilter(statuses=frozenset({Status.CANCELLED}))).jobs) == 1
    assert storage.delete([bad.id]) == {bad.id: "deleted"}


def test_a_storage_that_is_not_open_yet_adopts_the_callers_library(path: Path, apsw_storage: SqliteStorage) -> None:
    apsw_storage.close()
    storage = SqliteStorage(f"sqlite:///{path}")
    storage.adopt_driver("sqlite3")
    storage.enqueue(some_jobs(1))
    with storage._writer.use() as conn:
        assert isinstance(conn, DRIVERS["sqlite3"])
    storage.adopt_driver("sqlite3")
    storage.close()


def test_an_open_storage_refuses_the_other_library(storage: SqliteStorage, driver: DriverName) -> None:
    other: DriverName = "sqlite3" if driver == "apsw" else "apsw"
    storage.adopt_driver(driver)
    with pytest.raises(UsageError) as caught:
        storage.adopt_driver(other)
    assert "two SQLite libraries in one process cancel each other's file locks; pass a" in str(caught.value)
    assert "\n" not in str(caught.value)
    storage.enqueue(some_jobs(1))
    storage.close()
    storage.adopt_driver(other)
    assert storage.counts()["default"].pending == 1


def test_two_storages_of_one_process_cannot_use_two_libraries_on_one_file(storage: SqliteStorage, path: Path) -> None:
    with storage._writer.use() as conn:
        other = "sqlite3" if isinstance(conn, DRIVERS["apsw"]) else "apsw"
    with SqliteStorage(f"sqlite:///{path}?driver={other}") as second:
        with pytest.raises(UsageError, match="two SQLite libraries"):
            second.counts()
        storage.close()
        assert second.counts() == {}


def drive(conn: sqlite3.Connection, plan: Plan, style: Literal["named", "qmark", "format"]) -> list[Receipt]:
    def execute(step: Any) -> list[Any]:
        text: str = step.query.text(style)
        if style == "named":
            return conn.execute(text, step.params).fetchall()
        args = step.query.args(style, step.params)
        return conn.execute(text.replace("%s", "?").replace("%%", "%"), args).fetchall()  # as Django does

    return run_plan(plan, execute)


@pytest.mark.parametrize("style", ["named", "qmark", "format"])
@pytest.mark.parametrize("commit", [True, False])
def test_a_plan_runs_in_the_transaction_that_sqlite3_begins_by_itself(
    path: Path, apsw_storage: SqliteStorage, style: Literal["named", "qmark", "format"], commit: bool
) -> None:
    apsw_storage.close()
    storage = SqliteStorage(f"sqlite:///{path}")
    storage.adopt_driver("sqlite3")
    plain, first = some_jobs(1) + some_jobs(1, dedupe_key="k")
    late = some_jobs(3, dedupe_key="k", delay=500.0, payload=b"[2]")
    second, third, fourth = late[0], late[1]._replace(on_conflict="replace"), late[2]._replace(on_conflict="push")
    conn = sqlite3.connect(path)
    receipts = drive(conn, storage.enqueue_plan([first, plain, second, third, fourth, plain, first]), style)
    assert conn.in_transaction
    stored = [Enqueued(first.id), Enqueued(plain.id)]
    assert receipts == [*stored, *[Deduped(first.id)] * 3, *reversed(stored)]
    assert storage.get(ids([first, plain])) == {}
    if commit:
        conn.commit()
    else:
        conn.rollback()
    conn.close()
    found = storage.get(ids([first, plain]))
    if commit:
        assert found[first.id].payload == [2]
        assert (found[first.id].run_at - found[plain.id].run_at).total_seconds() == 500
        assert len(found) == 2
    else:
        assert found == {}
        assert storage.enqueue([second]) == [Enqueued(second.id)]
    storage.close()


@pytest.mark.parametrize("keyed", [True, False])
def test_a_plan_starts_by_writing_so_that_it_waits_instead_of_being_refused(
    apsw_storage: SqliteStorage, keyed: bool
) -> None:
    plan = apsw_storage.enqueue_plan(some_jobs(1, dedupe_key="k" if keyed else None))
    assert next(plan).query.sql.startswith("insert ")


def test_bulk_parameters_stand_in_the_order_of_their_question_marks() -> None:
    query = load_queries("sqlite").insert_job
    (job,) = some_jobs(1, tags=("a", "b"), delay=3.0, queue="q", priority=4, dedupe_key="k", unique_for=5)
    values = rows.job_params(job, 1_000_000)
    named = dict(zip(rows.JOB_PARAMS, values, strict=False))
    assert query.args("qmark", named) == values
    assert (named["id"], named["run_at"], named["now"]) == (job.id.bytes, 4_000_000, 1_000_000)
