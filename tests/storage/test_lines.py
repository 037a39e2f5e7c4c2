"""Jobs in lines: limits that hold whoever claims, turns that nobody is left out of, places that always come back."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from forge.job import (
    Cancelled,
    Claim,
    Dead,
    Done,
    Ending,
    Failed,
    Line,
    NewJob,
    Outcome,
    Released,
    Snooze,
    Status,
    Throttled,
)
from forge.storage import Storage, open_storage
from forge.storage.contract import Incarnation, LowWater
from forge.storage.contract.lines import LineClaims, Turns
from forge.storage.shared.walking import claim_in_turn

from .helpers import (
    age,
    check_whole,
    end,
    enqueue_as_caller,
    full_job,
    ids,
    new_id,
    one,
    plain_job,
    plain_jobs,
    sql,
    statuses,
)

QUEUE = "letters"


def of(partition: str) -> Line:
    """A line for the sake of turns alone."""
    return Line.of(partition=partition)


def limited(key: str = "ann", limit: int = 2) -> Line:
    """A line with a limit."""
    return Line.of(concurrency_key=key, concurrency=limit)


def jobs_in(line: Line, count: int = 1, **changes: object) -> list[NewJob]:
    return plain_jobs(count, QUEUE, line=line, **changes)


def claim(storage: Storage, who: Incarnation, n: int = 10, turns: Turns | None = None) -> list[Claim]:
    return storage.lines.claim(who, QUEUE, n, turns).claims


def lines_of(storage: Storage, claims: list[Claim]) -> Counter[str]:
    """How many of each line."""
    found = storage.get(ids(claims))
    return Counter(line.name for each in found.values() if (line := each.line) is not None)


def line_of(storage: Storage, claims: list[Claim]) -> str:
    """The line of the only one."""
    ((name, _),) = lines_of(storage, claims).items()
    return name


# -- storing -------------------------------------------------------------------------------------------------------


def test_the_name_of_a_line_tells_apart_whatever_its_parts_hold() -> None:
    parts = ["", "a", "a|", "|a", "a%7C", "%", "a}"]
    made = {
        Line.of(rate_limit=r or None, concurrency_key=k or None, concurrency=1 if k else None, partition=p or None).name
        for r in parts
        for k in parts
        for p in parts
    }
    assert len(made) == len(parts) ** 3


@pytest.mark.parametrize("count", [1, 2, 50])
def test_a_line_is_stored_and_read_back_however_many_are_stored(storage: Storage, count: int) -> None:
    line = Line.of(rate_limit="slack", concurrency_key="tasks.send:ann", concurrency=3, partition="a|b")
    stored = [full_job(dedupe_key=None, unique_for=None, line=line) for _ in range(count)]
    stored += [full_job(dedupe_key=None, unique_for=None)]
    storage.enqueue(stored)
    found = storage.get(ids(stored))
    assert [found[job.id].line for job in stored] == [line] * count + [None]
    assert [found[job.id].run_at for job in stored] == [job.run_at for job in stored]


def test_a_line_is_stored_with_a_key_and_in_a_transaction_of_the_callers(storage: Storage, url: str) -> None:
    keyed = full_job(line=limited())
    storage.enqueue([keyed])
    assert one(storage, keyed.id).line == limited()
    lone, pair = jobs_in(of("a")), jobs_in(of("b"), 2)
    for jobs in (lone, pair):
        enqueue_as_caller(url, storage.enqueue_plan(jobs), commit=True)
        assert [one(storage, job.id).line for job in jobs] == [job.line for job in jobs]


def test_plain_claims_pass_over_lines_and_lines_over_plain_jobs(storage: Storage, who: Incarnation) -> None:
    lined, plain = jobs_in(of("a"), 3), plain_jobs(3, QUEUE)
    storage.enqueue(lined + plain)
    assert ids(storage.claim(who, QUEUE, 10)) == ids(plain)
    assert ids(claim(storage, who)) == ids(lined)


def test_only_queues_with_lines_are_told_to_have_some(storage: Storage) -> None:
    for queue in (QUEUE, "parcels"):
        storage.set_queue(queue, max_workers=1)
    served = storage.register("ada", [QUEUE, "parcels"], "north", 1)
    storage.enqueue([plain_job(QUEUE), plain_job("parcels")])
    storage.shares.look(served, {QUEUE: 0, "parcels": 0})
    assert storage.shares.lined == frozenset()
    storage.enqueue(jobs_in(of("a")))
    storage.shares.beat(served, {QUEUE: 0, "parcels": 0})
    assert storage.shares.lined == {QUEUE}
    assert QUEUE not in storage.shares.undeclared()


def test_a_queue_that_nobody_declares_is_told_of_by_its_lines_too(storage: Storage) -> None:
    storage.enqueue(jobs_in(of("a")))
    assert storage.shares.undeclared() == {QUEUE: True}


def test_a_queue_is_not_made_by_what_is_enqueued_to_it(storage: Storage) -> None:
    storage.enqueue(jobs_in(limited()))
    assert storage.queues() == {}, "its settings are those of the first pod that declares it"


# -- the limit -----------------------------------------------------------------------------------------------------


def places(url: str) -> list[int]:
    """Those that are taken."""
    return sorted(row[0] for row in sql(url, "select place from {job} where place is not null"))


def test_no_more_are_claimed_than_the_limit_and_the_next_when_one_has_ended(
    storage: Storage, who: Incarnation, url: str
) -> None:
    jobs = jobs_in(limited(), 5)
    storage.enqueue(jobs)
    turns = Turns()
    first = claim(storage, who, turns=turns)
    assert ids(first) == ids(jobs[:2])
    assert turns.closed
    assert claim(storage, who) == []
    end(storage, first[:1])
    assert ids(claim(storage, who)) == [jobs[2].id]
    assert places(url) == [1, 2]
    check_whole(url)


def test_keys_do_not_limit_each_other(storage: Storage, who: Incarnation) -> None:
    storage.enqueue(jobs_in(limited("ann"), 3) + jobs_in(limited("bob"), 3) + jobs_in(limited("cy", 1), 3))
    assert lines_of(storage, claim(storage, who, 20)) == {"|ann|": 2, "|bob|": 2, "|cy|": 1}


def test_one_key_limits_all_lines_and_queues_that_share_it(storage: Storage, who: Incarnation) -> None:
    lines = [Line.of(concurrency_key="all", concurrency=3, partition=name) for name in "abcde"]
    storage.enqueue([job for line in lines for job in jobs_in(line, 4)])
    storage.enqueue(plain_jobs(4, "parcels", line=lines[0]))
    first = claim(storage, who)
    assert len(first) == 3
    assert lines_of(storage, first) == {"|all|a": 1, "|all|b": 1, "|all|c": 1}
    assert storage.lines.claim(who, "parcels", 5).claims == []
    end(storage, first)
    assert len(storage.lines.claim(who, "parcels", 5).claims) == 3
    assert claim(storage, who) == []


def test_partitions_of_one_key_take_turns_at_its_places(storage: Storage, who: Incarnation) -> None:
    lines = [Line.of(concurrency_key="all", concurrency=1, partition=name) for name in "abc"]
    storage.enqueue([job for line in lines for job in jobs_in(line, 4)])
    turns, order = Turns(), []
    for _ in range(9):
        (only,) = claim(storage, who, turns=turns)
        assert claim(storage, who, turns=turns) == [], "a look at closed lines changes no turn"
        order.append(line_of(storage, [only]))
        end(storage, [only])
    assert order == ["|all|a", "|all|b", "|all|c"] * 3


def test_a_limit_that_was_lowered_lets_older_claims_end_first(storage: Storage, who: Incarnation) -> None:
    storage.enqueue(jobs_in(limited("ann", 4), 4))
    older = claim(storage, who)
    assert len(older) == 4
    newer = jobs_in(limited("ann", 2), 3)
    storage.enqueue(newer)
    for ended in older[:2]:
        end(storage, [ended])
        assert claim(storage, who) == []
    end(storage, older[2:3])
    assert len(claim(storage, who)) == 1
    end(storage, older[3:])
    assert len(claim(storage, who)) == 1
    assert claim(storage, who) == []


OUTCOMES: list[tuple[Outcome, Status]] = [
    (Done(), Status.DONE),
    (Dead("no"), Status.DEAD),
    (Cancelled(), Status.CANCELLED),
    (Failed("no"), Status.FAILED),
    (Snooze(60.0), Status.PENDING),
    (Throttled(), Status.PENDING),
    (Released(), Status.PENDING),
    (Released("worker died", crashed=True), Status.PENDING),
]


@pytest.mark.parametrize(("outcome", "status"), OUTCOMES, ids=lambda value: type(value).__name__)
def test_whatever_becomes_of_a_claim_its_place_is_free(
    storage: Storage, who: Incarnation, url: str, outcome: Outcome, status: Status
) -> None:
    jobs = jobs_in(limited(limit=1), 2)
    storage.enqueue(jobs)
    first = claim(storage, who)
    assert storage.finalize([Ending(each, outcome, 60.0 if status is Status.FAILED else 0.0) for each in first]) == []
    assert statuses(storage, ids(jobs[:1])) == [status]
    assert places(url) == []
    if isinstance(outcome, Throttled):
        age(url, "queue", "throttled_until", 3600.0)
    assert len(claim(storage, who)) == 1
    check_whole(url)


@pytest.mark.parametrize("how", ["released", "reaped", "deregistered"])
def test_the_places_of_a_pod_that_is_gone_are_free(storage: Storage, who: Incarnation, url: str, how: str) -> None:
    storage.enqueue(jobs_in(limited(), 2))
    assert len(claim(storage, who)) == 2
    if how == "released":
        assert storage.release(who.pod.id, "it died", crashed=True) == 2
    elif how == "reaped":
        age(url, "pod", "beat_at", 3600.0)
        assert storage.reap(stale=60.0).jobs == 2
    else:
        assert storage.deregister(who) == 2
    assert places(url) == []
    assert len(claim(storage, storage.register("eve", [QUEUE], "west", 2))) == 2
    check_whole(url)


def test_a_running_job_that_is_cancelled_or_deleted_keeps_its_place_until_it_stops(
    storage: Storage, who: Incarnation, url: str
) -> None:
    jobs = jobs_in(limited(limit=1), 3)
    storage.enqueue(jobs)
    for job, stop in ((jobs[0], storage.cancel), (jobs[1], storage.delete)):
        (running,) = claim(storage, who)
        assert running.id == job.id
        assert stop([job.id]) == {job.id: "requested"}
        assert claim(storage, who) == []
        end(storage, [running], Failed("stopped"))
        assert one(storage, job.id).status is Status.CANCELLED
        assert places(url) == []
    storage.cancel([jobs[2].id])
    assert claim(storage, who) == []


def test_a_claim_that_is_ended_in_a_transaction_of_the_handlers_gives_its_place_back(
    storage: Storage, who: Incarnation, url: str
) -> None:
    storage.enqueue(jobs_in(limited(limit=1), 2))
    (first,) = claim(storage, who)
    conn = storage.connect()
    if storage.dialect == "sqlite":
        conn.execute("begin immediate")
    assert storage.complete_in(conn, Ending(first, Done()))
    conn.execute("commit")
    conn.close()
    assert places(url) == []
    assert len(claim(storage, who)) == 1


@pytest.mark.parametrize("verb", ["retry", "requeue"])
def test_a_job_that_is_brought_back_to_life_is_in_its_line(storage: Storage, who: Incarnation, verb: str) -> None:
    line = Line.of(rate_limit="slack", concurrency_key="ann", concurrency=1, partition="x")
    jobs = jobs_in(line, 2)
    storage.enqueue(jobs)
    end(storage, claim(storage, who), Dead("no"))
    assert one(storage, jobs[0].id).line == line
    assert getattr(storage, verb)([jobs[0].id]) == {jobs[0].id}
    assert one(storage, jobs[0].id).line == line
    assert len(claim(storage, who)) == 1
    assert claim(storage, who) == []


def test_the_database_itself_refuses_a_claim_beyond_the_limit(storage: Storage, who: Incarnation, url: str) -> None:
    storage.enqueue(jobs_in(limited(), 3))
    claim(storage, who)
    taken = "update {job} set place = 1, status = 'in_progress' where place is null"
    with pytest.raises(Exception, match=r"(?i)unique"):
        sql(url, taken)
    with pytest.raises(Exception, match=r"(?i)check"):
        sql(url, "update {job} set status = 'pending' where place is not null")


def test_a_place_is_on_disk_before_anybody_hears_of_it_also_where_commits_do_not_wait(pg_url: str) -> None:
    """Else a crash could take it back while its job runs."""
    with open_storage(f"{pg_url}&options=-c%20synchronous_commit%3Doff") as storage:
        who = storage.register("pod", [QUEUE], "here", 1)
        for n in range(20):
            storage.enqueue(jobs_in(limited(f"key {n}")))
            (before,) = sql(pg_url, "select pg_current_wal_insert_lsn()")[0]
            assert len(claim(storage, who)) == 1
            assert sql(pg_url, f"select pg_current_wal_flush_lsn() > '{before}'") == [(True,)]


def test_claims_at_once_by_many_connections_never_go_beyond_the_limit(storage: Storage, url: str) -> None:
    """Each thread is a pod of its own that claims, notes, and ends."""
    keys = {f"key {n}": 1 + n % 3 for n in range(6)}
    per_key = 20
    made = [job for key, limit in keys.items() for job in jobs_in(limited(key, limit), per_key)]
    storage.enqueue([job._replace(queue=QUEUE if n % 2 else "parcels") for n, job in enumerate(made)])
    key_of = {job.id: job.line.concurrency_key for job in made if job.line}
    running: Counter[str | None] = Counter()
    most: Counter[str | None] = Counter()
    lock, done, errors = threading.Lock(), list[object](), list[BaseException]()

    def pod(number: int) -> None:
        try:
            with open_storage(url) as mine:
                who, turns = (
                    mine.register(f"pod {number}", [QUEUE], "north", number),
                    {QUEUE: Turns(), "parcels": Turns()},
                )
                while len(done) < len(made):
                    for queue, turn in turns.items():
                        claims = mine.lines.claim(who, queue, 5, turn).claims
                        with lock:
                            for each in claims:
                                running[key_of[each.id]] += 1
                                most[key_of[each.id]] = max(most[key_of[each.id]], running[key_of[each.id]])
                        with lock:
                            for each in claims:
                                running[key_of[each.id]] -= 1
                        end(mine, claims) if claims else None
                        done.extend(claims)
        except BaseException as e:  # noqa: BLE001 (told to the test)
            errors.append(e)
            done.extend([None] * len(made))

    threads = [threading.Thread(target=pod, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert all(most[key] <= limit for key, limit in keys.items()), (most, keys)
    assert len(done) == len(made)
    assert Counter(storage.get(ids(made))[job.id].status for job in made) == {Status.DONE: len(made)}
    assert places(url) == []


# -- chains --------------------------------------------------------------------------------------------------------


def chained(storage: Storage, who: Incarnation, n: int = 10, behind: int = 3) -> LineClaims:
    """A claim by somebody who runs up to so many jobs of a key one after the other."""
    return storage.lines.claim(who, QUEUE, n, behind=behind)


def test_jobs_that_share_a_place_are_told_in_their_order(storage: Storage, who: Incarnation) -> None:
    jobs = jobs_in(limited(), 10)
    storage.enqueue(jobs)
    taken = chained(storage, who)
    assert ids(taken.claims) == ids(jobs[:6])
    assert [ids(chain) for chain in taken.chains] == [ids(jobs[0:6:2]), ids(jobs[1:6:2])]
    assert chained(storage, who).claims == [], "both places are taken"


def test_who_wants_no_chains_and_lines_without_a_key_have_none(storage: Storage, who: Incarnation) -> None:
    storage.enqueue([*jobs_in(of("a"), 5), *jobs_in(limited(), 5)])
    taken = chained(storage, who, behind=1)
    assert (len(taken.claims), taken.chains) == (7, ())
    storage.enqueue(jobs_in(of("b"), 5))
    assert chained(storage, who).chains == ()


def test_a_place_is_taken_until_the_last_of_its_chain_has_ended(storage: Storage, who: Incarnation) -> None:
    storage.enqueue(jobs_in(limited(limit=1), 8))
    (chain,) = chained(storage, who).chains
    for job in chain:
        assert claim(storage, who) == []
        end(storage, [job], Done())
    assert len(claim(storage, who)) == 1


def test_a_place_that_was_handed_over_is_taken_until_the_heir_has_ended(storage: Storage, who: Incarnation) -> None:
    storage.enqueue(jobs_in(limited(limit=1), 3))
    ((first, second, last),) = chained(storage, who).chains
    assert storage.lines.hand_over(last, first)
    end(storage, [second, last], Released())
    assert claim(storage, who) == []
    end(storage, [first], Done())
    assert ids(claim(storage, who)) == [second.id]


def test_a_place_is_not_handed_over_by_who_has_none_nor_to_who_is_not_there(storage: Storage, who: Incarnation) -> None:
    storage.enqueue(jobs_in(limited(limit=1), 3))
    ((first, second, last),) = chained(storage, who).chains
    assert not storage.lines.hand_over(second, first)
    end(storage, [first], Done())
    assert not storage.lines.hand_over(last, first)
    assert claim(storage, who) == [], "the last one has kept it"
    assert not storage.lines.hand_over(last._replace(token=last.token + 1), second)
    end(storage, [second, last], Done())


def test_chains_at_once_by_many_connections_never_share_a_place(storage: Storage, url: str) -> None:
    count, pods = 400, 4
    storage.enqueue(jobs_in(limited(), count // 2))
    storage.enqueue(plain_jobs(count // 2, "parcels", line=limited()))
    running, most, done = Counter[str](), 0, 0
    lock = threading.Lock()

    def pod(number: int) -> None:
        nonlocal most, done
        own = open_storage(url)
        who = own.register(f"pod-{number}", [QUEUE], "north", number)
        queue = (QUEUE, "parcels")[number % 2]
        for _ in range(10_000):
            taken = own.lines.claim(who, queue, 20, behind=5)
            chains = [*taken.chains, *([c] for c in taken.claims if not any(c in chain for chain in taken.chains))]
            with lock:
                running["ann"] += len(chains)
                most = max(most, running["ann"])
            for chain in chains:
                end(own, chain[:-1], Done())
                with lock:  # none of its jobs runs any more when the place is given back
                    running["ann"] -= 1
                end(own, chain[-1:], Done())
            with lock:
                done += len(taken.claims)
                if done == count:
                    break
        own.close()

    threads = [threading.Thread(target=pod, args=(number,)) for number in range(pods)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (done, most) == (count, 2)


# -- turns ---------------------------------------------------------------------------------------------------------


def test_ten_jobs_of_one_tenant_do_not_wait_for_ten_thousand_of_another(storage: Storage, who: Incarnation) -> None:
    storage.enqueue(NewJob(new_id(), "noop", b"1", QUEUE, line=of("big")) for _ in range(10_000))
    storage.enqueue(jobs_in(of("small"), 10))
    turns, seen = Turns(), Counter[str]()
    for _ in range(2):
        claims = claim(storage, who, 20, turns)
        assert len(claims) == 20
        seen += lines_of(storage, claims)
    assert seen["||small"] == 10
    assert seen["||big"] == 30, "who waits for nobody takes the room that is left"


def test_with_room_for_one_job_at_a_time_lines_take_turns(storage: Storage, who: Incarnation) -> None:
    storage.enqueue([job for name in "abc" for job in jobs_in(of(name), 3)])
    turns = Turns()
    order = [line_of(storage, claim(storage, who, 1, turns)) for _ in range(9)]
    assert order == ["||a", "||b", "||c"] * 3


def test_in_a_line_jobs_go_by_priority_then_time_then_id(storage: Storage, who: Incarnation, url: str) -> None:
    jobs = [
        plain_job(QUEUE, line=of("a"), priority=priority, delay=delay)
        for priority, delay in ((5, 0), (0, 3600), (0, 0), (-5, 0), (5, 0))
    ]
    storage.enqueue(jobs)
    first = claim(storage, who, 3)
    assert ids(first) == [jobs[3].id, jobs[2].id, jobs[0].id], "one that is not due keeps nobody waiting"
    assert ids(claim(storage, who)) == [jobs[4].id]
    age(url, "job", "run_at", 4000.0)
    assert ids(claim(storage, who)) == [jobs[1].id]


def test_a_line_with_a_better_priority_goes_first_and_those_passed_over_are_next(
    storage: Storage, who: Incarnation
) -> None:
    storage.enqueue([job for name in "abd" for job in jobs_in(of(name), 2)] + jobs_in(of("c"), 1, priority=-1))
    turns = Turns()
    order = [line_of(storage, claim(storage, who, 1, turns)) for _ in range(7)]
    assert order == ["||c", "||a", "||b", "||d", "||a", "||b", "||d"]


def test_a_walk_around_five_thousand_lines_visits_all_of_them(storage: Storage, who: Incarnation) -> None:
    storage.enqueue(plain_job(QUEUE, line=of(f"tenant {n}")) for n in range(5_000))
    turns, seen = Turns(), Counter[str]()
    while True:
        taken = storage.lines.claim(who, QUEUE, 700, turns)
        seen += lines_of(storage, taken.claims)
        if not taken.more:
            break
    assert len(seen) == 5_000
    assert set(seen.values()) == {1}


def test_one_open_line_is_found_among_a_thousand_closed_ones_and_then_the_walk_ends(
    storage: Storage, who: Incarnation
) -> None:
    storage.enqueue([job for n in range(1_000) for job in jobs_in(limited(f"key {n}", 1), 2)])
    turns = Turns()
    while (taken := storage.lines.claim(who, QUEUE, 500, turns)).more:
        assert taken.claims
    last = plain_job(QUEUE, line=limited("zz", 1))
    storage.enqueue([last])
    turns.start_over()
    found, calls = list[Claim](), 0
    while True:
        taken = storage.lines.claim(who, QUEUE, 4, turns)
        found, calls = found + taken.claims, calls + 1
        if not taken.more:
            break
    assert ids(found) == [last.id]
    assert calls <= 2 * 1_001 / 32


def test_plain_jobs_have_their_turn_among_lines_and_lines_among_plain_jobs(storage: Storage, who: Incarnation) -> None:
    storage.enqueue(plain_jobs(40, QUEUE) + jobs_in(of("a"), 40))
    turns, water = Turns(), LowWater()
    claims = [each for _ in range(20) for each in claim_in_turn(storage, who, QUEUE, 1, water, turns).claims]
    assert len(claims) == 20
    assert lines_of(storage, claims) == {"||a": 10}
    batch = claim_in_turn(storage, who, QUEUE, 20, water, turns).claims
    assert lines_of(storage, batch) == {"||a": 10}


def test_whoever_is_alone_takes_it_all(storage: Storage, who: Incarnation) -> None:
    storage.enqueue(plain_jobs(30, QUEUE))
    assert len(claim_in_turn(storage, who, QUEUE, 30, LowWater(), Turns()).claims) == 30
    storage.enqueue(jobs_in(of("a"), 30))
    turns = Turns()
    taken = claim_in_turn(storage, who, QUEUE, 30, LowWater(), turns)
    assert len(taken.claims) == 30
    assert taken.more
    assert claim_in_turn(storage, who, QUEUE, 30, LowWater(), turns) == LineClaims([], {}, False)


# -- budgets -------------------------------------------------------------------------------------------------------


def test_no_more_jobs_are_claimed_than_their_budget_has_tokens_for(storage: Storage, who: Incarnation) -> None:
    lines = [Line.of(rate_limit="slack", partition=name) for name in "abc"]
    storage.enqueue([job for line in lines for job in jobs_in(line, 5)] + jobs_in(of("free"), 2))
    turns = Turns()
    taken = storage.lines.claim(who, QUEUE, 20, turns, {})
    assert lines_of(storage, taken.claims) == {"||free": 2}
    assert (taken.spent, turns.scopes, turns.closed) == ({}, frozenset({"slack"}), True)
    taken = storage.lines.claim(who, QUEUE, 20, turns, {"slack": 4, "gh": 9})
    assert taken.spent == {"slack": 4}
    assert sorted(lines_of(storage, taken.claims).values()) == [1, 1, 2]
    assert not taken.more


def test_lines_behind_an_empty_budget_are_passed_over_together(storage: Storage, who: Incarnation) -> None:
    storage.enqueue(plain_job(QUEUE, line=Line.of(rate_limit="gh", partition=str(n))) for n in range(3_000))
    last = plain_job(QUEUE, line=Line.of(rate_limit="slack"))
    storage.enqueue([last])
    taken = storage.lines.claim(who, QUEUE, 4, Turns(), {"slack": 4})
    assert ids(taken.claims) == [last.id]
    assert not taken.more


# -- what holds for all claims -------------------------------------------------------------------------------------


def test_nothing_is_claimed_from_a_paused_or_cooling_queue_or_by_a_pod_that_is_gone(
    storage: Storage, who: Incarnation, other: Incarnation, url: str
) -> None:
    storage.enqueue(jobs_in(limited(), 4) + jobs_in(of("a"), 4))
    storage.set_queue(QUEUE, paused=True)
    assert claim(storage, who) == []
    storage.set_queue(QUEUE, paused=False)
    first = claim(storage, who, 1)
    storage.finalize([Ending(each, Throttled()) for each in first])
    assert claim(storage, who) == []
    age(url, "queue", "throttled_until", 3600.0)
    age(url, "pod", "beat_at", 3600.0, f"id = {other.pod.id}")
    assert storage.reap(stale=60.0).pods == [other.pod.id]
    assert claim(storage, other) == []
    assert len(claim(storage, who)) == 6


def test_what_is_due_next_is_told_of_lines_too(storage: Storage, who: Incarnation) -> None:
    assert storage.next_due([QUEUE]) is None
    storage.enqueue(jobs_in(limited(limit=1), 2, delay=3600.0) + plain_jobs(1, QUEUE, delay=7200.0))
    due = storage.next_due([QUEUE])
    assert due is not None
    assert 3000 < due <= 3600
    storage.enqueue(jobs_in(of("a")))
    due = storage.next_due([QUEUE])
    assert due is not None
    assert due <= 0
    claim(storage, who)
    due = storage.next_due([QUEUE])
    assert due is not None
    assert due > 0


def test_an_ending_with_a_stale_token_changes_nothing(storage: Storage, who: Incarnation, url: str) -> None:
    storage.enqueue(jobs_in(limited(limit=1)))
    (first,) = claim(storage, who)
    end(storage, [first], Released())
    (second,) = claim(storage, who)
    assert [e.claim for e in storage.finalize([Ending(first, Done())])] == [first]
    assert places(url) == [1]
    end(storage, [second])
    assert places(url) == []
