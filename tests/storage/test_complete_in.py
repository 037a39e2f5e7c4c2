"""A job's end in a transaction of the handler's: both or neither."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from forge.errors import UsageError
from forge.job import Dead, Done, Ending, Released, Status
from forge.storage import Storage
from forge.storage.contract import Incarnation

from .helpers import check_whole, claimed, full_job, ids, one, plain_job, sql, statuses


@pytest.fixture
def conn(storage: Storage, url: str) -> Iterator[Any]:
    """A connection of the handler's, and a table of its own."""
    sql(url, "create table effect (n integer)")
    with contextlib.closing(storage.connect()) as conn:
        yield conn
    sql(url, "drop table effect")


def begin(storage: Storage, conn: Any) -> None:
    """Begin its transaction, in which the handler has an effect."""
    if storage.dialect == "sqlite":
        conn.execute("begin immediate")  # psycopg begins by itself
    conn.execute("insert into effect values (1)")


def effects(url: str) -> int:
    (row,) = sql(url, "select count(*) from effect")
    return int(row[0])


def test_the_effect_and_the_end_commit_together(storage: Storage, url: str, who: Incarnation, conn: Any) -> None:
    claim = claimed(storage, who, full_job(unique_for=None))
    child, key = plain_job("parcels", delay=9.0), full_job(queue="parcels")
    begin(storage, conn)
    assert storage.complete_in(conn, Ending(claim, Done(), result=b'{"paid":7}', children=(child, key))) is True
    assert one(storage, claim.id).status is Status.IN_PROGRESS, "not before the commit"
    conn.execute("commit")
    ended = one(storage, claim.id)
    assert (ended.status, ended.result, effects(url)) == (Status.DONE, {"paid": 7}, 1)
    assert statuses(storage, ids([child, key])) == [Status.PENDING] * 2
    assert storage.finalize([Ending(claim, Done())]) != [], "it has ended"
    check_whole(url)


def test_a_rollback_leaves_neither(storage: Storage, url: str, who: Incarnation, conn: Any) -> None:
    claim, child = claimed(storage, who, full_job()), full_job(queue="parcels")
    begin(storage, conn)
    assert storage.complete_in(conn, Ending(claim, Done(), children=(child,)))
    conn.execute("rollback")
    assert effects(url) == 0
    assert statuses(storage, ids([claim, child])) == [Status.IN_PROGRESS, None]
    assert storage.finalize([Ending(claim, Done())]) == []
    check_whole(url)


def test_a_claim_that_was_lost_changes_nothing(storage: Storage, url: str, who: Incarnation, conn: Any) -> None:
    claim, child = claimed(storage, who, full_job()), plain_job("parcels")
    storage.finalize([Ending(claim, Released())])
    begin(storage, conn)
    assert storage.complete_in(conn, Ending(claim, Done(), children=(child,))) is False
    conn.execute("commit")
    assert statuses(storage, ids([claim, child])) == [Status.PENDING, None]
    check_whole(url)


def test_a_result_that_is_not_kept_is_not_stored(storage: Storage, who: Incarnation, conn: Any) -> None:
    claim = claimed(storage, who)
    begin(storage, conn)
    assert storage.complete_in(conn, Ending(claim, Done(), result=b"7"))
    conn.execute("commit")
    assert one(storage, claim.id).result is None


def test_without_a_transaction_it_is_refused(storage: Storage, who: Incarnation, conn: Any) -> None:
    if storage.dialect == "postgres":
        conn.autocommit = True
    with pytest.raises(UsageError, match="no transaction open"):
        storage.complete_in(conn, Ending(claimed(storage, who), Done()))


def test_only_done_can_be_written_so(storage: Storage, who: Incarnation, conn: Any) -> None:
    with pytest.raises(UsageError, match="only a job that is Done"):
        storage.complete_in(conn, Ending(claimed(storage, who), Dead()))


def test_whatever_rows_the_handler_likes_the_end_is_written(storage: Storage, who: Incarnation, conn: Any) -> None:
    claim = claimed(storage, who, full_job())
    if storage.dialect == "postgres":
        from psycopg.rows import dict_row

        conn.row_factory = dict_row
    else:
        conn.row_trace = lambda cursor, row: {"row": row}
    begin(storage, conn)
    assert storage.complete_in(conn, Ending(claim, Done(), children=(full_job(queue="parcels"),)))
    conn.execute("commit")
    assert one(storage, claim.id).status is Status.DONE
