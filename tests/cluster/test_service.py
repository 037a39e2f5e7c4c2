"""The skeleton of services: when they run, what an error does, and that leader services run with a term or not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from forge.cluster import service as skeleton
from forge.cluster.service import HASTE, JITTER, Service, ServiceRunner
from forge.errors import DatabaseError, LostLease
from tests.master.conftest import eventually

pytestmark = pytest.mark.impl_free


class Clock:
    """Moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Told(Service):
    """Does what the test says, and notes the terms it was run with."""

    def __init__(
        self,
        do: Callable[[], str | None] = lambda: None,
        *,
        every: float = 10.0,
        leader_only: bool = False,
        name: str = "told",
    ) -> None:
        self.name, self.every, self.leader_only, self.do = name, every, leader_only, do
        self.terms: list[int | None] = []

    def run_once(self, term: int | None) -> str | None:
        self.terms.append(term)
        return self.do()


def run_due(runner: ServiceRunner) -> None:
    """One round of every service whose time it is, one after another, in this thread."""
    for turn in sorted(runner._turns, key=lambda turn: turn.at):
        runner._look_at(turn)


class Leading:
    """A lease that says what the test says."""

    def __init__(self, term: int | None = None) -> None:
        self.current = term
        self.tended = 0
        self.dropped: list[int] = []
        self.released = threading.Event()

    def term(self) -> int | None:
        return self.current

    def tend(self) -> float:
        self.tended += 1
        return 0.001

    def drop(self, term: int) -> None:
        self.dropped.append(term)
        self.current = None

    def release(self) -> None:
        self.current = None
        self.released.set()


def fail(error: Exception) -> Callable[[], str | None]:
    def do() -> str | None:
        raise error

    return do


def rounds(runner: ServiceRunner, clock: Clock, seconds: float, step: float = 0.25) -> None:
    """Let time pass."""
    for _ in range(round(seconds / step)):
        clock.now += step
        run_due(runner)


def test_a_service_runs_at_its_pace_give_or_take_the_jitter() -> None:
    clock, service = Clock(), Told(every=10.0)
    rounds(ServiceRunner([service], clock=clock), clock, 1000)
    assert 1000 / 12.5 <= len(service.terms) <= 1000 / 8 + 1


def test_pods_do_not_work_in_step() -> None:
    clock = Clock()
    services = [Told(every=10.0) for _ in range(50)]
    for service in services:
        runner = ServiceRunner([service], clock=clock)
        for turn in runner._turns:
            assert clock.now <= turn.at <= clock.now + 10
    firsts = {round(turn.at, 3) for service in services for turn in ServiceRunner([service], clock=clock)._turns}
    assert len(firsts) > 10


def test_a_service_for_which_there_is_something_to_do_is_run_within_a_second() -> None:
    clock, service, other = Clock(), Told(every=60.0), Told(every=60.0, name="other")
    runner = ServiceRunner([service, other], clock=clock)
    rounds(runner, clock, 100)
    before, beside = len(service.terms), len(other.terms)
    runner.hasten(service.name)
    rounds(runner, clock, HASTE)
    assert (len(service.terms), len(other.terms)) == (before + 1, beside)
    for _ in range(80):  # told over and over
        runner.hasten(service.name)
        rounds(runner, clock, 0.25)
    assert 20 / HASTE / (1 + JITTER) - 1 <= len(service.terms) - before <= 20 / HASTE / (1 - JITTER) + 2


def test_what_is_told_during_a_round_is_not_forgotten_at_its_end() -> None:
    clock, service = Clock(), Told(every=60.0)
    runner = ServiceRunner([service], clock=clock)

    def do() -> str | None:
        if len(service.terms) == 1:
            runner.hasten(service.name)
        return None

    service.do = do
    rounds(runner, clock, 60)
    while not service.terms:
        rounds(runner, clock, 1)
    rounds(runner, clock, HASTE * (1 + JITTER) + 0.25)
    assert len(service.terms) == 2


def test_a_service_may_ask_for_its_next_round_soon() -> None:
    clock, service = Clock(), Told(every=60.0)
    runner = ServiceRunner([service], clock=clock)

    def do() -> str | None:
        service.every = 1.0 if len(service.terms) < 5 else 1000.0
        return None

    service.do = do
    rounds(runner, clock, 60 + 8)
    assert len(service.terms) == 5


def test_errors_make_the_pauses_longer_up_to_a_bound_and_success_makes_them_short_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, service = Clock(), Told(fail(DatabaseError("the disk is full")), every=1.0)
    runner = ServiceRunner([service], clock=clock)
    rounds(runner, clock, 600)
    failed = len(service.terms)
    assert 600 / (skeleton.LONGEST_BACKOFF * 1.2) <= failed <= 6 + 600 / (skeleton.LONGEST_BACKOFF * 0.8)
    said = [record for record in caplog.records if "the disk is full; trying again" in record.getMessage()]
    assert 1 <= len(said) <= 600 / skeleton.TELL_EVERY + 1
    assert {(record.levelno, record.__dict__["who"]) for record in said} == {(logging.WARNING, "told")}
    service.do = lambda: None
    rounds(runner, clock, 200)
    assert len(service.terms) - failed >= 100


def test_an_error_in_one_service_does_not_keep_the_others_from_their_rounds(caplog: pytest.LogCaptureFixture) -> None:
    clock, bad, good = Clock(), Told(fail(ZeroDivisionError("by zero")), every=1.0, name="bad"), Told(every=1.0)
    rounds(ServiceRunner([bad, good], clock=clock), clock, 60)
    assert len(good.terms) >= 45
    assert "ZeroDivisionError: by zero; trying again" in caplog.text


def test_what_a_round_did_is_logged_and_nothing_is_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock, service = Clock(), Told(lambda: "3 rows deleted" if len(service.terms) == 2 else None, every=1.0)
    rounds(ServiceRunner([service], clock=clock), clock, 30)
    assert [record.getMessage() for record in caplog.records] == ["3 rows deleted"]


def test_a_leader_service_runs_only_with_a_term_and_at_once_when_there_is_one() -> None:
    clock, lease = Clock(), Leading()
    led, free = Told(leader_only=True, every=1000.0), Told(every=1.0)
    runner = ServiceRunner([led, free], lease, clock=clock)
    rounds(runner, clock, 2000)
    assert led.terms == []
    assert set(free.terms) == {None}
    lease.current = 7
    run_due(runner)
    assert led.terms == [7]
    lease.current = None
    rounds(runner, clock, 3000)
    assert led.terms == [7]
    lease.current = 8
    run_due(runner)
    assert led.terms == [7, 8]


def test_who_has_just_started_begins_with_what_is_urgent() -> None:
    clock, lease = Clock(), Leading(term=1)
    led, pressing = Told(every=600, leader_only=True), Told(every=600, leader_only=True)
    pressing.urgent = True
    runner = ServiceRunner([led, pressing], lease, clock=clock, quiet=5.0)
    for turn in runner._turns:
        turn.at = clock.now + 600
    run_due(runner)
    assert (led.terms, pressing.terms) == ([], [1])
    clock.now += 5
    run_due(runner)
    assert (led.terms, pressing.terms) == ([1], [1])
    lease.current = 2
    run_due(runner)
    assert (led.terms, pressing.terms) == ([1, 2], [1, 2]), "the quiet is over"


def test_without_a_lease_no_leader_service_runs() -> None:
    clock, led = Clock(), Told(leader_only=True, every=1.0)
    rounds(ServiceRunner([led], clock=clock), clock, 10)
    assert led.terms == []


def test_a_refused_write_drops_the_term_before_the_next_leader_service_runs(caplog: pytest.LogCaptureFixture) -> None:
    clock, lease = Clock(), Leading(7)
    first, second = (Told(fail(LostLease("over")), leader_only=True, every=1.0, name=name) for name in "ab")
    rounds(ServiceRunner([first, second], lease, clock=clock), clock, 60)
    assert lease.dropped == [7]
    assert first.terms + second.terms == [7]
    assert "trying again" not in caplog.text


def test_the_lease_is_tended_while_a_round_takes_long_and_given_back_only_after_it() -> None:
    go, lease = threading.Event(), Leading(7)
    service = Told(lambda: str(go.wait(60)), leader_only=True, every=0.001)
    runner = ServiceRunner([service], lease)
    runner.start()
    eventually(lambda: service.terms)
    before = lease.tended
    eventually(lambda: lease.tended > before + 3)
    runner.stop()
    assert not runner.join(0.05)
    assert not lease.released.is_set()
    go.set()
    assert runner.join(60)
    assert lease.released.is_set()
    assert len(service.terms) == 1


def test_a_leader_whose_service_hangs_lets_another_pod_lead(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(skeleton, "STUCK_AFTER", 0.05)
    go, lease = threading.Event(), Leading(7)
    service = Told(lambda: str(go.wait(60)), leader_only=True, every=0.001)
    runner = ServiceRunner([service], lease)
    runner.start()
    eventually(lease.released.is_set)
    tended = lease.tended
    assert "does not come back" in caplog.text
    go.set()
    eventually(lambda: lease.tended > tended)  # it is back, and may ask again
    runner.stop()
    assert runner.join(60)


def test_a_service_that_hangs_keeps_no_other_from_its_rounds() -> None:
    go, lease = threading.Event(), Leading(7)
    stuck = Told(lambda: str(go.wait(60)), leader_only=True, every=0.001, name="stuck")
    led, free = Told(leader_only=True, every=0.001), Told(every=0.001)
    runner = ServiceRunner([stuck, led, free], lease)
    runner.start()
    eventually(lambda: stuck.terms)
    before = len(led.terms), len(free.terms)
    eventually(lambda: len(led.terms) > before[0] + 3 and len(free.terms) > before[1] + 3)
    assert stuck.terms == [7]
    lease.drop(7)  # a write of one of them was refused: none begins anything more
    begun = len(led.terms) + 1  # the round that had asked for its term before
    more = len(free.terms)
    eventually(lambda: len(free.terms) > more + 3)
    go.set()
    runner.stop()
    assert runner.join(60)
    assert len(led.terms) <= begun
    assert stuck.terms == [7]


def test_a_hanging_service_of_every_pod_does_not_cost_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skeleton, "STUCK_AFTER", 0.0)
    go, lease = threading.Event(), Leading(7)
    service = Told(lambda: str(go.wait(60)), every=0.001)
    runner = ServiceRunner([service], lease)
    runner.start()
    eventually(lambda: service.terms)
    before = lease.tended
    eventually(lambda: lease.tended > before + 3)
    assert not lease.released.is_set()
    go.set()
    runner.stop()
    assert runner.join(60)


def test_a_runner_with_nothing_to_run_stops_at_once() -> None:
    runner = ServiceRunner([])
    runner.start()
    runner.stop()
    assert runner.join(60)


def test_who_hears_that_nobody_leads_asks_at_once() -> None:
    class Patient(Leading):
        def tend(self) -> float:
            super().tend()
            return 3600.0

    lease = Patient()
    runner = ServiceRunner([], lease)
    runner.start()
    eventually(lambda: lease.tended == 1)
    runner.poke()
    eventually(lambda: lease.tended == 2)
    runner.stop()
    assert runner.join(60)


def test_when_one_service_is_well_again_the_others_do_not_wait_out_their_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(skeleton, "LONGEST_BACKOFF", 1000.0)
    clock, away = Clock(), [True]

    def do() -> str | None:
        if away[0]:
            raise DatabaseError("away")
        return None

    quick, slow, sick = Told(do, every=1.0), Told(do, every=2.0), Told(fail(ValueError("for good")), every=1.0)
    runner = ServiceRunner([quick, slow, sick], clock=clock)
    rounds(runner, clock, 1000)
    before, failed = len(slow.terms), len(sick.terms)
    assert before <= 12
    away[0] = False
    for turn in runner._turns:
        if turn.service is quick:
            turn.at = clock.now
    rounds(runner, clock, 3)
    assert len(slow.terms) > before
    rounds(runner, clock, 1000)
    assert len(sick.terms) <= failed + 4, "which is no reason to try again and again what fails for good"
