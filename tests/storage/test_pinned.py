"""With a snapshot held open no dead index entry can be removed: what a pod asks over and over must not read them again.

Counted in pages that a statement touches, never in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import RawCursor

from forge.job import Done, Ending
from forge.storage import Storage, open_storage
from forge.storage.contract import Incarnation, LowWater
from forge.storage.postgres.rows import marks_params
from forge.storage.postgres.wire import WireFormats
from forge.storage.shared.low_water import Marks
from forge.storage.shared.statements import load_queries
from tests.conftest import new_database

from .helpers import ids, plain_job, plain_jobs

pytestmark = pytest.mark.impl_free

PAST = datetime(2024, 5, 6, 7, 8, 9, 101112, UTC)
DEAD = 25_000  # in each of two priorities
FEW, MANY = 300, 3000  # pages; with the dead entries it is more than ten thousand


class Pinned(NamedTuple):
    """A queue whose jobs have all ended under a snapshot that is still open."""

    url: str
    storage: Storage
    who: Incarnation
    marks: Marks


@pytest.fixture(scope="module")
def pinned(pg_server: str, pg_template: str) -> Iterator[Pinned]:
    database = new_database(pg_server, pg_template)
    url = next(database)
    with open_storage(url) as storage, psycopg.connect(url) as holder:
        who, water = storage.register("p", ["letters"], "h", 1), LowWater(timer=1e9)
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("select count(*) from forge.queue")
        for priority in (0, 5):
            storage.enqueue(plain_jobs(DEAD, priority=priority))
        while claims := storage.claim(who, "letters", 1000, water):
            assert storage.finalize([Ending(claim, Done()) for claim in claims]) == []
        assert set(water.marks) == {0, 5}
        yield Pinned(url, storage, who, water.marks)
    next(database, None)


def pages(url: str, name: str, marks: Marks, **params: Any) -> int:
    """That a statement touches, planned as forge has it planned."""
    queries = load_queries("postgres")
    with psycopg.connect(url, context=WireFormats()) as conn:
        local = queries.plan_by_index.args("dollar", {"local": True})
        RawCursor(conn).execute(queries.plan_by_index.text("dollar"), local)
        query = getattr(queries, name)
        values: Mapping[str, Any] = {**params, **marks_params({"letters": marks})}
        explain = "explain (analyze, buffers, costs off, format json) " + query.text("dollar")
        row = RawCursor(conn).execute(explain, query.args("dollar", values)).fetchone()
        assert row is not None
        plan = row[0][0]["Plan"]
        conn.rollback()
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.parametrize("waiting", [0, 100])
def test_a_claim_from_the_marks_steps_over_no_dead_entry(pinned: Pinned, waiting: int) -> None:
    """Neither while there is something to claim nor when it has to look through all priorities for it."""
    jobs = plain_jobs(waiting, priority=5)
    pinned.storage.enqueue(jobs)
    claim = {"claim": pinned.who.mint(), "queue": "letters", "n": 50, "most_bytes": 10**6, "unsynced": False}
    assert pages(pinned.url, "claim", pinned.marks, **claim) < 2 * FEW
    assert pages(pinned.url, "claim", {}, **claim) > MANY, "so they are there"
    pinned.storage.delete(ids(jobs))


def test_the_look_whether_a_job_is_due_steps_over_no_dead_entry(pinned: Pinned) -> None:
    assert pages(pinned.url, "next_due", pinned.marks, queues=["letters"]) < FEW
    assert pages(pinned.url, "next_due", {}, queues=["letters"]) > MANY


def test_the_look_at_how_queues_stand_steps_over_no_dead_entry(pinned: Pinned) -> None:
    assert pages(pinned.url, "fronts", pinned.marks) < FEW
    assert pages(pinned.url, "standing", pinned.marks, most=100) < FEW
    assert pages(pinned.url, "fronts", {}) > MANY


def test_the_look_for_queues_that_nobody_serves_steps_over_those_that_are_served(pinned: Pinned) -> None:
    jobs = [plain_job("atlas"), plain_job("zebra")]
    pinned.storage.enqueue(jobs)
    assert pages(pinned.url, "undeclared_queues", {}) < FEW
    assert pinned.storage.shares.undeclared() == {"atlas": True, "zebra": True}
    pinned.storage.delete(ids(jobs))


def test_next_due_goes_by_the_marks_where_a_whole_scan_is_dear(pg_url: str) -> None:
    with open_storage(pg_url) as storage:
        who, water = storage.register("p", ["letters"], "h", 1), LowWater(timer=1e9)
        storage.enqueue([plain_job(run_at=PAST)])
        assert len(storage.claim(who, "letters", 1, water)) == 1
        storage.enqueue([plain_job(run_at=PAST - timedelta(days=1))])
        water._whole.cost = 1e9
        assert storage.next_due(["letters"], {"letters": water}) is None, "it is in front of the mark"
        water._whole.cost = 0.0
        due = storage.next_due(["letters"], {"letters": water})
        assert due is not None and due < 0


def test_a_job_in_front_of_the_mark_is_claimed_by_the_next_whole_scan(pg_url: str) -> None:
    with open_storage(pg_url) as storage:
        who, water = storage.register("p", ["letters"], "h", 1), LowWater(timer=1e9)
        storage.enqueue([plain_job(run_at=PAST)])
        assert len(storage.claim(who, "letters", 1, water)) == 1
        early = plain_job(run_at=PAST - timedelta(days=1))
        storage.enqueue([early])
        water._whole.cost = 1e9
        assert storage.claim(who, "letters", 1, water) == []
        water._whole._at -= LowWater.MOST_APART
        assert ids(storage.claim(who, "letters", 1, water)) == [early.id]


def test_a_job_in_front_of_where_its_queue_began_is_counted_at_the_next_whole_look(pg_url: str) -> None:
    with open_storage(pg_url) as storage:
        metrics: Any = storage.metrics
        storage.enqueue(plain_jobs(3, run_at=PAST))
        assert metrics.standing(100)["letters"].pending == 3
        metrics._looks._cost = 1e9
        storage.enqueue([plain_job(run_at=PAST - timedelta(days=1)), plain_job(priority=-1), plain_job()])
        assert metrics.standing(100)["letters"].pending == 5, "but for the one in front"
        metrics._looks._at -= metrics._looks.MOST_APART
        assert metrics.standing(100)["letters"].pending == 6
