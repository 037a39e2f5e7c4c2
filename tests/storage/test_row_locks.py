"""A row that somebody has locked keeps nobody else's ending from being written. On PostgreSQL: SQLite has one lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from forge import Forge
from forge.job import Claim, Done, Ending, Failed, Status, Throttled
from forge.master import ending_batch as batches
from forge.master.ending_batch import EndingBatch
from forge.storage import Storage, open_storage
from forge.storage.contract import RowsLocked
from tests.storage.helpers import plain_job

pytestmark = pytest.mark.impl_free

BY_ID = "select from forge.job where id = %s for update"


@pytest.fixture
def pg(pg_url: str) -> Iterator[Storage]:
    with open_storage(pg_url) as opened:
        yield opened


@contextmanager
def held(url: str, statement: str, *params: Any) -> Iterator[None]:
    """Somebody's transaction that does not end."""
    with psycopg.connect(url, application_name="somebody") as conn:
        conn.execute(statement, params)
        yield
        conn.rollback()


def claims(storage: Storage, n: int, **changes: Any) -> list[Claim]:
    who = storage.register("ada", ["letters"], "north", 4711)
    storage.enqueue([plain_job("letters", **changes) for _ in range(n)])
    return storage.claim(who, "letters", n)


def statuses(storage: Storage, found: list[Claim]) -> list[Status]:
    jobs = storage.get([claim.id for claim in found])
    return [jobs[claim.id].status for claim in found]


def test_a_locked_row_is_waited_for_no_longer_than_was_said(pg: Storage, pg_url: str) -> None:
    found = claims(pg, 3)
    endings = [Ending(claim, Done()) for claim in found]
    with held(pg_url, BY_ID, found[1].id):
        with pytest.raises(RowsLocked):
            pg.finalize(endings, lock_wait=0.05)
        assert pg.locked(endings) == [endings[1]]
        holder = pg.lock_holder(found[1])
        assert holder is not None and "somebody" in holder and "idle in transaction" in holder
        assert pg.lock_holder(found[0]) is None
    assert pg.locked(endings) == []
    assert pg.finalize(endings, lock_wait=0.05) == []
    assert statuses(pg, found) == [Status.DONE] * 3


def test_the_others_of_a_batch_are_written_and_the_locked_one_is_set_apart(pg: Storage, pg_url: str) -> None:
    found = claims(pg, 50)
    endings = [Ending(claim, Done() if n % 2 else Failed("no"), 60.0 * (1 - n % 2)) for n, claim in enumerate(found)]
    with held(pg_url, BY_ID, found[17].id):
        batch = EndingBatch(pg, endings, 3)
        batch()
        assert [each.ending for each in batch.apart] == [endings[17]]
        assert statuses(pg, found).count(Status.IN_PROGRESS) == 1
        again = EndingBatch(pg, [], 3, again=batch.apart)
        again()
        assert again.apart == batch.apart
    last = EndingBatch(pg, [], 3, again=again.apart)
    last()
    assert last.apart == []
    assert Status.IN_PROGRESS not in statuses(pg, found)


def test_a_locked_key_is_found_too(pg: Storage, pg_url: str) -> None:
    who = pg.register("ada", ["letters"], "north", 4711)
    pg.enqueue([plain_job("letters", dedupe_key=f"k{n}") for n in range(4)])
    found = pg.claim(who, "letters", 4)
    (mine,) = [c for c in found if c.id == found[2].id]
    with held(pg_url, "select from forge.job_key where job_id = %s for update", mine.id):
        batch = EndingBatch(pg, [Ending(claim, Done()) for claim in found], 3)
        batch()
        assert [each.ending.claim for each in batch.apart] == [mine]
        assert statuses(pg, found).count(Status.DONE) == 3


def test_what_many_share_is_not_waited_for_by_each(pg: Storage, pg_url: str) -> None:
    """A queue's row: all that need it are set apart after a few tries, the others are written."""
    found = claims(pg, 40)
    pg.set_queue("letters", throttle="hint")
    other = pg.register("bob", ["parcels"], "north", 4712)
    pg.enqueue([plain_job("parcels") for _ in range(10)])
    elsewhere = pg.claim(other, "parcels", 10)
    endings = [Ending(claim, Throttled(5.0)) for claim in found] + [Ending(claim, Done()) for claim in elsewhere]
    with held(pg_url, "select from forge.queue where name = 'letters' for update"):
        batch = EndingBatch(pg, endings, 3)
        batch()
        assert {each.ending.claim.queue for each in batch.apart} == {"letters"}
        assert len(batch.apart) == 40
        assert batch._waits <= batches.MOST_WAITS + 1
        assert statuses(pg, elsewhere) == [Status.DONE] * 10
    again = EndingBatch(pg, [], 3, again=batch.apart)
    again()
    assert statuses(pg, found) == [Status.PENDING] * 40


@contextmanager
def about_to_store(url: str, *keys: str) -> Iterator[None]:
    """Somebody's transaction that has enqueued jobs with these keys, and does not end."""
    with psycopg.connect(url, application_name="somebody") as conn, Forge(url) as app:
        for key in keys:
            app.enqueue("k", {}, dedupe_key=key, conn=conn)
        yield
        conn.commit()


def parent(claim: Claim, key: str) -> Ending:
    """Done, with a follow-up job that has a key."""
    return Ending(claim, Done(), children=(plain_job("letters", dedupe_key=key),))


def until_written(storage: Storage, batch: EndingBatch) -> None:
    """Try again what was set apart, over and over."""
    for _ in range(1000):
        if not batch.apart:
            return
        batch = EndingBatch(storage, [], 3, again=batch.apart)
        batch()
    raise AssertionError("it never came true")


@pytest.mark.parametrize("culprit", [0, 17, 99])
def test_a_key_that_somebody_is_about_to_store_holds_up_only_who_wants_it_too(
    pg: Storage, pg_url: str, culprit: int
) -> None:
    found = claims(pg, 100)
    endings = [
        parent(claim, "k") if n == culprit else parent(claim, f"k{n}") if n % 3 == 0 else Ending(claim, Done())
        for n, claim in enumerate(found)
    ]
    with about_to_store(pg_url, "k"):
        batch = EndingBatch(pg, endings, 3)
        batch()
        assert [each.ending for each in batch.apart] == [endings[culprit]]
        assert statuses(pg, found).count(Status.DONE) == 99
    until_written(pg, batch)
    assert statuses(pg, found) == [Status.DONE] * 100


def test_however_many_keys_somebody_is_about_to_store_the_others_are_written_after_a_few_waits(
    pg: Storage, pg_url: str
) -> None:
    found = claims(pg, 200)
    endings = [parent(claim, f"k{n}") if n < 100 else Ending(claim, Done()) for n, claim in enumerate(found)]
    with about_to_store(pg_url, *(f"k{n}" for n in range(100) if n != 50)):
        batch = EndingBatch(pg, endings, 3)
        batch()
        assert batch._waits <= batches.MOST_WAITS_IN_ALL + 1
        assert statuses(pg, found[100:]) == [Status.DONE] * 100
        # Those for which there was no time come first the next time: one whose key is free does not wait for ever.
        for _ in range(20):
            if statuses(pg, [found[50]]) == [Status.DONE]:
                break
            batch = EndingBatch(pg, [], 3, again=batch.apart)
            batch()
        assert statuses(pg, [found[50]]) == [Status.DONE]
        assert {each.ending.claim.id for each in batch.apart} == {c.id for n, c in enumerate(found[:100]) if n != 50}
    until_written(pg, batch)
    assert statuses(pg, found) == [Status.DONE] * 200


def test_statements_that_were_prepared_before_and_after_a_rollback_are_both_known(pg: Storage, pg_url: str) -> None:
    """psycopg forgets what was prepared on a connection when a transaction is rolled back, and has the server forget it
    at the next statement that it runs: those that were prepared here before are unknown then, those after are not."""
    who = pg.register("ada", ["letters"], "north", 4711)
    pg.enqueue([plain_job("letters")])
    (found,) = pg.claim(who, "letters", 1)
    with about_to_store(pg_url, "k"):
        with pytest.raises(RowsLocked):
            pg.finalize([parent(found, "k")], lock_wait=0.05)
        assert pg.locked([Ending(found, Done())]) == []
        assert pg.next_due(["letters"], {}) is None  # for the first time on this connection
        for _ in range(3):
            assert pg.claim(who, "letters", 1) == []
            assert pg.next_due(["letters"], {}) is None


def test_a_job_that_went_away_is_not_locked(pg: Storage) -> None:
    found = claims(pg, 2)
    pg.finalize([Ending(found[0], Done())])
    assert pg.locked([Ending(claim, Done()) for claim in found]) == []
