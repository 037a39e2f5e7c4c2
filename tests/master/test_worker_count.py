"""How many workers are worth having, over simulated time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from forge.config import QueueConfig
from forge.master.queues.local_queue import LocalQueue
from forge.master.queues.worker_count import WorkerCount

pytestmark = pytest.mark.impl_free

TICK = 0.2


class Pretend:
    """A queue with so many jobs at each moment, looked at as often as a master does."""

    def __init__(self, least: int = 1, most: int = 16, shrink_after: float = 60.0) -> None:
        self.scaler, self.least, self.most, self.shrink_after = WorkerCount(least), least, most, shrink_after
        self.now = 1000.0
        self.sizes: list[int] = [least]

    def run(self, seconds: float, jobs: Callable[[float], int]) -> int:
        """`jobs` tells how many there are to do at that time; the answer is the size in the end."""
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            wanted, size = jobs(self.now), self.scaler.size
            busy = min(wanted, size)
            asks = self.scaler.look(self.now, self.least, self.most, self.shrink_after, busy, busy == size > 0)
            if asks and wanted > size:
                self.scaler.told(self.now, self.most)
            if self.scaler.size != self.sizes[-1]:
                self.sizes.append(self.scaler.size)
        return self.scaler.size


def test_work_that_waits_brings_all_workers_within_seconds() -> None:
    queue = Pretend()
    assert queue.run(3.0, lambda _: 100) == 16
    assert queue.sizes == [1, 2, 4, 8, 16]


def test_workers_that_nobody_needs_go_at_leisure() -> None:
    queue = Pretend(shrink_after=10)
    queue.run(3.0, lambda _: 100)
    assert queue.run(9.0, lambda _: 0) == 16, "not before they have been idle for so long"
    assert queue.run(60.0, lambda _: 0) == 1
    assert queue.sizes == [1, 2, 4, 8, 16, 8, 4, 2, 1]


def test_a_job_for_each_worker_is_no_reason_for_more() -> None:
    queue = Pretend(least=4)
    assert queue.run(100.0, lambda _: 4) == 4
    assert queue.sizes == [4]


def test_a_steady_load_is_followed_once() -> None:
    queue = Pretend(shrink_after=10)
    assert queue.run(600.0, lambda _: 5) == 5
    assert queue.sizes == [1, 2, 4, 8, 5]


@pytest.mark.parametrize("period", [1.0, 7.0, 25.0])
def test_a_load_that_goes_up_and_down_within_the_time_does_not_flap(period: float) -> None:
    queue = Pretend(shrink_after=30)
    queue.run(60.0, lambda now: round(6 + 6 * math.sin(now * 2 * math.pi / period)))
    settled = len(queue.sizes)
    queue.run(600.0, lambda now: round(6 + 6 * math.sin(now * 2 * math.pi / period)))
    assert len(queue.sizes) - settled <= 1
    assert 6 <= queue.scaler.size <= 16


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_it_stays_within_bounds_and_ends_where_it_should(seed: int) -> None:
    rng, queue = random.Random(seed), Pretend(shrink_after=2)
    for _ in range(50):
        queue.least = rng.randint(1, 4)
        queue.most = rng.randint(queue.least, 20)
        jobs = rng.choice([0, 1, 3, 10, 50])
        size = queue.run(rng.uniform(1, 10), lambda _, jobs=jobs: jobs)  # type: ignore[misc]
        assert queue.least <= size <= queue.most
    queue.most = 20
    assert queue.run(60.0, lambda _: 100) == 20
    assert queue.run(60.0, lambda _: 0) == queue.least


def test_a_share_below_the_least_is_all_there_is() -> None:
    queue = Pretend(least=4, most=4)
    queue.most = 2
    assert queue.run(1.0, lambda _: 100) == 2
    queue.most = 0
    assert queue.run(1.0, lambda _: 100) == 0
    queue.most = 8
    assert queue.run(3.0, lambda _: 100) == 8


# -- a queue -----------------------------------------------------------------------------------------------------------


def made(**settings: int) -> LocalQueue:
    return LocalQueue("q", QueueConfig(max_workers=8, **settings), 10.0)  # type: ignore[arg-type]


def test_without_min_workers_a_queue_has_its_share() -> None:
    queue = made()
    assert queue.size == 8
    queue.limit = 3
    queue.settle()
    assert (queue.size, queue.places, queue.scale(0.0)) == (3, 3, False)


def test_with_min_workers_places_are_still_the_share_for_programs_need_no_worker() -> None:
    queue = made(min_workers=2)
    assert (queue.size, queue.places) == (2, 8)


def test_an_operators_worker_more_or_less_is_beside_the_share() -> None:
    queue = made()
    queue.offset = 1
    queue.settle()
    assert queue.size == 9
    queue.limit = 4
    queue.settle()
    assert queue.size == 5
    queue.limit, queue.offset = 2, -7
    queue.settle()
    assert queue.size == 1, "never less than one"
    queue.limit = 0
    queue.settle()
    assert queue.size == 0, "but for a queue that is paused, or all of whose workers are elsewhere"


def test_what_is_held_is_processes_or_places_of_programs() -> None:
    queue = made()
    assert queue.held(0) == 0, "none has a process yet"
    assert queue.held(3) == 3
    queue.offset = 2
    assert queue.held(3) == 1, "the operator's own are not the cluster's"
