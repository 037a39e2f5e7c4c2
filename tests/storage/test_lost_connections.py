"""Connections that a crashing server has ended between two statements (PostgreSQL): whoever uses one next finds that
out, and works on a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from forge.errors import DatabaseError
from forge.job import Done, Ending, Enqueued
from forge.storage import Storage, open_storage
from forge.storage.contract import Incarnation, LowWater, Want
from forge.storage.postgres import database

from .helpers import ids, plain_job, plain_jobs
from .proxy import Proxy

pytestmark = pytest.mark.impl_free


@pytest.fixture
def proxy(pg_url: str) -> Iterator[Proxy]:
    with Proxy(pg_url) as proxy:
        yield proxy


def enqueue_one(storage: Storage, _: Incarnation) -> None:
    job = plain_job()
    assert storage.enqueue([job]) == [Enqueued(job.id)]
    assert storage.get([job.id]).keys() == {job.id}


def enqueue_many(storage: Storage, _: Incarnation) -> None:
    jobs = plain_jobs(50)
    assert storage.enqueue(jobs) == [Enqueued(job.id) for job in jobs]


def claim(storage: Storage, who: Incarnation) -> None:
    assert len(storage.claim(who, "letters", 10)) == 3


def finalize(storage: Storage, who: Incarnation) -> None:
    claims = storage.claim(who, "letters", 10)
    assert storage.finalize([Ending(claim, Done()) for claim in claims]) == []


def exchange(storage: Storage, who: Incarnation) -> None:
    assert len(storage.exchange(who, [], [Want("letters", 10, LowWater())])[1]) == 3


VERBS: list[Callable[[Storage, Incarnation], object]] = [
    enqueue_one,
    enqueue_many,
    claim,
    finalize,
    exchange,
    lambda storage, who: None if storage.beat(who) else pytest.fail("it is alive"),
    lambda storage, _: storage.set_queue("letters", paused=True),
    lambda storage, _: None if storage.counts()["letters"].pending == 3 else pytest.fail("three wait"),
]


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_finds_its_connection_gone_and_does_its_work_on_a_new_one(
    proxy: Proxy, verb: Callable[[Storage, Incarnation], object]
) -> None:
    with open_storage(proxy.url) as storage:
        who = storage.register("ada", ["letters"], "north", 1)
        waiting = plain_jobs(3)
        storage.enqueue(waiting)
        # Each way to use a connection has been used, so that what is prepared is prepared.
        assert ids(storage.claim(who, "letters", 3)) == ids(waiting)
        storage.enqueue([plain_job("elsewhere")])
        storage.finalize([Ending(each, Done()) for each in storage.claim(who, "elsewhere", 1)])
        storage.enqueue(plain_jobs(3))
        proxy.crash()
        verb(storage, who)


def test_a_server_that_does_not_come_back_is_said_to_be_away_and_not_to_refuse(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_storage(proxy.url, patience=0.2) as storage:
        storage.enqueue([plain_job()])

        def connect(*_: Any, **__: Any) -> Any:
            raise psycopg.OperationalError("connection refused")

        monkeypatch.setattr(database.PostgresConnection, "connect", connect)
        proxy.crash()
        with pytest.raises(DatabaseError, match=r"cannot use PostgreSQL at .*: connection refused"):
            storage.enqueue([plain_job()])
