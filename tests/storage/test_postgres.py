"""What only PostgreSQL has: schemas of other names, and backends that are terminated under a verb."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import psycopg
import pytest

from forge.errors import ConfigError, DatabaseError
from forge.job import Deduped, Done, Ending, Enqueued, JobFilter, Status
from forge.storage import Storage, open_storage
from forge.storage.contract import Incarnation, LowWater, Reaped, Want
from forge.storage.contract.shares import ShareChange
from forge.storage.postgres import claims, database

from .helpers import (
    age,
    check_whole,
    claimed,
    end,
    full_job,
    ids,
    lead,
    new_id,
    plain_job,
    plain_jobs,
    sql,
    statuses,
    told,
)

pytestmark = pytest.mark.impl_free

TERMINATE = """select pg_terminate_backend(pid) from pg_stat_activity
                where datname = current_database() and application_name = 'forge'"""

WAITING = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


def test_forge_can_live_in_a_schema_of_another_name(empty_pg_url: str) -> None:
    with open_storage(empty_pg_url, schema="other") as storage:
        assert storage.migrate() != []
        storage.check_schema()
        who = storage.register("ada", ["letters"], "north", 4711)
        new = full_job()
        storage.enqueue([new, *plain_jobs(50)])
        claims = storage.claim(who, "letters", 100)
        assert len(claims) == 51
        end(storage, claims)
        assert storage.retry([new.id]) == {new.id}
        assert storage.cancel([new.id]) == {new.id: "cancelled"}
        assert storage.set_queue("letters", paused=True).paused
        assert storage.prune().deleted == 0
        assert len(storage.find(JobFilter()).jobs) == 50
    with psycopg.connect(empty_pg_url) as conn:
        found = conn.execute("select distinct table_schema from information_schema.tables where table_name = 'job'")
        assert found.fetchall() == [("other",)]
        assert conn.execute("select to_regnamespace('forge')").fetchall() == [(None,)]


def test_two_schemas_of_one_database_know_nothing_of_each_other(pg_url: str) -> None:
    with open_storage(pg_url) as here, open_storage(pg_url, schema="second") as there:
        there.migrate()
        try:
            first, second = full_job(), full_job(dedupe_key="mine")
            here.enqueue([first])
            there.enqueue([second._replace(dedupe_key=first.dedupe_key)])
            assert here.get(ids([first, second])).keys() == {first.id}
            assert there.get(ids([first, second])).keys() == {second.id}
            assert woken_elsewhere(here, there) == set()
        finally:
            with psycopg.connect(pg_url) as conn:
                conn.execute("drop schema second cascade")


def woken_elsewhere(here: Storage, there: Storage) -> set[str]:
    """What a listener hears of an enqueue in another schema; its own enqueue, sent after, ends the wait."""
    listener = there.listen()
    try:
        listener.wait(0)
        here.enqueue([plain_job("elsewhere")])
        there.enqueue([plain_job("own")])
        return listener.wait(10) - {"own"}
    finally:
        listener.close()


@pytest.mark.parametrize("name", ["", "Other", "a b", 'a"b', "a;drop table x", "ä", "1st", "x" * 60])
def test_a_schema_name_that_needs_quoting_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="schema"):
        open_storage("postgresql:///nothing", schema=name)


def test_an_unreachable_server_is_one_line_without_the_password() -> None:
    with (
        open_storage("postgresql://someone:hunter2@127.0.0.1:1/nothing") as storage,
        pytest.raises(DatabaseError) as caught,
    ):
        storage.now()
    assert "hunter2" not in str(caught.value) + storage.url
    assert "\n" not in str(caught.value)


def test_a_listener_hears_only_of_queues_that_want_wake_ups(pg_url: str) -> None:
    with open_storage(pg_url) as storage:
        storage.set_queue("letters")
        storage.set_wake("letters", False)
        listener = storage.listen()
        try:
            listener.wait(0)
            storage.enqueue([plain_job()])
            storage.enqueue(plain_jobs(100))
            storage.enqueue([plain_job("parcels")])
            heard = listener.wait(10)
        finally:
            listener.close()
    assert heard == {"parcels"}


def test_every_verb_survives_the_loss_of_all_connections_before_it(pg_url: str) -> None:
    with open_storage(pg_url, pool_size=1) as storage, psycopg.connect(pg_url, autocommit=True) as killer:
        for verb in every_verb(storage):
            assert len(killer.execute(TERMINATE).fetchall()) >= 1
            verb()


def every_verb(storage: Storage) -> list[Callable[[], Any]]:
    """Each verb once, with something to do."""
    who = storage.register("ada", ["letters"], "north", 4711)
    held = claimed(storage, who)
    first, second, waiting = full_job(), plain_job(), plain_job(delay=50)
    storage.enqueue([first, second, waiting])
    return [
        lambda: storage.enqueue([full_job()]),
        lambda: storage.enqueue(plain_jobs(100)),
        lambda: storage.enqueue([full_job(dedupe_key=first.dedupe_key, on_conflict="replace")]),
        lambda: storage.claim(who, "letters", 1),
        lambda: end(storage, [held]),
        lambda: storage.exchange(who, [], [Want("letters", 2, LowWater())]),
        lambda: storage.beat(who),
        lambda: storage.pods(),
        lambda: storage.cancel([waiting.id]),
        lambda: storage.cancel_requests(who),
        lambda: storage.retry([waiting.id]),
        lambda: storage.requeue([new_id()]),
        lambda: storage.get([first.id]),
        lambda: storage.find(JobFilter()),
        lambda: storage.counts(),
        lambda: storage.ended_counts(),
        lambda: storage.set_queue("letters", paused=False),
        lambda: storage.queues(),
        lambda: storage.set_wake("letters", True),
        lambda: storage.prune(),
        lambda: storage.delete([waiting.id]),
        lambda: storage.release(who.pod.id),
        lambda: storage.reap(),
        lambda: storage.register("bob", [], "south", 1),
        lambda: storage.deregister(who),
        lambda: storage.now(),
    ]


def test_statements_that_were_prepared_and_deallocated_are_prepared_again(pg_url: str) -> None:
    """psycopg does so itself when it rolls back, as after a child that could not be stored."""
    with open_storage(pg_url) as storage:
        who = storage.register("a", ["letters"], "here", 1)
        for _ in range(3):
            parent = claimed(storage, who)
            for _ in range(2):
                broken = plain_job("parcels", payload=b"{not JSON")
                with pytest.raises(DatabaseError, match="type json"):
                    storage.finalize([Ending(parent, Done(), children=(broken,))])
            assert storage.finalize([Ending(parent, Done())]) == []


def test_a_restart_that_ends_more_connections_than_a_verb_has_tries_costs_no_verb(pg_url: str) -> None:
    with open_storage(pg_url, pool_size=8) as storage, psycopg.connect(pg_url, autocommit=True) as killer:
        with psycopg.connect(pg_url) as blocker, ThreadPoolExecutor(8) as pool:
            blocker.execute("lock table forge.pod")
            waiting = [pool.submit(storage.pods) for _ in range(8)]
            while len(killer.execute(WAITING).fetchall()) < 8:
                time.sleep(0.01)
            blocker.rollback()
            assert [found.result() for found in waiting] == [[]] * 8
        assert len(killer.execute(TERMINATE).fetchall()) == 8
        assert storage.pods() == []


def test_jobs_survive_backends_that_are_terminated_under_every_verb(pg_url: str) -> None:
    with Killer(pg_url) as killer, open_storage(pg_url, pool_size=2) as storage:
        who = storage.register("ada", ["letters"], "north", 4711)
        acknowledged = []
        for number in range(12):
            jobs = [*plain_jobs(7), full_job(unique_for=None, dedupe_key=f"k{number}")]
            killer.may_strike()
            assert told(storage.enqueue(jobs)) == told([Enqueued(job.id) for job in jobs])
            acknowledged += ids(jobs)
            killer.may_strike()
            claims = storage.claim(who, "letters", 20)
            killer.may_strike()
            storage.finalize([Ending(claim, Done()) for claim in claims])
        killer.stop()
        for _ in range(5000):  # claims whose answer was lost come again
            storage.finalize([Ending(claim, Done()) for claim in storage.claim(who, "letters", 100)])
            if not storage.counts():
                break
        found = storage.get(acknowledged)
        assert [found.get(i) for i in acknowledged if i not in found or found[i].status != Status.DONE] == []
        assert {job.attempts for job in found.values()} == {1}
    check_whole(pg_url)


class Killer:
    """A thread that terminates forge's backends, at most once per verb: a verb is tried four times, not forever."""

    def __init__(self, url: str) -> None:
        self._conn = psycopg.connect(url, autocommit=True)
        self._random = random.Random(5)
        self._verbs: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run)

    def may_strike(self) -> None:
        """A verb begins: perhaps it will be hit, in its middle or not."""
        if self._random.random() < 0.5:
            self._verbs.put(self._random.uniform(0, 0.005))

    def stop(self) -> None:
        self._verbs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (pause := self._verbs.get()) is not None:
            time.sleep(pause)
            self._conn.execute(TERMINATE)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._conn.close()


def test_a_key_raced_for_by_threads_of_one_storage_is_won_once(pg_url: str) -> None:
    answers = list[Any]()
    with open_storage(pg_url, pool_size=4) as storage:
        threads = [
            threading.Thread(target=lambda: answers.extend(storage.enqueue([full_job(dedupe_key="k")])))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (winner,) = [answer for answer in answers if isinstance(answer, Enqueued)]
    assert [answer.id for answer in answers if isinstance(answer, Deduped)] == [winner.id] * 7


# -- how a pod goes


@pytest.fixture
def pg_storage(pg_url: str) -> Iterator[Storage]:
    with open_storage(pg_url) as storage:
        yield storage


def test_a_pod_that_is_claiming_is_not_reaped_and_its_claim_not_missed(pg_storage: Storage, pg_url: str) -> None:
    who = pg_storage.register("ada", ["letters"], "north", 4711)
    pg_storage.enqueue(plain_jobs(2))
    with psycopg.connect(pg_url) as conn:  # as a claim that has begun
        conn.execute("select from forge.pod where id = %s for key share", (who.pod.id,))
        assert pg_storage.reap(stale=-1) == Reaped([], 0)
        assert pg_storage.beat(who)
    assert len(pg_storage.claim(who, "letters", 2)) == 2
    assert pg_storage.reap(stale=-1) == Reaped([who.pod.id], 2)


def test_a_pod_that_was_marked_claims_nothing_and_is_removed_by_the_next_who_looks(
    pg_storage: Storage, pg_url: str
) -> None:
    who = pg_storage.register("ada", ["letters"], "north", 4711)
    pg_storage.enqueue(plain_jobs(3))
    assert len(pg_storage.claim(who, "letters", 1)) == 1
    sql(pg_url, "update {pod} set reaped_at = now()")  # by somebody who died then
    assert pg_storage.claim(who, "letters", 1) == []
    assert pg_storage.beat(who) is False
    assert pg_storage.pods() == []
    assert pg_storage.reap(stale=60) == Reaped([], 0), "it may still be at work"
    age(pg_url, "pod", "reaped_at", 60)
    assert pg_storage.reap(stale=60) == Reaped([who.pod.id], 1)
    assert sql(pg_url, "select count(*) from {pod}") == [(0,)]


def test_a_pod_that_somebody_is_about_to_remove_has_no_part_in_its_queues(pg_storage: Storage, pg_url: str) -> None:
    shares, who, other = pg_storage.shares, *(pg_storage.register(name, ["letters"], "north", 1) for name in "ab")
    pg_storage.set_queue("letters", max_workers=10)
    lead(pg_url, 3)
    shares.assign(3, [ShareChange(who.pod.id, "letters", 5), ShareChange(other.pod.id, "letters", 5)])
    assert [shares.look(pod, {"letters": 5}) for pod in (who, other)] == [{"letters": 5}] * 2
    sql(pg_url, f"update {{pod}} set reaped_at = now() where id = {other.pod.id}")
    assert shares.beat(other, {"letters": 5}) is None
    assert shares.look(other, {"letters": 4}) == {}
    assert shares.look(who, {"letters": 5}) == {"letters": 10}, "nobody else has any"
    found = shares.cluster()
    assert ([pod.id for pod in found.pods], [share.pod for share in found.shares]) == ([who.pod.id], [who.pod.id])
    shares.assign(3, [ShareChange(other.pod.id, "letters", 7)])
    assert sql(pg_url, f"select workers, running from {{share}} where pod = {other.pod.id}") == [(5, 5)]
    pg_storage.serve(who, [])
    assert shares.undeclared() == {"letters": False}


def test_a_pod_that_leaves_looks_for_its_claims_only_if_it_may_have_some(pg_storage: Storage, pg_url: str) -> None:
    def looks() -> int:
        sql(pg_url, "select pg_stat_force_next_flush()")
        ((seen,),) = sql(pg_url, "select sum(seq_scan) from pg_stat_user_tables where relname = 'job'")
        return int(seen)

    pg_storage.enqueue(plain_jobs(20))
    leaving = [pg_storage.register(name, ["letters"], "north", 1) for name in "ab"]
    end(pg_storage, pg_storage.claim(leaving[0], "letters", 5))
    kept = pg_storage.claim(leaving[1], "letters", 5)
    end(pg_storage, kept[1:])
    before = looks()
    assert pg_storage.deregister(leaving[0]) == 0
    pg_storage.close()
    assert looks() == before
    assert pg_storage.deregister(leaving[1]) == 1
    assert pg_storage.deregister(Incarnation(leaving[0].pod)) == 0, "one that others made, and that is gone"
    assert statuses(pg_storage, [kept[0].id]) == [Status.PENDING]


def test_a_claim_that_was_in_doubt_does_not_hide_the_others_from_a_pod_that_leaves(
    pg_storage: Storage, pg_url: str
) -> None:
    who = pg_storage.register("ada", ["letters"], "north", 1)
    pg_storage.enqueue(plain_jobs(6))
    kept = pg_storage.claim(who, "letters", 3)
    with open_storage(pg_url) as elsewhere:  # as one whose answer never came
        lost = elsewhere.claim(who, "letters", 3)
    who.doubtful[lost[0].token] = [0.0]
    assert pg_storage.claim(who, "nothing", 1) == []
    assert who.doubtful == {}
    assert statuses(pg_storage, ids(lost)) == [Status.PENDING] * 3
    assert pg_storage.deregister(who) == 3
    assert statuses(pg_storage, ids(kept)) == [Status.PENDING] * 3


def test_a_reaper_may_take_longer_over_a_large_table_than_over_a_statement(
    pg_storage: Storage, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read in pieces, each of which is made to take half of the time that a statement has."""
    limit, pieces = 2.0, list[int]()

    def pipeline(conn: database.PostgresConnection, steps: Any) -> Any:
        pieces.append(1)
        conn.execute("select pg_sleep(%s)", (limit / 2,))
        return database.pipeline(conn, steps)

    monkeypatch.setattr(claims, "PAGES_AT_ONCE", 1)
    monkeypatch.setattr(claims, "pipeline", pipeline)
    who = pg_storage.register("ada", ["letters"], "north", 1)
    pg_storage.enqueue(plain_jobs(150))
    assert len(pg_storage.claim(who, "letters", 150)) == 150
    with open_storage(pg_url, timeout=limit) as hasty:
        assert hasty.reap(-1.0) == Reaped([who.pod.id], 150)
    assert len(pieces) > 3


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_connection_that_is_kept_starves_nobody(pg_url: str, size: int) -> None:
    """One is kept between verbs; whoever waits for a connection meanwhile gets it."""
    with open_storage(pg_url, pool_size=size) as storage, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(lambda: [storage.pods() for _ in range(50)]) for _ in range(8)]
        assert all(len(each.result(timeout=60)) == 50 for each in asked)
        open_ = (
            "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'forge'"
        )
        assert sql(pg_url, open_)[0][0] <= size


def test_a_connection_that_died_while_it_was_kept_is_replaced(pg_url: str) -> None:
    with open_storage(pg_url, pool_size=2) as storage, psycopg.connect(pg_url, autocommit=True) as killer:
        for _ in range(5):
            assert storage.pods() == []
            killer.execute(TERMINATE)
        assert storage.pods() == []
