"""Budgets as a pod's loop uses them: answered at once from what is leased, else when the database has been asked."""

from __future__ import annotations

import queue
from typing import Any

import pytest

from forge.config import LimitConfig
from forge.errors import DatabaseError
from forge.master.news import ErrandDone, News
from forge.master.queues.pod_budgets import PodBudgets
from forge.storage import Storage
from forge.storage.contract import Incarnation
from forge.storage.contract.budgets import Ask, Limit

pytestmark = pytest.mark.impl_free

MAIL = LimitConfig(capacity=10, refill_per_sec=1e-6)
Answers = list[tuple[float | None, str | None]]


class Somebody:
    """As much of a presence as budgets know of."""

    def __init__(self, storage: Storage) -> None:
        self.who: Incarnation = storage.register("ada", ["letters"], "north", 4711)


class Loop:
    """A pod's loop, turned by hand."""

    def __init__(self, storage: Storage, **limits: LimitConfig) -> None:
        self.storage, self.now = storage, 100.0
        self._news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.presence = Somebody(storage)
        self.asked = 0
        self.came: list[str] = []
        told = self.came.append
        self.budgets = PodBudgets(storage, self._post, self.presence, limits, told, clock=lambda: self.now)  # type: ignore[arg-type]

    def _post(self, news: News) -> None:
        self._news.put(news)

    @property
    def pending(self) -> int:
        return self.budgets._thread.busy

    def turn(self) -> None:
        """Until every request is back."""
        while self.pending:
            done: ErrandDone = self._news.get(timeout=30)
            done.thread.take_in(done)
            self.asked += 1

    def tick(self) -> None:
        self.budgets.tick(self.now)
        self.turn()

    def acquire(self, scope: str = "mail", tokens: int = 1) -> tuple[float | None, str | None]:
        """What a handler is told in the end."""
        answers: Answers = []
        self.budgets.acquire(scope, tokens, lambda *answer: answers.append(answer))
        self.turn()
        (answer,) = answers
        return answer

    def drain(self, scope: str = "mail") -> tuple[float | None, str | None]:
        answers: Answers = []
        self.budgets.drain(scope, lambda *answer: answers.append(answer))
        self.turn()
        (answer,) = answers
        return answer

    def leased(self, scope: str = "mail") -> int:
        (found,) = (budget for budget in self.storage.budgets.all() if budget.scope == scope)
        return sum(found.leased.values())

    def tokens(self, scope: str = "mail") -> float:
        (found,) = (budget for budget in self.storage.budgets.all() if budget.scope == scope)
        return round(found.tokens, 3)


GRANTED = (None, None)


@pytest.fixture
def loop(storage: Storage) -> Loop:
    return Loop(storage, mail=MAIL)


def test_tokens_are_granted_until_there_are_none(loop: Loop) -> None:
    assert [loop.acquire() for _ in range(11)] == [GRANTED] * 10 + [(60.0, None)]
    assert loop.tokens() == 0
    assert loop.acquire("mail", 3) == (60.0, None)


def test_what_is_leased_is_granted_without_asking_anybody(loop: Loop) -> None:
    loop.acquire()
    loop.acquire()  # and one more for the one that was spent in the last second
    before = loop.asked
    assert loop.acquire() == GRANTED
    assert loop.asked == before


def test_while_there_is_nothing_to_be_had_nobody_asks(loop: Loop) -> None:
    for _ in range(11):
        loop.acquire()
    before = loop.asked
    assert [loop.acquire() for _ in range(100)] == [(60.0, None)] * 100
    assert loop.asked == before
    loop.now += 5.6
    loop.acquire()
    assert loop.asked == before + 1


def test_handlers_that_ask_meanwhile_are_served_together_in_order(loop: Loop) -> None:
    answers: list[tuple[int, float | None, str | None]] = []
    for n in range(12):
        loop.budgets.acquire("mail", 1, lambda wait, error, n=n: answers.append((n, wait, error)))  # type: ignore[misc]
    assert answers == []
    loop.turn()
    assert answers == [(n, None, None) for n in range(10)] + [(n, 60.0, None) for n in (10, 11)]
    assert loop.asked <= 4


def test_who_wants_too_many_does_not_keep_others_from_the_few_there_are(loop: Loop) -> None:
    assert loop.acquire("mail", 8) == GRANTED
    assert loop.acquire("mail", 3) == (60.0, None)
    assert loop.acquire("mail", 2) == GRANTED


def test_the_budgets_that_everybody_uses_are_there_when_they_are_used(storage: Storage) -> None:
    loop = Loop(storage)
    loop.tick()
    assert storage.budgets.all() == []
    assert loop.acquire("slack", 50) == GRANTED
    assert loop.acquire("slack") == (2.4, None)
    assert loop.acquire("gh", 5000) == GRANTED
    assert [budget[:3] for budget in storage.budgets.all()] == [("gh", 5000, 5000 / 3600), ("slack", 50, 50 / 60)]


def test_settings_are_told_to_the_database_at_once_and_it_is_logged_if_another_pod_differed(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    loop.tick()
    assert [budget[:3] for budget in loop.storage.budgets.all()] == [("mail", 10, 1e-6)]
    other = Loop(loop.storage, mail=LimitConfig(capacity=20, refill_per_sec=2.0), calls=MAIL)
    other.tick()
    assert "budget mail: 20 tokens and 2/s, by the settings of this pod; it was 10 tokens and 1e-06/s" in caplog.text
    assert [budget[:3] for budget in loop.storage.budgets.all()] == [("calls", 10, 1e-6), ("mail", 20, 2.0)]
    other.budgets.change({"mail": LimitConfig(capacity=30, refill_per_sec=2.0)})
    other.tick()
    assert loop.storage.budgets.all()[1].capacity == 30


def test_a_budget_made_at_run_time_needs_no_settings(loop: Loop) -> None:
    loop.storage.budgets.set("late", Limit(1, 0.5))
    assert loop.acquire("late") == GRANTED
    assert loop.acquire("late") == (4.0, None)


def test_what_cannot_be_acquired_is_said(loop: Loop) -> None:
    for _ in range(2):
        said = loop.acquire("mali")[1]
        assert said == (
            "no budget mali; did you mean mail?; add [limits.mali] to forge.toml, or: forge budgets set mali"
        )
    for tokens in (11, 0, -1):
        for _ in range(2):
            assert str(loop.acquire("mail", tokens)[1]).endswith(f" tokens can be acquired, not {tokens}")
    assert loop.acquire("mail", 10) == GRANTED
    assert "no budget mali" in str(loop.drain("mali")[1])


def test_a_pod_that_needs_no_tokens_any_more_keeps_none(loop: Loop) -> None:
    loop.tick()
    for _ in range(3):
        loop.acquire()
    assert loop.leased() > 0
    assert loop.budgets.due == pytest.approx(101.0)
    loop.now = 101.0
    loop.tick()
    assert (loop.leased(), loop.tokens()) == (0, 7.0)
    assert loop.budgets.due > 1e9, "and asks nobody for anything"
    assert loop.acquire() == GRANTED


def test_a_pod_that_leaves_gives_back_what_it_has(loop: Loop) -> None:
    for _ in range(3):
        loop.acquire()
    loop.budgets.leave()
    assert (loop.leased(), loop.tokens()) == (0, 7.0)


def test_a_drain_empties_the_budget_for_all_pods(loop: Loop) -> None:
    other = Loop(loop.storage, mail=MAIL)
    for each in (loop, other):
        for _ in range(2):
            assert each.acquire() == GRANTED
    assert loop.drain() == GRANTED
    assert loop.tokens() == 0
    assert loop.acquire() == (60.0, None)
    assert other.budgets.reserve("mail", 1) == 1, "until it hears of it"
    other.budgets.drained("mail")
    other.budgets.drained("of no interest")
    assert other.budgets.reserve("mail", 1) == 0
    other.turn()
    assert other.acquire() == (60.0, None)
    loop.now += 30
    loop.tick()
    assert loop.acquire() == (60.0, None)


def test_a_pod_that_has_not_heard_of_a_drain_finds_out_with_its_next_request(loop: Loop) -> None:
    other = Loop(loop.storage, mail=MAIL)
    for _ in range(2):
        assert other.acquire() == GRANTED
    assert loop.drain() == GRANTED
    assert other.acquire("mail", 2) == (60.0, None)
    assert other.acquire() == (60.0, None)


def test_without_a_database_handlers_are_told_to_come_back_and_a_drain_is_made_good_later(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise DatabaseError("nobody is there")

    loop.acquire()
    with monkeypatch.context() as patch:
        for verb in ("lease", "drain", "declare"):
            patch.setattr(loop.storage.budgets, verb, away)
        assert loop.acquire("mail", 3) == (60.0, None)
        assert loop.drain() == GRANTED
    loop.now += 1.0
    assert loop.acquire() == (60.0, None)
    assert loop.tokens() == 0


def test_a_pod_that_had_been_taken_for_dead_has_no_tokens_and_asks_as_another(loop: Loop) -> None:
    for _ in range(2):
        loop.acquire()
    old = loop.presence.who.pod.id
    loop.presence.who = loop.storage.register("ada", ["letters"], "north", 4711)
    assert loop.budgets.reserve("mail", 1) == 0
    loop.turn()
    assert loop.budgets.reserve("mail", 1) == 1
    assert set(loop.storage.budgets.all()[0].leased) == {old, loop.presence.who.pod.id}


# -- for tasks with a declared limit -------------------------------------------------------------------------------


def test_what_is_not_there_is_fetched_and_told_of(loop: Loop) -> None:
    assert loop.budgets.reserve("mail", 4) == 0
    assert loop.came == []
    loop.turn()
    assert loop.came == ["mail"]
    assert loop.budgets.reserve("mail", 3) == 3
    loop.budgets.give_back("mail", 0)
    assert loop.budgets.reserve("mail", 3) == 1
    loop.turn()
    assert loop.came == ["mail", "mail"]
    assert loop.budgets.reserve("mail", 3) > 0


def test_who_reserves_far_more_than_it_needs_does_not_take_all_there_is(loop: Loop) -> None:
    loop.storage.budgets.set("calls", Limit(1000, 1e-6))
    assert loop.budgets.reserve("calls", 500) == 0
    loop.turn()
    assert loop.leased("calls") == 10
    assert loop.budgets.reserve("calls", 500) == 10
    loop.budgets.give_back("calls", 8)
    loop.turn()
    assert loop.budgets.reserve("calls", 500) == 8
    loop.turn()
    loop.now += 1.0
    loop.tick()
    assert loop.tokens("calls") < 1000


def test_what_is_not_to_be_had_yet_is_asked_for_when_it_should_be(loop: Loop) -> None:
    loop.tick()
    loop.storage.budgets.set("calls", Limit(2, 2.0))
    loop.acquire("calls", 2)
    assert loop.budgets.reserve("calls", 1) == 0
    loop.turn()
    assert loop.came == []
    assert loop.now < loop.budgets.due <= loop.now + 0.6
    loop.storage.budgets.set("calls", Limit(20, 1e6))
    loop.now = loop.budgets.due
    loop.tick()
    assert loop.came == ["calls"]
    assert loop.budgets.reserve("calls", 1) == 1


def test_what_is_given_back_is_there_again(loop: Loop) -> None:
    loop.budgets.reserve("mail", 4)
    loop.turn()
    assert loop.budgets.reserve("mail", 4) == 4
    loop.budgets.give_back("mail", 3)
    assert loop.budgets.reserve("mail", 4) == 3
    loop.turn()
    loop.budgets.leave()
    assert loop.tokens() == 6.0


def test_nothing_is_reserved_of_a_budget_that_nobody_made_until_somebody_does(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    assert loop.budgets.reserve("late", 1) == 0
    loop.turn()
    assert "jobs wait for tokens: no budget late" in caplog.text
    assert "no budget late" in str(loop.acquire("late")[1])
    loop.storage.budgets.set("late", Limit(1, 0.5))
    loop.now += 1.0
    loop.tick()
    assert loop.came == ["late"]
    assert loop.budgets.reserve("late", 1) == 1


def test_a_pod_says_all_with_each_request(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Ask] = []
    lease = loop.storage.budgets.lease

    def noted(who: Incarnation, scope: str, ask: Ask) -> Any:
        asked.append(ask)
        return lease(who, scope, ask)

    monkeypatch.setattr(loop.storage.budgets, "lease", noted)
    loop.acquire()
    loop.acquire("mail", 2)
    assert asked == [Ask(0, 0, 1, 1), Ask(0, 1, 2, 3)]
