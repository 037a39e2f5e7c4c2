"""The lease: one holder at a time, terms that only grow, and writes that are refused once their term is over."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import apsw
import psycopg
import pytest

from forge.errors import DatabaseError, LostLease
from forge.job import Status
from forge.storage import Storage, open_storage
from forge.storage.contract import Incarnation
from forge.storage.contract.leases import Holder, Leader, LeaseAnswer
from forge.storage.postgres import PostgresStorage
from forge.storage.postgres.database import PostgresConnection

from .helpers import age, during, end, is_sqlite, long_ago, plain_jobs, sql

pytestmark = pytest.mark.impl_free

TTL = 60.0


def holder(key: str = "a", pod: int | None = None) -> Holder:
    return Holder(key, pod, f"host-{key}", 4711 + ord(key[0]))


def lead(storage: Storage, key: str = "a", pod: int | None = None) -> int:
    term = storage.leases.acquire(holder(key, pod), TTL).term
    assert term is not None
    return term


def expire(url: str) -> None:
    for column in ("until", "renewed_at"):
        age(url, "leader", column, TTL + 1)


def test_whoever_comes_first_leads_and_others_are_told_how_long(storage: Storage) -> None:
    first = storage.leases.acquire(holder("a"), TTL)
    assert first.term is not None
    other = storage.leases.acquire(holder("b"), TTL)
    assert other.term is None
    assert 0 < other.left <= TTL
    assert storage.leases.renew(first.term, holder("a"), TTL)


def test_the_leader_is_known_to_all_and_nobody_leads_otherwise(storage: Storage, url: str, who: Incarnation) -> None:
    assert storage.leases.leader() is None
    with during(storage) as when:
        term = lead(storage, "a", who.pod.id)
    assert storage.leases.leader() == Leader(term, who.pod.id, "host-a", 4808, when, when + TTL)
    expire(url)
    assert storage.leases.leader() is None


def test_a_lease_that_has_lapsed_is_taken_under_a_higher_term(storage: Storage, url: str) -> None:
    first = lead(storage, "a")
    expire(url)
    second = lead(storage, "b")
    assert second > first
    assert not storage.leases.renew(first, holder("a"), TTL)
    assert storage.leases.renew(second, holder("b"), TTL)


def test_one_that_lapsed_and_was_not_taken_can_be_renewed(storage: Storage, url: str) -> None:
    term = lead(storage, "a")
    expire(url)
    assert storage.leases.renew(term, holder("a"), TTL)
    assert storage.leases.acquire(holder("b"), TTL).term is None


def test_one_that_was_given_back_is_free_at_once(storage: Storage) -> None:
    first = lead(storage, "a")
    storage.leases.release(first)
    assert storage.leases.leader() is None
    assert not storage.leases.renew(first, holder("a"), TTL)
    second = lead(storage, "b")
    assert second > first
    storage.leases.release(first)  # too late to matter
    assert storage.leases.renew(second, holder("b"), TTL)


def test_who_asks_again_because_the_answer_was_lost_gets_another_term(storage: Storage) -> None:
    first = lead(storage, "a")
    assert lead(storage, "a") > first
    with pytest.raises(LostLease):
        storage.leases.check(first)


def test_the_lease_of_a_pod_that_is_no_more_is_free(storage: Storage, who: Incarnation) -> None:
    first = lead(storage, "a", who.pod.id)
    assert storage.leases.acquire(holder("b"), TTL).term is None
    storage.deregister(who)
    assert lead(storage, "b") > first


def test_a_pod_that_became_another_one_keeps_it_by_renewing(
    storage: Storage, who: Incarnation, other: Incarnation
) -> None:
    term = lead(storage, "a", who.pod.id)
    storage.leases.renew(term, holder("a", other.pod.id), TTL)
    storage.deregister(who)
    assert storage.leases.acquire(holder("b"), TTL).term is None


def test_a_clock_set_back_by_an_hour_does_not_leave_the_cluster_without_a_leader_for_an_hour(
    storage: Storage, url: str
) -> None:
    first = lead(storage, "a")
    for column in ("until", "renewed_at"):
        age(url, "leader", column, -3600)
    assert lead(storage, "b") > first


def test_a_statement_that_began_a_little_earlier_does_not_take_a_fresh_lease(storage: Storage, url: str) -> None:
    lead(storage, "a")
    for column in ("until", "renewed_at"):
        age(url, "leader", column, -5)
    assert storage.leases.acquire(holder("b"), TTL).term is None


# -- writes that carry a term --------------------------------------------------------------------------------------


def old_jobs(storage: Storage, url: str, who: Incarnation, n: int) -> None:
    storage.enqueue([long_ago(job) for job in plain_jobs(n)])
    end(storage, storage.claim(who, "letters", n))
    age(url, "job_history", "finished_at", 30 * 86_400)


def test_a_write_of_the_term_that_stands_is_done(storage: Storage, url: str, who: Incarnation) -> None:
    old_jobs(storage, url, who, 3)
    assert storage.prune(10, term=lead(storage))[:3] == (3, 3, None)


def over_by_takeover(storage: Storage, url: str) -> int:
    term = lead(storage, "a")
    expire(url)
    lead(storage, "b")
    return term


def over_by_release(storage: Storage, url: str) -> int:
    term = lead(storage, "a")
    storage.leases.release(term)
    return term


def not_yet_issued(storage: Storage, url: str) -> int:
    return lead(storage, "a") + 1


@pytest.mark.parametrize("how", [over_by_takeover, over_by_release, not_yet_issued])
def test_a_write_of_any_other_term_changes_nothing(
    storage: Storage, url: str, who: Incarnation, how: Callable[[Storage, str], int]
) -> None:
    old_jobs(storage, url, who, 3)
    sql(url, "insert into {job_key} (key, job_id, held_until) select 'k', id, finished_at from {job_history} limit 1")
    term = how(storage, url)
    for n in (2, 10):  # with and without the keys at the end
        with pytest.raises(LostLease, match=f"term {term} is over, another pod may lead; nothing was written"):
            storage.prune(n, term=term)
    with pytest.raises(LostLease):
        storage.leases.check(term)
    assert storage.ended_counts() == {"letters": {Status.DONE: 3}}
    assert sql(url, "select count(*) from {job_key}") == [(1,)]
    assert storage.prune(10)[:3] == (3, 3, None)  # whoever prunes by hand needs no term


# -- races ---------------------------------------------------------------------------------------------------------


def race(url: str, name: str, wanted: int, answers: Any) -> None:
    """Ask until it was granted so often, and give it back at once each time."""
    with open_storage(url, pool_size=1) as storage:
        granted: list[int] = []
        while len(granted) < wanted:
            term, _left = storage.leases.acquire(holder(name), TTL)
            if term is not None:
                storage.leases.check(term)  # nobody else can have taken it
                granted.append(term)
                storage.leases.release(term)
    answers.put((name, granted))


def together(starts: list[Any], answers: Any) -> list[int]:
    for each in starts:
        each.start()
    found = [answers.get(timeout=60) for _ in starts]
    for each in starts:
        each.join(60)
    for _, granted in found:
        assert granted == sorted(set(granted)), "terms only grow"
    return [term for _, granted in found for term in granted]


def test_of_many_threads_that_ask_at_once_each_term_has_one_holder(url: str, storage: Storage) -> None:
    before = storage.leases.acquire(holder("z"), TTL).term
    assert before is not None
    storage.leases.release(before)
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    names = "abcdefghijkl"
    terms = together([threading.Thread(target=race, args=(url, name, 4, answers)) for name in names], answers)
    assert sorted(terms) == list(range(before + 1, before + 1 + 4 * len(names)))


def test_of_many_processes_that_ask_at_once_each_term_has_one_holder(url: str, storage: Storage) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    terms = together([context.Process(target=race, args=(url, name, 10, answers)) for name in "abcd"], answers)
    assert len(set(terms)) == len(terms) == 40


def test_of_many_that_find_it_lapsed_exactly_one_leads(url: str, storage: Storage) -> None:
    lead(storage, "z")
    for _ in range(5):
        expire(url)
        start, answers = threading.Barrier(8), list[LeaseAnswer]()

        def ask(name: str, start: threading.Barrier = start, answers: list[LeaseAnswer] = answers) -> None:
            with open_storage(url, pool_size=1) as own:
                own.leases.leader()  # connected
                start.wait(60)
                answers.append(own.leases.acquire(holder(name), TTL))

        threads = [threading.Thread(target=ask, args=(name,)) for name in "abcdefgh"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(answer.term is not None for answer in answers) == [False] * 7 + [True]


# -- PostgreSQL's locks and timeouts -------------------------------------------------------------------------------


@contextmanager
def leaders_write(pg_url: str, term: int) -> Any:
    """A leader's transaction that has not come to its end."""
    with psycopg.connect(pg_url) as conn:
        conn.execute("select from forge.leader where term = %s and holder is not null for key share", (term,))
        yield conn


def test_a_takeover_waits_for_the_writes_of_the_term_and_a_renewal_does_not(pg_url: str) -> None:
    with open_storage(pg_url) as storage, open_storage(pg_url, timeout=0.3) as hasty:
        term = lead(storage, "a")
        with leaders_write(pg_url, term) as conn:
            assert storage.leases.renew(term, holder("a"), TTL)
            expire(pg_url)
            with pytest.raises(DatabaseError, match=r"took more than 0\.3 s"):
                hasty.leases.acquire(holder("b"), TTL)
            conn.commit()
        assert lead(hasty, "b") > term


def test_a_leader_that_was_stopped_in_the_middle_of_a_write_is_cut_off_by_the_server(pg_url: str) -> None:
    with open_storage(pg_url) as storage, open_storage(pg_url, timeout=0.3) as paused:
        assert isinstance(paused, PostgresStorage)
        first = lead(storage, "a")
        writing, woken = threading.Event(), threading.Event()
        ended: list[object] = []

        def write() -> None:
            def work(conn: PostgresConnection) -> None:
                writing.set()
                woken.wait(60)
                conn.execute("insert into forge.queue (name) values ('written too late')")

            try:
                paused._led(first, work)
            except LostLease as e:
                ended.append(e)

        thread = threading.Thread(target=write)
        thread.start()
        assert writing.wait(60)
        expire(pg_url)
        assert lead(storage, "b") > first  # once the server has lost patience
        woken.set()
        thread.join(60)
        assert len(ended) == 1
        assert storage.queues() == {}


def test_every_statement_has_a_timeout_if_asked_for(url: str, storage: Storage) -> None:
    if is_sqlite(url):
        conn: Any = apsw.Connection(url.removeprefix("sqlite:///"))
        conn.execute("begin immediate")
    else:
        conn = psycopg.connect(url)
        conn.execute("lock table forge.queue, forge.leader, forge.pod in access exclusive mode")
    try:
        with open_storage(url, timeout=0.2) as hasty:
            for verb in (lambda: hasty.set_queue("q"), lambda: hasty.reap(60), lambda: lead(hasty)):
                with pytest.raises(DatabaseError, match=r"took more than|kept it locked for"):
                    verb()
    finally:
        conn.close()


def test_a_term_outlives_the_crash_of_a_database_that_does_not_wait_for_its_disk(pg_url: str) -> None:
    """It is on disk before it is known, whatever the connection is set to."""
    slack = pg_url + "&options=-c%20synchronous_commit%3Doff"
    with open_storage(slack) as storage, psycopg.connect(pg_url, autocommit=True) as conn:
        lead(storage, "a")
        row = conn.execute("select pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()").fetchone()
        assert row is not None and row[0]


def test_whoever_gives_it_back_wakes_the_others(pg_url: str) -> None:
    with open_storage(pg_url) as storage:
        term, listener = lead(storage, "a"), storage.listen()
        assert listener.wait(0) == {"*"}
        storage.leases.release(term)
        assert listener.wait(10) == {"leader:"}
        storage.leases.release(term)
        assert listener.wait(0.1) == set()
        listener.close()


def test_a_lease_whose_row_was_removed_can_be_had_again_under_a_higher_term(storage: Storage, url: str) -> None:
    first = lead(storage)
    sql(url, "delete from {leader}")
    assert storage.leases.leader() is None
    assert not storage.leases.renew(first, holder(), TTL)
    storage.leases.release(first)
    second = lead(storage)
    assert second > first
    with pytest.raises(LostLease):
        storage.leases.check(first)
    storage.leases.check(second)
