"""A handler's own writes and the end of its job, in one transaction, on both databases."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from forge import Context, Forge, Status
from forge.inline import drain


@pytest.fixture
def app(url: str) -> Iterator[Forge]:
    with Forge(url) as opened:
        conn = opened.storage.connect()
        conn.execute("create table ledger (n integer, who text)")
        if opened.storage.dialect == "postgres":
            conn.commit()
        conn.close()
        yield opened


def ledger(app: Forge) -> list[int]:
    conn = app.storage.connect()
    rows = conn.execute("select n from ledger order by n").fetchall()
    conn.close()
    return [row[0] for row in rows]


def note(tx: Any, n: int) -> None:
    tx.execute(f"insert into ledger (n, who) values ({n}, 'me')")


def test_the_writes_the_result_and_the_follow_up_jobs_commit_with_the_job(app: Forge) -> None:
    @app.task(name="child")
    def child(n: int) -> int:
        return n

    @app.task(name="pay")
    def pay(ctx: Context, n: int) -> Any:
        ctx.enqueue(child, n)
        with ctx.transaction() as tx:
            note(tx, n)
            assert tx.conn.execute("select count(*) from ledger").fetchone()[0] == 1
            tx.result = {"paid": n}
        return "what is returned afterwards does not matter"

    job = pay.enqueue(7)
    summary = drain(app)
    assert (job.status, job.result(timeout=0)) == (Status.DONE, {"paid": 7})
    assert ledger(app) == [7]
    assert [j.result for j in app.jobs(kind="child")] == [7]
    assert (summary.outcomes, summary.stale) == ({"written": 1, "done": 1}, 0)


def test_a_block_that_raises_writes_nothing_and_the_job_fails(app: Forge) -> None:
    @app.task(name="pay", max_attempts=1)
    def pay(ctx: Context) -> None:
        with ctx.transaction() as tx:
            note(tx, 1)
            raise ValueError("no")

    job = pay.enqueue()
    drain(app)
    assert (job.status, job.job().last_error) == (Status.DEAD, "ValueError: no")
    assert ledger(app) == []


def test_a_job_that_was_taken_away_meanwhile_writes_nothing(app: Forge) -> None:
    @app.task(name="pay")
    def pay(ctx: Context) -> None:
        (pod,) = app.storage.pods()
        app.storage.release(pod.id, "taken away")
        with ctx.transaction() as tx:
            note(tx, 1)

    job = pay.enqueue()
    summary = drain(app, until_empty=False)
    assert job.status is Status.PENDING
    assert ledger(app) == []
    assert summary.stale == 1, "nor does the failure that follows count"


def test_whatever_comes_after_the_transaction_the_job_is_done(app: Forge, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(name="pay")
    def pay(ctx: Context) -> None:
        with ctx.transaction() as tx:
            note(tx, 1)
        raise RuntimeError("too late")

    job = pay.enqueue()
    with caplog.at_level(logging.ERROR):
        drain(app)
    assert job.status is Status.DONE
    assert ledger(app) == [1]
    assert "its handler went on and failed" in caplog.text
    assert "RuntimeError: too late" in caplog.text


def test_there_is_one_transaction_per_job_and_nothing_commits_with_it_afterwards(app: Forge) -> None:
    @app.task(name="pay")
    def pay(ctx: Context) -> None:
        with ctx.transaction() as tx:
            note(tx, 1)
        with pytest.raises(Exception, match="there can be one"), ctx.transaction():
            pass
        with pytest.raises(Exception, match="use enqueue_now"):
            ctx.enqueue("k", 1)
        ctx.enqueue_now("k", 1)

    pay.enqueue()
    drain(app)
    assert ledger(app) == [1]
    assert [job.kind for job in app.jobs(kind="k")] == ["k"]


def test_transactions_of_many_jobs_need_not_connect_each_time(app: Forge) -> None:
    seen: list[Any] = []

    @app.task(name="pay")
    def pay(ctx: Context, n: int) -> None:
        with ctx.transaction() as tx:
            note(tx, n)
            seen.append(tx.conn)

    pay.enqueue_many([(n,) for n in range(5)])
    drain(app)
    assert ledger(app) == [0, 1, 2, 3, 4]
    assert len(set(map(id, seen))) == 1 or app.storage.dialect == "sqlite"
