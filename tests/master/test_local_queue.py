"""How many jobs a pod claims of a queue, and which worker gets which."""

from __future__ import annotations

import itertools
from uuid import UUID

import pytest

from forge.config import QueueConfig
from forge.job import Claim
from forge.master.queues.local_queue import BYTES_AHEAD, MOST_AHEAD, LocalQueue
from forge.master.workers.slot import Slot

numbers = itertools.count(1)


def claims(n: int, payload: bytes = b"{}") -> list[Claim]:
    return [Claim(0, None, UUID(int=next(numbers)), 1, "q", "k", payload, 1, 5, 600, False, False) for _ in range(n)]


def local_queue(workers: int, took: float | None = None) -> LocalQueue:
    made = LocalQueue("q", QueueConfig(max_workers=workers), 10.0)
    for slot in made.slots:
        slot.ready = True
    if took is not None:
        made.note(took)
    return made


def hands(slot: Slot) -> list[Claim]:
    return [claim for claim, _ in slot.in_hand.values()]


def test_jobs_go_to_workers_in_turn_so_that_the_first_in_line_start_first() -> None:
    made, jobs = local_queue(3, took=0.0001), claims(7)
    made.claimed(jobs, 7, 7)
    assert made.dispatch(0.0)
    assert [hands(slot) for slot in made.slots] == [jobs[0::3], jobs[1::3], jobs[2::3]]
    assert not made.dispatch(0.0)


def test_who_has_fewer_is_filled_up_first() -> None:
    made = local_queue(3, took=0.001)  # five each
    made.slots[0].send(claims(4), 0.0)
    made.slots[1].send(claims(2), 0.0)
    jobs = claims(6)
    made.claimed(jobs, 6, 6)
    made.dispatch(0.0)
    assert [len(slot.in_hand) for slot in made.slots] == [4, 4, 4]
    assert hands(made.slots[2])[:2] == jobs[:2]
    made.claimed(claims(20), 20, 20)
    made.dispatch(0.0)
    assert [len(slot.in_hand) for slot in made.slots] == [5, 5, 5], "and nobody gets more than there is room for"
    assert len(made.waiting) == 17


def test_a_worker_that_is_not_free_gets_none() -> None:
    made = local_queue(2, took=0.001)
    made.slots[0].draining = True
    made.claimed(claims(3), 3, 3)
    made.dispatch(0.0)
    assert [len(slot.in_hand) for slot in made.slots] == [0, 3]


def test_one_long_job_among_short_ones_is_heeded_and_a_hiccup_is_not() -> None:
    made = local_queue(1)
    made.note_all(1000, 1000 * 2e-6, 2e-6)
    assert made.window > 1000
    made.note_all(500, 500 * 2e-6 + 0.01, 0.01)
    assert made.window > 100
    made.note_all(500, 500 * 2e-6 + 0.06, 0.06)
    assert made.window == 1


@pytest.mark.parametrize(("took", "window"), [(None, 1), (1e-6, MOST_AHEAD), (0.001, 5), (0.004, 1), (3.0, 1)])
def test_the_longer_jobs_take_the_fewer_are_sent_ahead(took: float | None, window: int) -> None:
    assert local_queue(1, took).window == window


def test_a_batch_counts_as_its_jobs_one_by_one_would() -> None:
    one_by_one, together = local_queue(1, took=0.003), local_queue(1, took=0.003)
    for _ in range(40):
        one_by_one.note(0.0001)
    together.note_all(40, 40 * 0.0001, 0.0001)
    assert together.window == one_by_one.window > 1
    together.note_all(2, 1.0001, 1.0)
    assert together.window == 1, "one long job is reason enough to stop sending ahead"


def test_large_payloads_are_not_piled_up_in_workers() -> None:
    made = local_queue(2, took=1e-6)
    made.weigh_in(1, BYTES_AHEAD // 10)
    assert made.window == 10
    assert made.wanted(0.0) <= 2 * 2 * 10
    for _ in range(30):
        made.weigh_in(1, 2)
    assert made.window == MOST_AHEAD, "they are forgotten in time"


def test_what_a_queue_holds_is_weighed_once_a_large_payload_has_come_and_until_it_has_gone() -> None:
    made = local_queue(1, took=1e-6)
    made.claimed(claims(50), 50, 50)
    made.weigh_in(50, 100)
    assert (made.heavy, made.weight(1.0)) == (False, 0)
    light = sum(len(claim.payload) for claim in made.waiting)
    made.claimed(claims(1, b" " * 100_000), 1, 1)
    made.weigh_in(1, 100_000)
    assert made.weight(1.0) == light + 100_000
    made.dispatch(1.0)
    assert not made.waiting and made.slots[0].in_hand
    made._in_programs.bytes["q"] = 7_000_000
    assert made.weight(2.0) == light + 7_100_000, "what workers and programs have counts as well"
    made.slots[0].in_hand.clear()
    made._in_programs.bytes["q"] = 0
    assert made.weight(3.0) == 0
    assert not made.heavy


def test_a_claim_is_for_no_more_jobs_than_its_bytes_are_enough_for() -> None:
    made = local_queue(1, took=1e-6)
    assert made.most_of(1000) == 1000
    made.weigh_in(2, 1000)
    assert (made.most_of(1000), made.most_of(10)) == (2, 1)


def test_short_jobs_are_claimed_before_the_last_one_that_waits_is_gone() -> None:
    made = local_queue(8, took=0.002)  # two each, and five more for each in the master's hands
    made.more_waits = True
    assert made.wanted(0.0) == 8 * (2 + 5)
    made.claimed(claims(56), 56, 56)
    made.dispatch(0.0)
    assert (len(made.waiting), made.wanted(0.0)) == (40, 0)
    while len(made.waiting) > 20:
        assert made.wanted(0.0) == 0, "a claim for a few is not worth its round trip"
        made.waiting.popleft()
    assert made.wanted(0.0) == 20


@pytest.mark.parametrize("took", [None, 1.0])
def test_long_jobs_and_unknown_ones_are_claimed_when_a_worker_is_free_for_them(took: float | None) -> None:
    made = local_queue(8, took)
    made.more_waits = True
    assert made.wanted(0.0) == 8
    made.claimed(claims(8), 8, 8)
    made.dispatch(0.0)
    assert made.wanted(0.0) == 0
    made.slots[3].in_hand.clear()
    assert made.wanted(0.0) == 1
