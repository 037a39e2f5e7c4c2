"""What a pod counts and how it reports it: each ending once, whatever the database makes of it or does meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any, cast

import pytest

from forge.errors import DatabaseError
from forge.job import Cancelled, Claim, Dead, Done, Ending, Failed, Released, Snooze, Status, Throttled
from forge.master.finalizer import Finalizer
from forge.master.news import ErrandDone
from forge.master.pod.meter import AT_LEAST, EVERY, Meter, Metering, Processes
from forge.master.pod.process_use import ProcessUse, use_of
from forge.storage import Storage, open_storage
from forge.storage.contract import Incarnation
from forge.storage.contract.metrics import MetricReport, ReportTaken
from tests.storage.helpers import plain_job, plain_jobs

from .conftest import eventually

NEVER, EVER, ALL = 0.0, 4e9, 400_000 * 60 * 60


def claim(queue: str = "letters", number: int = 1) -> Claim:
    return Claim(0, None, plain_job().id, number, queue, "k", b"{}", 1, 5, 600, False, False)


def counted(meter: Meter) -> dict[str, int]:
    from forge.storage.contract.metrics import COUNTERS

    return {name: n for name, n in zip(COUNTERS, meter.tally("letters").counts, strict=True) if n}


def test_an_attempt_is_counted_by_what_became_of_it() -> None:
    meter = Meter()
    meter.ended(
        [
            (Ending(claim(), Failed("a")), Status.FAILED),
            (Ending(claim(), Failed("b")), Status.DEAD),
            (Ending(claim(), Dead("c")), Status.DEAD),
            (Ending(claim(), Throttled()), Status.PENDING),
            (Ending(claim(), Snooze(1.0)), Status.PENDING),
            (Ending(claim(), Released("d", crashed=True)), Status.PENDING),
            (Ending(claim(), Released("e", crashed=True)), Status.DEAD),
            (Ending(claim(), Released()), Status.PENDING),
            (Ending(claim(), Released("too old")), Status.DEAD),
            (Ending(claim(), Released()), Status.CANCELLED),
            (Ending(claim(), Failed("f")), Status.CANCELLED),
            (Ending(claim(), Cancelled()), Status.CANCELLED),
        ]
    )
    expected = {"failed": 3, "throttled": 1, "snoozed": 1, "crashed": 2, "cancelled": 3, "dead": 4}
    assert counted(meter) == expected


# -- what is written -----------------------------------------------------------------------------------------------


class Quiet:
    """Stands where the pod does, which is told that the database is there."""

    def is_back(self, *, written: bool = False) -> None:
        pass


def write(storage: Storage, endings: list[Ending], plain: list[Ending]) -> Meter:
    """Have a finalizer write them, and answer what it counted."""
    meter, news = Meter(), list[Any]()
    finalizer = Finalizer(storage, news.append, cast(Any, Quiet()), lambda *_: None, lambda: None, meter)
    if plain:
        finalizer.done(plain)
    for ending in endings:
        finalizer.end(ending)
    finalizer.start()
    finalizer.flush(3)
    assert counted(meter) == {}, "what is not written does not count"
    eventually(lambda: any(isinstance(each, ErrandDone) for each in news))
    done = next(each for each in news if isinstance(each, ErrandDone))
    done.thread.take_in(done)
    return meter


def test_what_was_accepted_counts_and_what_was_stale_does_not(storage: Storage) -> None:
    who = storage.register("ada", ["letters"], "north", 4711)
    storage.enqueue(plain_jobs(6))
    claims = storage.claim(who, "letters", 6)
    gone = [each._replace(token=7) for each in claims[4:]]
    plain = [Ending(each, Done()) for each in (*claims[:2], gone[0])]
    others = [Ending(claims[2], Failed("no")), Ending(claims[3], Done(), result=b"1"), Ending(gone[1], Failed("no"))]
    meter = write(storage, others, plain)
    assert counted(meter) == {"completed": 3, "failed": 1}
    assert sum(meter.spans["finalizes"]) == 1


def test_a_result_that_cannot_be_stored_counts_as_the_failure_that_it_becomes(pg_url: str) -> None:
    with open_storage(pg_url) as storage:
        who = storage.register("ada", ["letters"], "north", 4711)
        storage.enqueue([job._replace(keep_result=600) for job in plain_jobs(3)])
        claims = storage.claim(who, "letters", 3)
        endings = [Ending(each, Done(), result=b"{no JSON" if n == 1 else b"1") for n, each in enumerate(claims)]
        assert counted(write(storage, endings, [])) == {"completed": 2, "failed": 1, "dead": 1}


# -- reports -------------------------------------------------------------------------------------------------------


class Unsure:
    """A storage's metrics: takes a report and says nothing of it while the database is `away`."""

    due_epoch = 0.0

    def __init__(self, real: Storage) -> None:
        self.real, self.away, self.takes = real, False, True

    def write(self, report: MetricReport) -> ReportTaken:
        if self.takes:
            taken = self.real.metrics.write(report)
        if self.away:
            raise DatabaseError("gone")
        return taken

    def connections(self) -> int:
        return 1


class Far:
    """The storage around it."""

    def __init__(self, real: Storage) -> None:
        self.metrics = Unsure(real)

    def now(self) -> float:
        return time.time()


@pytest.fixture
def far(storage: Storage) -> Far:
    return Far(storage)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def metering(meter: Meter, far: Far, clock: Clock | None = None) -> Metering:
    found = Processes([], [])
    return Metering(meter, [cast(Any, far)], lambda: 1, lambda: found, clock or Clock())


def completed(storage: Storage) -> int:
    return sum(point.counts["completed"] for point in storage.metrics.read(NEVER, EVER))


def test_every_count_is_reported_once(storage: Storage, far: Far) -> None:
    meter = Meter()
    service = metering(meter, far)
    for n in (3, 4, 0, 5):
        meter.completed("letters", n)
        service.run_once(None)
    assert completed(storage) == 12
    assert service.every == EVERY


@pytest.mark.parametrize("takes", [True, False], ids=["taken", "lost"])
def test_a_report_whose_answer_was_lost_is_sent_again_as_it_was(storage: Storage, far: Far, takes: bool) -> None:
    meter = Meter()
    service = metering(meter, far)
    meter.completed("letters", 3)
    far.metrics.away, far.metrics.takes = True, takes
    for _ in range(3):
        with pytest.raises(DatabaseError):
            service.run_once(None)
        meter.completed("letters", 4)  # counted meanwhile
    far.metrics.away, far.metrics.takes = False, True
    service.run_once(None)
    assert completed(storage) == 3 + 3 * 4
    service.run_once(None)
    assert completed(storage) == 3 + 3 * 4


def test_the_last_report_is_made_even_if_one_before_was_in_doubt(storage: Storage, far: Far) -> None:
    meter = Meter()
    service = metering(meter, far)
    meter.completed("letters", 3)
    far.metrics.away = True
    with pytest.raises(DatabaseError):
        service.run_once(None)
    meter.completed("letters", 1)
    service.last(1.0)  # still away: it says so and goes
    far.metrics.away = False
    service.last(1.0)
    assert completed(storage) == 4


def test_an_idle_pod_reports_once_a_minute(storage: Storage, far: Far) -> None:
    meter, clock = Meter(), Clock()
    service = metering(meter, far, clock)
    service.run_once(None)
    assert len(storage.metrics.read_pods(NEVER, EVER, step=ALL)) == 1
    far.metrics.away = True  # whatever it would say now would be an error
    for _ in range(5):
        clock.now += EVERY
        service.run_once(None)
    far.metrics.away = False
    meter.took("beats", time.monotonic())
    clock.now += AT_LEAST
    service.run_once(None)
    (point,) = storage.metrics.read_pods(NEVER, EVER, step=ALL)
    assert sum(point.timings["beats"].values()) == 1


def test_reaped_jobs_are_counted_by_whoever_took_them(storage: Storage, far: Far) -> None:
    meter = Meter()
    service = metering(meter, far)
    meter.completed("letters", 2)
    meter.taken_back([(Ending(claim(), Failed("r")), Status.FAILED), (Ending(claim("web"), Failed("r")), Status.DEAD)])
    service.run_once(None)
    found = {p.queue: {k: n for k, n in p.counts.items() if n} for p in storage.metrics.read(NEVER, EVER, step=ALL)}
    assert found == {"letters": {"completed": 2, "reaped": 1}, "web": {"reaped": 1, "dead": 1}}


# -- clocks and processes ------------------------------------------------------------------------------------------


def test_latency_goes_by_the_databases_clock(storage: Storage) -> None:
    """The clock of `run_at` as the storage has it, whatever its epoch."""
    who: Incarnation = storage.register("ada", ["letters"], "north", 4711)
    storage.enqueue([plain_job()])
    (found,) = storage.claim(who, "letters", 1)
    meter = Meter()
    meter.ask_clock(storage)
    assert meter.ahead is not None
    late = time.monotonic() + meter.ahead - found.run_at / 1e6
    assert -1.0 < late < 120.0


def test_a_question_that_took_long_is_not_listened_to_while_a_better_one_is_young(storage: Storage) -> None:
    meter = Meter()
    meter.ask_clock(storage)
    before = meter.ahead
    meter._asked = 0.0, time.monotonic()  # none can be better
    meter.ask_clock(storage)
    assert meter.ahead == before
    meter._asked = 0.0, time.monotonic() - 3600
    meter.ask_clock(storage)
    assert meter.ahead != before


def test_processes_are_looked_at_from_one_time_to_the_next() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        use = ProcessUse()
        use.look([], [], pss=False)  # what the children of this very process have used before
        total = 0.0

        def worked() -> bool:
            nonlocal total
            cpu, memory = use.look([], [busy.pid, 0, 2**22 + 1], pss=True)
            total += cpu["workers_cpu"]
            assert memory["workers_rss"] >= memory["workers_pss"] > 0
            return total > 0.05

        eventually(worked)
        assert total < 60, "each look tells what is new"
    finally:
        busy.kill()
        busy.wait()


def test_a_process_that_is_gone_uses_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert use_of(gone.pid) is None
    own = use_of(os.getpid(), pss=True)
    assert own is not None
    assert own.rss > 1_000_000 and own.pss and own.cpu > 0
