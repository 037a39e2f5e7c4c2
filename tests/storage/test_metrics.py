"""Metrics: a report counts once, rolling up changes no sum, and what the leader finds is kept as it was found."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from forge.errors import LostLease, UsageError
from forge.job import Cancelled, Dead, Done, Ending, Failed, NewJob, Released, Snooze, Status, Throttled
from forge.storage import Storage, open_storage
from forge.storage.contract import Fates, Incarnation
from forge.storage.contract.leases import Holder
from forge.storage.contract.metrics import (
    COUNTERS,
    DatabaseFigures,
    MetricReport,
    PodFigures,
    PodPoint,
    Point,
    QueueReport,
    Standing,
)
from forge.storage.postgres import PostgresStorage

from .helpers import age, early, end, plain_job, plain_jobs, sql
from .proxy import Proxy

pytestmark = pytest.mark.impl_free

NEVER, EVER = 0.0, 4e9
DAY = 86_400.0
LETTERS = QueueReport("letters", {"completed": 5, "failed": 2, "dead": 1}, {3: 4, 40: 3}, {7: 5, 8: 2})
PARCELS = QueueReport("parcels", {"snoozed": 1, "throttled": 2, "crashed": 3, "cancelled": 4, "reaped": 6}, {}, {9: 1})
VITALS = PodFigures(
    "north",
    4711,
    4,
    7,
    {"master_cpu": 0.5, "zygote_cpu": 0.25, "workers_cpu": 2.0},
    {"master_rss": 1000, "zygote_rss": 2000, "workers_rss": 9000, "workers_pss": 4000},
    {"claims": {30: 2}, "finalizes": {31: 1}, "beats": {28: 10}},
)


@pytest.fixture
def term(storage: Storage) -> int:
    """The test leads."""
    found = storage.leases.acquire(Holder("a", None, "north", 1), 600.0).term
    assert found is not None
    return found


def report(
    number: int, *parts: QueueReport, pod: int = 1, writer: str = "w", vitals: PodFigures | None = None
) -> MetricReport:
    return MetricReport(writer, number, pod, parts, vitals)


def whole(storage: Storage) -> dict[str, tuple[dict[str, int], Any, Any]]:
    """All that was ever counted, by queue, without what is zero."""
    found: dict[str, tuple[dict[str, int], Any, Any]] = {}
    for point in storage.metrics.read(NEVER, EVER, step=400_000 * 60 * 60):
        assert point.queue not in found
        assert list(point.counts) == list(COUNTERS)
        found[point.queue] = ({k: n for k, n in point.counts.items() if n}, point.latency, point.run_time)
    return found


def as_told(part: QueueReport, times: int = 1) -> Any:
    histograms = ({bucket: n * times for bucket, n in each.items()} for each in part[2:])
    return ({name: n * times for name, n in part.counts.items()}, *histograms)


def old(url: str, seconds: float) -> None:
    """What was reported was so long ago."""
    for table in ("metric_part", "metric", "metric_pod", "metric_database"):
        age(url, table, "minute", seconds)


# -- reports -------------------------------------------------------------------------------------------------------


def test_a_report_is_counted_by_queue_in_the_minute_in_which_it_came(storage: Storage) -> None:
    before = storage.now()
    taken = storage.metrics.write(report(1, LETTERS, PARCELS))
    assert taken.fresh
    assert before - 1 <= taken.now <= storage.now() + 1
    points = storage.metrics.read(NEVER, EVER)
    assert {point.at for point in points} == {taken.now // 60 * 60}
    assert [point.queue for point in points] == ["letters", "parcels"]
    assert whole(storage) == {"letters": as_told(LETTERS), "parcels": as_told(PARCELS)}
    assert storage.metrics.read(taken.now // 60 * 60, EVER, queue="parcels")[0].queue == "parcels"
    assert storage.metrics.read(NEVER, taken.now // 60 * 60) == []


def test_reports_add_up_over_pods_and_numbers(storage: Storage) -> None:
    for number in (1, 2, 3):
        assert storage.metrics.write(report(number, LETTERS)).fresh
    assert storage.metrics.write(report(1, LETTERS, PARCELS, pod=2, writer="v")).fresh
    assert whole(storage) == {"letters": as_told(LETTERS, 4), "parcels": as_told(PARCELS)}


def test_a_report_that_comes_again_counts_once(storage: Storage) -> None:
    assert storage.metrics.write(report(1, LETTERS, vitals=VITALS)).fresh
    assert storage.metrics.write(report(2, LETTERS, vitals=VITALS)).fresh
    for number in (2, 1, 2):
        assert not storage.metrics.write(report(number, LETTERS, PARCELS, vitals=VITALS)).fresh
    assert whole(storage) == {"letters": as_told(LETTERS, 2)}
    assert sum(point.cpu["master_cpu"] for point in storage.metrics.read_pods(NEVER, EVER)) == 1.0


def test_one_that_comes_again_long_after_it_was_rolled_up_counts_once_too(
    storage: Storage, url: str, term: int
) -> None:
    """The pod was cut off when it reported, and for an hour."""
    storage.metrics.write(report(1, LETTERS))
    old(url, 3600)
    assert storage.metrics.roll_up(term, 0.0) == 1
    assert not storage.metrics.write(report(1, LETTERS)).fresh
    assert storage.metrics.write(report(2, LETTERS)).fresh
    assert whole(storage) == {"letters": as_told(LETTERS, 2)}
    assert len({point.at for point in storage.metrics.read(NEVER, EVER)}) == 2, (
        "what came late is of the minute it came in"
    )


def test_an_empty_report_only_tells_the_time(storage: Storage) -> None:
    assert storage.metrics.write(report(1)).fresh
    assert whole(storage) == {}
    assert storage.metrics.read_pods(NEVER, EVER) == []


def test_a_report_in_doubt_counts_once(pg_url: str) -> None:
    """The answer to the commit is lost; the storage tries again by itself."""
    with Proxy(pg_url) as proxy, open_storage(proxy.url, pool_size=1) as storage:
        assert isinstance(storage, PostgresStorage)
        storage.metrics.write(report(1, LETTERS))
        proxy.cut_after(1)
        assert not storage.metrics.write(report(2, LETTERS)).fresh
        assert proxy.cut.wait(10)
        assert whole(storage) == {"letters": as_told(LETTERS, 2)}


def test_reports_of_many_at_once_are_all_counted(storage: Storage, url: str) -> None:
    def tell(pod: int) -> None:
        with open_storage(url) as own:
            for number in range(1, 6):
                own.metrics.write(report(number, LETTERS, PARCELS, pod=pod, writer=str(pod)))
                own.metrics.write(report(number, LETTERS, PARCELS, pod=pod, writer=str(pod)))

    threads = [threading.Thread(target=tell, args=(pod,)) for pod in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert whole(storage) == {"letters": as_told(LETTERS, 20), "parcels": as_told(PARCELS, 20)}


# -- pods ----------------------------------------------------------------------------------------------------------


def test_every_pods_own_figures_are_kept_by_minute(storage: Storage) -> None:
    taken = storage.metrics.write(report(1, pod=7, vitals=VITALS))
    storage.metrics.write(
        report(1, pod=8, writer="v", vitals=VITALS._replace(host="south", cpu={}, memory={}, timings={}))
    )
    at = taken.now // 60 * 60
    assert storage.metrics.read_pods(at, EVER) == [
        PodPoint(at, 7, *VITALS),
        PodPoint(at, 8, "south", 4711, 4, 7, {}, {}, {"claims": {}, "finalizes": {}, "beats": {}}),
    ]


def test_of_several_reports_of_a_minute_time_is_added_and_memory_is_the_most(storage: Storage) -> None:
    more = VITALS._replace(workers=2, connections=8, memory={"master_rss": 1500, "workers_rss": 10, "master_pss": 5})
    storage.metrics.write(report(1, vitals=VITALS))
    storage.metrics.write(report(2, vitals=more))
    (point,) = storage.metrics.read_pods(NEVER, EVER, step=400_000 * 60 * 60)
    assert (point.workers, point.connections) == (4, 8)
    assert point.cpu == {"master_cpu": 1.0, "zygote_cpu": 0.5, "workers_cpu": 4.0}
    expected = {"master_rss": 1500, "zygote_rss": 2000, "workers_rss": 9000, "master_pss": 5, "workers_pss": 4000}
    assert point.memory == expected
    assert point.timings == {"claims": {30: 4}, "finalizes": {31: 2}, "beats": {28: 20}}


# -- rolling up ----------------------------------------------------------------------------------------------------


def many_reports(storage: Storage, url: str) -> dict[str, Any]:
    """Of two pods: twenty minutes ago, ten, and now. What they say together."""
    for turn, ago in enumerate((1200.0, 600.0, 0.0), 1):
        early(storage)
        for pod in (1, 2):
            storage.metrics.write(report(turn, LETTERS, PARCELS, pod=pod, writer=str(pod)))
        # The last minute alone: moved together, one could meet the minute that another has not left yet.
        age(url, "metric_part", "minute", ago, "minute = (select max(minute) from {metric_part})")
    return whole(storage)


def test_rolling_up_moves_minute_by_minute_and_changes_no_sum(storage: Storage, url: str, term: int) -> None:
    before = many_reports(storage, url)
    assert before == {"letters": as_told(LETTERS, 6), "parcels": as_told(PARCELS, 6)}
    points = storage.metrics.read(NEVER, EVER)
    for moved in (4, 4, 0, 0):
        assert storage.metrics.roll_up(term, 180.0) == moved
        assert storage.metrics.read(NEVER, EVER) == points
    assert whole(storage) == before
    assert sql(url, "select count(*) from {metric_part}") == [(4,)], "the minute that is not over stays"
    assert sql(url, "select count(*) from {metric}") == [(4,)]


def test_rolling_up_adds_to_what_was_rolled_up_before(storage: Storage, url: str, term: int) -> None:
    """A transaction of a pod that took long comes to a minute that has been rolled up already."""
    storage.metrics.write(report(1, LETTERS))
    old(url, 600)
    assert storage.metrics.roll_up(term, 180.0) == 1
    (at,) = {point.at for point in storage.metrics.read(NEVER, EVER)}
    storage.metrics.write(report(2, LETTERS))
    sql(url, "update {metric_part} set minute = (select minute from {metric})")
    assert storage.metrics.roll_up(term, 180.0) == 1
    assert whole(storage) == {"letters": as_told(LETTERS, 2)}
    assert {point.at for point in storage.metrics.read(NEVER, EVER)} == {at}


def test_rolling_up_by_many_at_once_changes_no_sum(storage: Storage, url: str, term: int) -> None:
    before = many_reports(storage, url)
    start, moved = threading.Barrier(4), list[int]()

    def roll() -> None:
        with open_storage(url) as own:
            own.now()
            start.wait()
            moved.extend(own.metrics.roll_up(term, 180.0) for _ in range(4))

    threads = [threading.Thread(target=roll) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(moved) == 8
    assert whole(storage) == before


def test_who_no_longer_leads_changes_nothing(storage: Storage, url: str, term: int) -> None:
    before = many_reports(storage, url)
    storage.leases.release(term)
    figures = DatabaseFigures(1, 2, 3, 4, 5)
    for write in (
        lambda: storage.metrics.roll_up(term, 0.0),
        lambda: storage.metrics.prune(term, 0.0),
        lambda: storage.metrics.record(term, 60.0, {"letters": Standing(1)}, figures, {(60.0, "letters"): 1}),
    ):
        with pytest.raises(LostLease):
            write()
    assert whole(storage) == before
    assert sql(url, "select count(*) from {metric}") == [(0,)]
    assert storage.metrics.read_database(NEVER, EVER) == []


def test_what_is_old_goes_in_small_batches(storage: Storage, url: str, term: int) -> None:
    many_reports(storage, url)
    storage.metrics.write(report(9, vitals=VITALS))
    storage.metrics.record(term, storage.now() // 60 * 60, {}, DatabaseFigures(1, 2, 3, 4, 5), {})
    while storage.metrics.roll_up(term, 180.0):
        pass
    assert storage.metrics.prune(term, 30 * DAY) == 0
    old(url, 30 * DAY)
    age(url, "metric_writer", "at", 31 * DAY)
    storage.metrics.write(report(1, LETTERS, pod=9, writer="young"))
    rounds = []
    while n := storage.metrics.prune(term, 30 * DAY - 3600, n=2):
        rounds.append(n)
    assert rounds == [2 + 1 + 1 + 2, 2 + 1], "rows of queues, of the pod, of the database and of writers"
    assert {table: sql(url, f"select count(*) from {{{table}}}")[0][0]
            for table in ("metric", "metric_pod", "metric_database", "metric_writer")} == {
        "metric": 0, "metric_pod": 0, "metric_database": 0, "metric_writer": 1}  # fmt: skip


# -- what the leader finds -----------------------------------------------------------------------------------------


def id_at(at: float, number: int) -> UUID:
    return UUID(int=int(at * 1000) << 80 | 7 << 76 | 2 << 62 | number)


def test_jobs_are_counted_in_the_minute_of_their_ids_wherever_they_are(storage: Storage, who: Incarnation) -> None:
    minute = storage.now() // 60 * 60 - 120
    times = [(minute, 1), (minute + 30, 2), (minute + 59.999, 3), (minute - 0.001, 4), (minute + 60, 5)]
    storage.enqueue([NewJob(id_at(at, n), "k", b"{}", "letters") for at, n in times])
    storage.enqueue([NewJob(id_at(minute + 7, 6), "k", b"{}", "parcels"), NewJob(uuid4(), "k", b"{}", "letters")])
    assert storage.metrics.enqueued(minute, 1000) == {"letters": 3, "parcels": 1}
    end(storage, storage.claim(who, "letters", 4))
    assert storage.metrics.enqueued(minute, 1000) == {"letters": 3, "parcels": 1}
    assert storage.metrics.enqueued(minute - 600, 1000) == {}


def test_a_minute_with_more_jobs_than_are_read_is_estimated_from_its_beginning(storage: Storage) -> None:
    minute = storage.now() // 60 * 60 - 120
    storage.enqueue([NewJob(id_at(minute + 0.1 * n, n), "k", b"{}", "ab"[n % 2]) for n in range(600)])
    found = storage.metrics.enqueued(minute, 100)
    assert sum(found.values()) == pytest.approx(600, rel=0.02)
    assert found["a"] == pytest.approx(300, rel=0.04)


def test_how_queues_stand(storage: Storage, url: str, who: Incarnation) -> None:
    assert storage.metrics.standing(100) == {}
    storage.enqueue(plain_jobs(5, priority=3))
    storage.enqueue(plain_jobs(3, priority=-2, delay=500.0))
    storage.enqueue(plain_jobs(3, "parcels"))
    claims = storage.claim(who, "letters", 2)
    end(storage, storage.claim(who, "parcels", 1), Dead("no"))
    end(storage, storage.claim(who, "parcels", 1), Cancelled())
    end(storage, claims[:1], Failed("again"), delay=-1.0)
    late = plain_job(priority=9, run_at=datetime.now(UTC) - timedelta(hours=1))
    storage.enqueue([late])
    found = storage.metrics.standing(100)
    assert found["letters"]._replace(oldest=0.0) == Standing(4, 3, 1, 1, 0, 0.0)
    assert found["parcels"]._replace(oldest=0.0) == Standing(1, 0, 0, 0, 1, 0.0)
    assert 3590 < found["letters"].oldest < 3700
    storage.delete([late.id])
    assert 0 <= storage.metrics.standing(100)["letters"].oldest < 100


def test_a_long_queue_is_not_read_to_its_end(storage: Storage, who: Incarnation) -> None:
    storage.enqueue(plain_jobs(300))
    storage.enqueue(plain_jobs(3, "parcels"))
    storage.claim(who, "letters", 10)
    found = storage.metrics.standing(50)
    assert found["letters"].estimated
    assert found["letters"].in_flight == 10, "what runs was in front, and is found"
    assert 40 <= found["letters"].pending <= 290
    assert not found["parcels"].estimated and found["parcels"].pending == 3


def test_the_estimate_of_a_long_queue_is_near(pg_url: str) -> None:
    """All pages are read here, because there are few; so it is exact."""
    with open_storage(pg_url) as storage:
        storage.enqueue(plain_jobs(3000))
        storage.enqueue(plain_jobs(100, delay=500.0))
        found = storage.metrics.standing(50)["letters"]
        assert (found.pending, found.scheduled, found.estimated) == (3000, 100, True)


def test_what_the_leader_found_is_read_back(storage: Storage, term: int) -> None:
    figures = storage.metrics.database()
    assert figures.size > 0
    minute = storage.now() // 60 * 60
    first, then = Standing(1, 2, 3, 4, 5, 6.5), Standing(7, 8, 9, 10, 11, 0.25, True)
    for _ in range(2):  # twice is once
        storage.metrics.record(term, minute - 60, {"letters": first}, figures, {(minute - 120, "letters"): 70})
        storage.metrics.record(term, minute, {"letters": then}, figures, {(minute - 120, "letters"): 60})
    storage.metrics.write(report(1, LETTERS))
    points = [p for p in storage.metrics.read(minute - 180, minute + 60) if not any(p.counts.values())]
    none = dict.fromkeys(COUNTERS, 0)
    assert points[:2] == [
        Point(minute - 120, "letters", none, {}, {}, 70, None),
        Point(minute - 60, "letters", none, {}, {}, None, first),
    ]
    (all_,) = storage.metrics.read(NEVER, EVER, step=400_000 * 60 * 60)
    assert (all_.enqueued, all_.standing, all_.counts["completed"]) == (70, then, 5)
    found = storage.metrics.read_database(NEVER, EVER)
    assert [(point.at, point.figures) for point in found] == [(minute - 60, figures), (minute, figures)]
    assert len(storage.metrics.read_database(NEVER, EVER, step=400_000 * 60 * 60)) == 1


def test_a_step_is_whole_minutes(storage: Storage) -> None:
    for step in (0, 30, 90, -60):
        with pytest.raises(UsageError, match="whole minutes"):
            storage.metrics.read(NEVER, EVER, step=step)


def test_connections_are_counted(storage: Storage) -> None:
    storage.now()
    storage.queues()
    assert storage.metrics.connections() >= 1
    storage.close()
    assert storage.metrics.connections() == 0


@pytest.fixture
def stranger(pg_url: str) -> Iterator[Storage]:
    """Another schema's name is put into functions too."""
    with open_storage(pg_url, schema="elsewhere") as storage:
        storage.migrate()
        yield storage
    with psycopg.connect(pg_url, autocommit=True) as conn:
        conn.execute("drop schema elsewhere cascade")


def test_it_works_in_another_schema(stranger: Storage) -> None:
    for number in (1, 2):
        stranger.metrics.write(report(number, LETTERS, vitals=VITALS))
    assert whole(stranger) == {"letters": as_told(LETTERS, 2)}
    assert stranger.metrics.standing(10) == {}
    assert stranger.metrics.database().job_size


def test_done_jobs_stand_nowhere(storage: Storage, who: Incarnation) -> None:
    storage.enqueue(plain_jobs(2))
    end(storage, storage.claim(who, "letters", 2), Done())
    assert storage.metrics.standing(10) == {}


# -- what became of endings ----------------------------------------------------------------------------------------


def test_finalize_says_what_became_of_those_that_are_not_done(storage: Storage, who: Incarnation) -> None:
    jobs = [plain_job(max_attempts=1 if n == 1 else 5, priority=n) for n in range(8)]
    storage.enqueue(jobs)
    claims = storage.claim(who, "letters", 8)
    storage.cancel([claims[6].id])
    outcomes = [Done(), Failed("a"), Failed("b"), Dead("c"), Snooze(9.0), Throttled(), Failed("d"), Released("e", True)]
    endings = [Ending(claim, outcome) for claim, outcome in zip(claims, outcomes, strict=True)]
    stale = Ending(claims[2]._replace(token=1), Failed("not ours"))
    fates: Fates = [(endings[0], Status.DONE)]
    assert storage.finalize([*endings, stale], max_crashes=1, fates=fates) == [stale]
    assert fates[0][1] == Status.DONE, "it is added to"
    assert {claims.index(ending.claim): str(status) for ending, status in fates[1:]} == {
        1: "dead", 2: "failed", 3: "dead", 4: "pending", 5: "pending", 6: "cancelled", 7: "dead",
    }  # fmt: skip


def test_so_does_the_reaper(storage: Storage, url: str, who: Incarnation) -> None:
    storage.enqueue([plain_job(max_attempts=1), plain_job("parcels")])
    storage.claim(who, "letters", 1)
    storage.claim(who, "parcels", 1)
    age(url, "pod", "beat_at", 100)
    fates: Fates = []
    assert storage.reap(60.0, fates=fates).jobs == 2
    assert {ending.claim.queue: str(status) for ending, status in fates} == {"letters": "dead", "parcels": "failed"}
