"""Offers: a job that is stored while a pod stands ready is that pod's claim from the first moment. PostgreSQL alone has
them; elsewhere none is taken, and everything goes its usual way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import psycopg
import pytest

from forge.job import Claim, NewJob, Status
from forge.storage import Storage, open_storage
from forge.storage.contract import Incarnation
from forge.storage.contract.listener import Listener
from forge.storage.shared.plans import run_plan

from .helpers import age, end, one, plain_job, plain_jobs, statuses

SOON = 10.0  # seconds that something sent is waited for


@pytest.fixture
def storage(pg_url: str) -> Iterator[Storage]:
    with open_storage(pg_url) as found:
        yield found


@pytest.fixture
def who(storage: Storage) -> Incarnation:
    return storage.register("ada", ["letters"], "north", 4711)


@pytest.fixture
def listener(storage: Storage) -> Iterator[Listener]:
    found = storage.listen()
    assert found.wait(0) == {"*"}
    yield found
    found.close()


def offer(storage: Storage, who: Incarnation, listener: Listener, beat_within: float = 60.0) -> int:
    token = who.mint()
    assert listener.channel is not None
    assert storage.offer(who, token, "letters", listener.channel, beat_within)
    return token


def heard(listener: Listener) -> list[Claim]:
    """The next that come."""
    listener.wait(SOON)
    return listener.pushed()


def offers(url: str) -> list[int]:
    with psycopg.connect(url) as conn:
        return [row[0] for row in conn.execute("select claim from forge.offer order by number")]


def test_a_job_that_is_stored_goes_to_the_pod_that_offered_to_take_it(
    storage: Storage, who: Incarnation, listener: Listener, pg_url: str
) -> None:
    token = offer(storage, who, listener)
    new = plain_job(payload='{"text":"a\\nb ü"}'.encode(), priority=3, max_attempts=7, timeout=9, keep_result=60)
    storage.enqueue([new])
    (claim,) = heard(listener)
    assert (claim.id, claim.token, claim.queue, claim.kind, claim.payload) == (
        new.id,
        token,
        new.queue,
        new.kind,
        new.payload,
    )
    assert (claim.priority, claim.attempt, claim.max_attempts, claim.timeout, claim.keep_result) == (3, 1, 7, 9, True)
    assert not claim.keyed
    job = one(storage, new.id)
    assert (job.status, job.attempts, job.pod) == (Status.IN_PROGRESS, 1, who.pod.id)
    assert job.claimed_at is not None
    assert storage.claim(who, "letters", 10) == []
    assert offers(pg_url) == []
    end(storage, [claim])
    assert statuses(storage, [new.id]) == [Status.DONE]
    assert storage.deregister(who) == 0


def test_times_compare_with_those_of_ordinary_claims(storage: Storage, who: Incarnation, listener: Listener) -> None:
    offer(storage, who, listener)
    storage.enqueue([plain_job()])
    storage.enqueue([plain_job()])
    (first,) = heard(listener)
    (second,) = storage.claim(who, "letters", 1)
    assert 0 <= second.run_at - first.run_at < 600_000_000


def test_one_offer_is_one_job(storage: Storage, who: Incarnation, listener: Listener) -> None:
    token = offer(storage, who, listener)
    jobs = plain_jobs(24)
    start = threading.Barrier(6)

    def store(mine: list[NewJob]) -> None:
        start.wait()
        for job in mine:
            storage.enqueue([job])

    threads = [threading.Thread(target=store, args=(jobs[i::6],)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    claims = heard(listener)
    while not claims:
        claims = heard(listener)
    assert [claim.token for claim in claims] == [token]
    assert {claim.id for claim in [*claims, *storage.claim(who, "letters", 100)]} == {job.id for job in jobs}


def test_pods_take_turns(storage: Storage, who: Incarnation, listener: Listener) -> None:
    other = storage.register("bob", ["letters"], "north", 4712)
    tokens = [offer(storage, one_of_them, listener) for one_of_them in (other, who, other, who)]
    for job in plain_jobs(4):
        storage.enqueue([job])
    claims: list[Claim] = []
    while len(claims) < 4:
        claims += heard(listener)
    assert [claim.token for claim in claims] == tokens


def in_a_transaction_of_the_callers(storage: Storage, url: str, job: NewJob) -> None:
    with psycopg.connect(url) as conn:

        def execute(step: object) -> list[tuple[object, ...]]:
            query, params = step.query, step.params  # type: ignore[attr-defined]
            return conn.cursor().execute(query.text("format"), query.args("format", params)).fetchall()

        run_plan(storage.enqueue_plan([job]), execute)


NOT_TAKEN: dict[str, Callable[[Storage, str], list[NewJob]]] = {
    "of another queue": lambda _, __: [plain_job("parcels")],
    "for later": lambda _, __: [plain_job(delay=60.0)],
    "for a time": lambda _, __: [plain_job(run_at=datetime(2020, 1, 1, tzinfo=UTC))],
    "with a key": lambda _, __: [plain_job(dedupe_key="k")],
    "in bulk": lambda _, __: plain_jobs(2),
    "too large for a notification": lambda _, __: [plain_job(payload=b'"' + b"x" * 7000 + b'"')],
    "too large in bytes": lambda _, __: [plain_job(payload=('"' + "ü" * 3500 + '"').encode())],
}


@pytest.mark.parametrize("case", NOT_TAKEN)
def test_no_offer_is_taken_for_a_job(
    case: str, storage: Storage, who: Incarnation, listener: Listener, pg_url: str
) -> None:
    token = offer(storage, who, listener)
    jobs = NOT_TAKEN[case](storage, pg_url)
    storage.enqueue(jobs)
    assert set(statuses(storage, [job.id for job in jobs])) == {Status.PENDING}
    assert offers(pg_url) == [token]


def test_no_offer_is_taken_in_a_transaction_that_others_may_keep_open(
    storage: Storage, who: Incarnation, listener: Listener, pg_url: str
) -> None:
    token, job = offer(storage, who, listener), plain_job()
    in_a_transaction_of_the_callers(storage, pg_url, job)
    assert statuses(storage, [job.id]) == [Status.PENDING]
    assert offers(pg_url) == [token]


def test_no_offer_is_taken_while_the_queue_rests(
    storage: Storage, who: Incarnation, listener: Listener, pg_url: str
) -> None:
    token, jobs = offer(storage, who, listener), plain_jobs(2)
    storage.set_queue("letters", paused=True)
    storage.enqueue(jobs[:1])
    storage.set_queue("letters", paused=False)
    with psycopg.connect(pg_url) as conn:
        conn.execute("update forge.queue set throttled_until = now() + interval '1 hour'")
    storage.enqueue(jobs[1:])
    assert statuses(storage, [job.id for job in jobs]) == [Status.PENDING] * 2
    assert offers(pg_url) == [token]


def test_no_offer_is_taken_of_a_pod_that_is_silent_or_gone(
    storage: Storage, who: Incarnation, listener: Listener, pg_url: str
) -> None:
    other = storage.register("bob", ["letters"], "north", 4712)
    offer(storage, who, listener, beat_within=3.0)
    gone = offer(storage, other, listener)
    age(pg_url, "pod", "beat_at", 5.0, f"id = {who.pod.id}")
    with psycopg.connect(pg_url) as conn:  # as somebody who has begun to take its claims back
        conn.execute("update forge.pod set reaped_at = now() where id = %s", [other.pod.id])
    job = plain_job()
    storage.enqueue([job])
    assert statuses(storage, [job.id]) == [Status.PENDING]
    storage.deregister(other)
    assert gone not in offers(pg_url)


def test_a_withdrawn_offer_is_not_taken(storage: Storage, who: Incarnation, listener: Listener, pg_url: str) -> None:
    token, job = offer(storage, who, listener), plain_job()
    storage.withdraw(who, [token])
    assert offers(pg_url) == []
    storage.enqueue([job])
    assert statuses(storage, [job.id]) == [Status.PENDING]
    assert not who.doubtful


def test_a_job_that_was_never_heard_of_is_found_when_the_offer_is_withdrawn(
    storage: Storage, who: Incarnation, listener: Listener
) -> None:
    token, job = offer(storage, who, listener), plain_job()
    listener.close()
    storage.enqueue([job])
    assert statuses(storage, [job.id]) == [Status.IN_PROGRESS]
    storage.withdraw(who, [token])
    (claim,) = storage.claim(who, "letters", 10)
    assert (claim.id, claim.attempt) == (job.id, 1)
    assert claim.token != token


def test_a_pod_that_leaves_gives_back_what_it_never_heard_of(
    storage: Storage, who: Incarnation, listener: Listener, pg_url: str
) -> None:
    offer(storage, who, listener)
    offer(storage, who, listener)
    job = plain_job()
    storage.enqueue([job])
    assert storage.deregister(who) == 1
    assert statuses(storage, [job.id]) == [Status.PENDING]
    assert offers(pg_url) == []


def test_a_dead_pods_offers_go_with_it(storage: Storage, who: Incarnation, listener: Listener, pg_url: str) -> None:
    offer(storage, who, listener)
    offer(storage, who, listener)
    job = plain_job()
    storage.enqueue([job])
    age(pg_url, "pod", "beat_at", 1000.0)
    assert storage.reap().jobs == 1
    assert offers(pg_url) == []
    assert statuses(storage, [job.id]) == [Status.FAILED]


def test_storing_a_job_again_stores_it_once(storage: Storage, who: Incarnation, listener: Listener) -> None:
    offer(storage, who, listener)
    job = plain_job()
    storage.enqueue([job])
    (claim,) = heard(listener)
    offer(storage, who, listener)
    storage.enqueue([job])  # as after an answer that was lost
    end(storage, [claim])
    offer(storage, who, listener)
    storage.enqueue([job])
    assert statuses(storage, [job.id]) == [Status.DONE]
    assert storage.claim(who, "letters", 10) == []


def test_each_connection_of_a_listener_has_a_channel_of_its_own(listener: Listener) -> None:
    first = listener.channel
    listener.close()
    assert listener.channel is None
    assert listener.wait(0) == {"*"}
    assert listener.channel not in (first, None)


def test_offers_end_where_an_old_transaction_keeps_their_traces(
    storage: Storage, who: Incarnation, listener: Listener, pg_url: str
) -> None:
    assert listener.channel is not None
    with psycopg.connect(pg_url) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select 1")
        for _ in range(5000):
            token = who.mint()
            if not storage.offer(who, token, "letters", listener.channel, 60.0):
                break
            storage.withdraw(who, [token])
        else:
            pytest.fail("offers were made for ever")
        old.rollback()
    with psycopg.connect(pg_url, autocommit=True) as conn:
        conn.execute("vacuum forge.offer")
    offer(storage, who, listener)


def test_without_offers_the_verbs_say_so(tmp_path: object) -> None:
    with open_storage(f"sqlite:///{tmp_path}/forge.db") as sqlite:
        sqlite.migrate()
        who = sqlite.register("ada", ["letters"], "north", 4711)
        assert not sqlite.offer(who, who.mint(), "letters", "nowhere", 3.0)
        sqlite.withdraw(who, [1])
        assert sqlite.listen().channel is None
