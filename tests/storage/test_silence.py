"""Connections that stay open and never answer (PostgreSQL): they are given up and made anew, and what was in doubt is
settled as after any lost connection."""

from __future__ import annotations

import fcntl
import logging
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from forge.errors import DatabaseError
from forge.job import Done, Ending, Enqueued, Status
from forge.storage import Storage, open_storage
from forge.storage.contract import LowWater, Want
from forge.storage.contract.leases import Holder
from forge.storage.contract.listener import Listener
from forge.storage.postgres import claims, database, watch
from forge.storage.postgres.pool import ConnectionPool, PoolBusyError
from forge.storage.postgres.watch import PostgresConnection

from .helpers import check_whole, ids, plain_job, plain_jobs, statuses
from .proxy import Proxy

LIMIT = 2.0  # seconds for a statement; on a busy machine it is answered within that


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "SILENCE", 0.0)


@pytest.fixture
def proxy(pg_url: str) -> Iterator[Proxy]:
    with Proxy(pg_url) as proxy:
        yield proxy


@pytest.mark.parametrize("answers_only", [False, True], ids=["nothing passes", "answers do not pass"])
def test_every_verb_gives_up_a_silent_connection_and_does_its_work_on_a_new_one(
    proxy: Proxy, pg_url: str, answers_only: bool
) -> None:
    with ExitStack() as stack:

        def opened() -> Storage:
            storage = stack.enter_context(open_storage(proxy.url, pool_size=1, timeout=LIMIT))
            storage.now()  # the connections that the verbs will use
            storage.claim(storage.register("warm", [], "north", 1), "nothing", 1)
            storage.leases.leader()
            return storage

        storages = [opened() for _ in range(7)]
        first = storages[0]
        who = first.register("ada", ["letters"], "north", 4711)
        done = plain_jobs(3)
        first.enqueue(done)
        claims = first.claim(who, "letters", 3)
        single, bulk, waiting, more = (
            plain_job("one"),
            plain_jobs(50, "many"),
            plain_jobs(4, "later"),
            plain_jobs(2, "x"),
        )
        first.enqueue(waiting)
        first.enqueue(more)
        taken: list[Any] = []

        def claim(storage: Storage) -> bool:
            taken.extend(storage.claim(who, "later", 10))
            return True

        verbs: list[Callable[[Storage], Any]] = [
            lambda storage: storage.enqueue([single]) == [Enqueued(single.id)],
            lambda storage: storage.enqueue(bulk) == [Enqueued(job.id) for job in bulk],
            claim,
            lambda storage: storage.finalize([Ending(claim, Done()) for claim in claims]) == [],
            lambda storage: storage.beat(who),
            lambda storage: storage.leases.acquire(Holder("a", None, "north", 1), 60.0).term is not None,
            lambda storage: storage.exchange(who, [], [Want("x", 5, LowWater())]) is not None,
        ]
        proxy.fall_silent(answers_only=answers_only)
        with ThreadPoolExecutor(len(verbs)) as pool:
            answers = [pool.submit(verb, storage) for verb, storage in zip(verbs, storages, strict=True)]
            assert all(answer.result(timeout=60) for answer in answers)
        with open_storage(pg_url) as looking:
            assert statuses(looking, ids(done)) == [Status.DONE] * 3
            assert len(looking.get([single.id])) == 1
            assert looking.counts()["many"].pending == 50
            found = taken
            for _ in range(1000):  # what was claimed and never told of comes again
                if len(found) == 4:
                    break
                found = found + storages[2].claim(who, "later", 10)
            assert sorted(ids(found)) == sorted(ids(waiting))
            assert [job.attempts for job in looking.get(ids(waiting)).values()] == [1] * 4
    check_whole(pg_url)


def test_what_fell_silent_together_is_given_up_together(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    """Else each of the others would be waited for in turn."""
    with open_storage(proxy.url, pool_size=4, timeout=LIMIT) as storage, psycopg.connect(proxy.url) as locking:
        locking.execute("lock table forge.pod")
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(storage.pods) for _ in range(4)]
            while not all(each.running() for each in asked):
                time.sleep(0.01)
            locking.rollback()
            assert [each.result(60) for each in asked] == [[]] * 4
        proxy.fall_silent()
        cuts: list[Any] = []
        original = watch.Watched.__exit__

        def counting(self: Any, kind: Any, error: Any, trace: Any) -> None:
            cuts.extend([kind] if kind else [])
            original(self, kind, error, trace)

        with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(watch.Watched, "__exit__", counting)
            for _ in range(4):
                assert storage.pods() == []
        assert len(cuts) == 1
    assert caplog.records == []


def test_a_statement_that_takes_long_on_a_server_that_lives_is_told_so_by_the_server(pg_url: str) -> None:
    with open_storage(pg_url, timeout=0.2) as hasty, psycopg.connect(pg_url) as locking:
        locking.execute("lock table forge.queue")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(database, "SILENCE", 30.0)
            with pytest.raises(DatabaseError, match=r"took more than 0\.2 s"):
                hasty.set_queue("letters")


def test_what_people_ask_for_may_take_longer_than_a_silence(pg_url: str) -> None:
    with open_storage(pg_url, timeout=0.2) as hasty, psycopg.connect(pg_url) as locking, ThreadPoolExecutor(4) as pool:
        hasty.enqueue([plain_job()])
        locking.execute("lock table forge.job, forge.job_history in access exclusive mode")
        asked: list[Future[Any]] = [pool.submit(hasty.counts), pool.submit(hasty.ended_counts)]
        with psycopg.connect(pg_url, autocommit=True) as looking:
            waited = (
                "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
                " and clock_timestamp() - query_start > interval '1 s'"
            )
            while looking.execute(waited).fetchall() != [(2,)] and not any(each.done() for each in asked):
                time.sleep(0.01)
        locking.rollback()
        assert asked[0].result(60)["letters"].pending == 1
        assert asked[1].result(60) == {}


@pytest.mark.parametrize("piece", [0, 2])
def test_a_look_for_lost_claims_is_not_waited_for_longer_than_any_statement(
    proxy: Proxy, pg_url: str, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """It reads the whole table, and until it is over nothing is claimed: it is made in pieces, and whichever of them is
    not answered, it is made again on another connection."""
    monkeypatch.setattr(claims, "PAGES_AT_ONCE", 1)
    silent = iter([False] * (1 + piece) + [True])  # first its size is asked for

    def pipeline(conn: PostgresConnection, steps: Any) -> Any:
        if next(silent, False):
            proxy.fall_silent()
        return database.pipeline(conn, steps)

    with open_storage(proxy.url, timeout=LIMIT) as storage, ThreadPoolExecutor(1) as pool:
        who = storage.register("ada", ["letters"], "north", 1)
        storage.enqueue(plain_jobs(200))
        lost = storage.claim(who, "letters", 150)
        who.doubtful[lost[0].token] = [0.0]
        monkeypatch.setattr(claims, "pipeline", pipeline)
        again = pool.submit(storage.claim, who, "letters", 300)
        assert len(again.result(60)) == 200
        assert next(silent, None) is None
        assert sorted(each.id for each in storage.claims_of(who.pod.id)) == sorted(ids(again.result()))
    check_whole(pg_url)


def test_a_row_that_moves_while_all_are_looked_at_is_found_once(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "PAGES_AT_ONCE", 1)
    with open_storage(pg_url) as storage, psycopg.connect(pg_url, autocommit=True) as other:
        who = storage.register("ada", ["letters"], "north", 1)
        storage.enqueue(plain_jobs(200))
        claimed = storage.claim(who, "letters", 200)

        def pipeline(conn: PostgresConnection, steps: Any) -> Any:
            found = database.pipeline(conn, steps)
            other.execute("update forge.job set payload = to_json(repeat(md5(random()::text), 50))")
            return found

        monkeypatch.setattr(claims, "pipeline", pipeline)
        assert sorted(ids(storage.claims_of(who.pod.id))) == sorted(ids(claimed))


def test_a_producer_that_is_slow_over_its_jobs_is_not_taken_for_a_silent_server(pg_url: str) -> None:
    with open_storage(pg_url, timeout=0.2) as storage:

        def jobs() -> Iterator[Any]:
            for n in range(4100):
                if n == 4050:
                    time.sleep(1.5)  # longer than any statement may take
                yield plain_job()

        assert len(storage.enqueue(jobs())) == 4100
        assert storage.counts()["letters"].pending == 4100


ANSWER = 11  # bytes of the answer to a probe


def unread(listener: Listener) -> int:
    """Bytes that have come in."""
    fd = listener.fileno()
    assert fd is not None
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_listener_notices_that_nobody_is_there_and_listens_again(proxy: Proxy, pg_url: str) -> None:
    with open_storage(proxy.url, timeout=LIMIT) as storage, open_storage(pg_url) as other:
        storage.set_queue("letters")
        listener = storage.listen()
        try:
            assert listener.wait(0) == {"*"}
            for _ in range(3):
                listener.probe()
                assert listener.wait(60) == set(), "the answer, which makes it readable"
                while listener._asked:  # type: ignore[attr-defined]  # the answer comes in pieces
                    listener.wait(60)
                listener.probe()
                while unread(listener) < ANSWER:
                    time.sleep(0.001)
                other.enqueue([plain_job()])
                while unread(listener) == ANSWER:
                    time.sleep(0.001)
                assert listener.wait(0) == {"letters"}, "with the answer before it"
            proxy.fall_silent()
            listener.probe()
            assert listener.wait(0.2) == set()
            listener.probe()
            with pytest.raises(DatabaseError):
                listener.wait(60)
            assert listener.wait(0) == {"*"}
            other.enqueue([plain_job()])
            assert listener.wait(60) == {"letters"}
        finally:
            listener.close()


def test_a_listener_that_falls_silent_while_it_connects_is_not_waited_for(proxy: Proxy) -> None:
    with open_storage(proxy.url, timeout=LIMIT) as storage:
        listener = storage.listen()
        with pytest.MonkeyPatch.context() as patch:
            made = PostgresConnection.connect

            def silent(*args: Any, **kwargs: Any) -> Any:
                conn = made(*args, **kwargs)
                proxy.fall_silent()
                return conn

            patch.setattr(PostgresConnection, "connect", silent)
            patch.setattr(database, "TIMEOUT", LIMIT)
            patch.setattr(listener._db, "_timeout", LIMIT)  # type: ignore[attr-defined]
            with pytest.raises(DatabaseError, match="has not answered"):
                listener.wait(0)
        assert listener.wait(0) == {"*"}
        listener.close()


# -- the pool


def test_who_waits_for_a_connection_is_served_in_turn(pg_url: str) -> None:
    order: list[int] = []
    pool = ConnectionPool(lambda: PostgresConnection.connect(pg_url), 1, 60.0, None)
    held = pool.take()

    def wait(n: int) -> None:
        conn = pool.take()
        order.append(n)
        pool.give_back(conn, fine=True)

    waiting = [threading.Thread(target=wait, args=(n,)) for n in range(5)]
    for n, thread in enumerate(waiting):
        thread.start()
        while len(pool._waiting) <= n:
            time.sleep(0.001)
    pool.give_back(held, fine=True)
    for thread in waiting:
        thread.join(60)
    assert order == list(range(5))
    assert pool.size == 1
    pool.close()
    assert pool.size == 0


def test_a_connection_that_cannot_be_made_or_is_broken_leaves_its_place_to_who_waits(pg_url: str) -> None:
    fails = [True]

    def make() -> PostgresConnection:
        if fails.pop():
            raise psycopg.OperationalError("not yet")
        return PostgresConnection.connect(pg_url)

    pool = ConnectionPool(make, 1, 60.0, None)
    with pytest.raises(psycopg.OperationalError, match="not yet"):
        pool.take()
    assert pool.size == 0
    fails[:] = [False, False]
    held = pool.take()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.take)
        while not pool._waiting:
            time.sleep(0.001)
        pool.give_back(held, fine=False)
        conn = waiting.result(60)
    assert held.closed and conn is not held and pool.size == 1
    pool.close()
    pool.give_back(conn, fine=True)
    assert conn.closed and pool.size == 0


def test_who_has_waited_long_enough_for_a_connection_is_told_that_all_are_in_use(pg_url: str) -> None:
    pool = ConnectionPool(lambda: PostgresConnection.connect(pg_url), 1, 0.1, None)
    held = pool.take()
    with pytest.raises(PoolBusyError, match=r"all 1 connections have been in use for 0\.1 s"):
        pool.take()
    pool.give_back(held, fine=True)
    assert pool.take() is held
    pool.close()
    held.close()


def test_connections_that_nobody_uses_are_closed_after_a_while(pg_url: str) -> None:
    open_ = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'forge'"
    with open_storage(pg_url, keep=0.3) as storage, psycopg.connect(pg_url, autocommit=True) as looking:
        for _ in range(2):
            storage.enqueue([plain_job()])
            storage.claim(storage.register("ada", ["letters"], "north", 1), "letters", 1)
            end = time.monotonic() + 60
            while looking.execute(open_).fetchall() != [(0,)]:
                assert time.monotonic() < end
                time.sleep(0.01)
            assert storage.metrics.connections() == 0
