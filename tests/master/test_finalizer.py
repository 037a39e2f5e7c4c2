"""Endings that a database refuses: the others are written all the same."""

from __future__ import annotations

from typing import Any, cast

import pytest

from forge.errors import DatabaseError
from forge.job import Claim, Done, Ending, Status
from forge.master.ending_batch import EndingBatch
from forge.master.finalizer import MOST_UNWRITTEN, Finalizer
from forge.storage import open_storage
from tests.storage.helpers import plain_job

from .conftest import eventually

pytestmark = pytest.mark.impl_free

BROKEN = b"{no JSON"  # which PostgreSQL does not store


def claims(url: str, n: int) -> list[Claim]:
    with open_storage(url) as storage:
        who = storage.register("ada", ["letters"], "north", 4711)
        storage.enqueue([plain_job("letters")._replace(keep_result=600) for _ in range(n)])
        return storage.claim(who, "letters", n)


def test_one_ending_that_is_refused_does_not_keep_the_others_from_being_written(pg_url: str) -> None:
    found = claims(pg_url, 7)
    endings = [Ending(claim, Done(), result=BROKEN if i == 4 else b"1") for i, claim in enumerate(found)]
    with open_storage(pg_url) as storage:
        batch = EndingBatch(storage, endings, 3)
        batch()
        assert (batch.stale, batch.left, batch.apart) == ([], [], [])
        assert batch.refused == [endings[4]]
        jobs = storage.get([claim.id for claim in found])
        assert [jobs[claim.id].status for claim in found].count(Status.DONE) == 6
        refused = jobs[found[4].id]
        assert refused.status == Status.DEAD
        words = "its work was done, but the database refuses its result: PostgreSQL refused"
        assert str(refused.last_error).startswith(words)


def test_a_database_that_is_away_is_told_from_one_that_refuses(pg_url: str) -> None:
    found = claims(pg_url, 2)
    with open_storage("postgresql://nobody@127.0.0.1:1/nothing") as away:
        batch = EndingBatch(away, [Ending(claim, Done()) for claim in found], 3)
        for _ in range(2):
            with pytest.raises(DatabaseError, match="cannot use PostgreSQL"):
                batch()
        assert len(batch.left) == 2


def test_who_is_behind_with_writing_says_so_until_it_is_written(pg_url: str) -> None:
    (claim,) = claims(pg_url, 1)
    news: list[Any] = []
    with open_storage(pg_url) as storage:
        finalizer = Finalizer(storage, news.append, cast(Any, Quiet()), lambda *_: None, lambda: None)

        def behind() -> bool:
            return finalizer.behind

        finalizer.done([Ending(claim, Done())] * MOST_UNWRITTEN)
        assert not behind()
        finalizer.done([Ending(claim, Done())])
        assert behind()
        finalizer.flush(3)
        assert behind(), "they are on their way, and not there yet"
        finalizer.start()
        eventually(lambda: news)
        news[0].thread.take_in(news[0])
        assert not behind()
        assert finalizer.ended == MOST_UNWRITTEN + 1, "all but one were of a claim that had ended already"


class Quiet:
    """Stands where the pod does, which is told that the database is there."""

    def is_back(self, *, written: bool = False) -> None:
        pass
