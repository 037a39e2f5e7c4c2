"""What a pod claims next: the look at idle queues, and how large payloads share its memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from forge.config import Config
from forge.job import Claim
from forge.master.pod_state import PodState
from forge.master.queues.claimer import LEAST_BYTES, MOST_HELD, Claimer
from forge.master.queues.local_queue import LocalQueue
from forge.storage.shared.low_water import MOST_BYTES, LowWater

from .test_local_queue import claims, local_queue

pytestmark = pytest.mark.impl_free

MIB = 1024 * 1024


class Looked:
    """Stands where the storage does, and the thread: an errand is run at once."""

    def __init__(self, seconds: float | None, error: str | None = None) -> None:
        self._answer = seconds, error
        self.looks: list[tuple[list[str], Any]] = []
        self.outages: list[str] = []
        self.stuck = False

    def next_due(self, queues: list[str], low_waters: Any) -> float | None:
        self.looks.append((queues, low_waters))
        return self._answer[0]

    def send(self, errand: Callable[[], Any], then: Callable[[Any, str | None], None]) -> None:
        answer = errand()
        if not self.stuck:
            then(None if self._answer[1] else answer, self._answer[1])

    def outage(self, error: str) -> None:
        self.outages.append(error)


def claimer(storage: Any = None, **queues: LocalQueue) -> Any:
    nobody = SimpleNamespace(take=lambda claims: claims)
    made: Any = Claimer(
        storage,
        cast(Any, None),
        state=PodState(Config()),
        presence=storage,
        zygotes=cast(Any, None),
        queues=queues,
        programs=cast(Any, nobody),
        finalizer=cast(Any, None),
        budgets=cast(Any, None),
        meter=cast(Any, None),
    )
    made.thread = storage
    return made


def test_the_look_at_idle_queues_goes_by_the_marks_of_their_claims() -> None:
    database, a, b = Looked(-1.0), local_queue(1), local_queue(1)
    for each in (a, b):
        each.wanted(0.0)
        each._look_at = 1e12
    claimer(database, a=a, b=b).look(["a", "gone"])
    assert database.looks == [(["a"], {"a": a.low_water})]
    assert (a._look_at < 1e12, b._look_at) == (True, 1e12), "what is due is claimed"


def test_a_look_that_fails_is_told_as_an_outage_and_one_under_way_is_not_joined_by_another() -> None:
    database = Looked(None, "it is away")
    made = claimer(database, a=local_queue(1))
    made.look(["a"])
    assert database.outages == ["it is away"]
    database.stuck = True
    made.look(["a"])
    made.look(["a"])
    assert len(database.looks) == 2
    made.look([])
    assert len(database.looks) == 2


def heavy(made: Any, each: LocalQueue, size: int) -> LocalQueue:
    """A queue that holds so many bytes, in jobs of 1 MiB."""
    each.claimed(claims(size // MIB, b" " * MIB), 1, 1)
    each.weigh_in(size // MIB, size)
    made._heavy.add(each)
    return each


def test_a_queue_that_holds_as_much_as_it_may_claims_nothing_and_waits_for_its_jobs_to_end() -> None:
    made, full, other = claimer(), local_queue(1), local_queue(1)
    heavy(made, full, MOST_HELD - LEAST_BYTES + MIB)
    full.more_waits, full.room = True, 10
    assert made._most_bytes(full, 1.0) == 0
    assert full.next_look() is None, "else the loop would not rest"
    assert made._most_bytes(other, 1.0) == MOST_BYTES, "and nobody else feels it"
    full.waiting.popleft()
    assert made._most_bytes(full, 2.0) == LEAST_BYTES
    full.waiting.clear()
    assert made._most_bytes(full, 3.0) == MOST_BYTES
    assert not made._heavy


def test_queues_with_large_payloads_have_even_shares_of_a_claims_worth_at_least() -> None:
    made = claimer()
    queues = [heavy(made, local_queue(1), MOST_HELD // 2 - MOST_BYTES) for _ in range(2)]
    assert [made._most_bytes(each, 1.0) for each in queues] == [MOST_BYTES, MOST_BYTES]
    queues.append(heavy(made, local_queue(1), MIB))
    assert [made._most_bytes(each, 2.0) for each in queues] == [0, 0, MOST_BYTES]
    queues += [heavy(made, local_queue(1), MIB) for _ in range(9)]
    assert made._most_bytes(queues[-1], 3.0) == MOST_BYTES - MIB


class Claims(Looked):
    """The same where jobs are claimed, and none comes."""

    lined: frozenset[str] = frozenset()
    who = None

    def __init__(self) -> None:
        super().__init__(None)
        self.whole: list[bool] = []  # scans, from the start or not

    def claim(self, _who: Any, _queue: str, n: int, water: LowWater, _most_bytes: int) -> list[Claim]:
        now = time.monotonic()
        marks = water.begin(now)
        self.whole.append(marks is None)
        water.note(claims(n), marks, True, now - 1.0, now)  # it took long: the next whole one is a minute away
        return []

    def is_back(self) -> None: ...

    def took(self, _what: str, _began: float) -> None: ...


def test_jobs_that_were_given_back_are_looked_for_in_front_of_the_marks_however_dear_that_is() -> None:
    database, each = Claims(), local_queue(1)
    made = claimer(database, q=each)
    made._meter, made._zygotes = database, SimpleNamespace(current=SimpleNamespace(kinds={}))

    def claim() -> bool:
        each.wake()
        made.claim(each, time.monotonic())
        return database.whole[-1]

    assert [claim() for _ in range(3)] == [True, False, False]
    each.jobs_came_back()
    assert [claim() for _ in range(2)] == [True, False]
