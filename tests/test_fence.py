"""The times that a pod's fence has, as the master writes them and everybody else reads them."""

from __future__ import annotations

import math
import os

import pytest

from forge import fence
from forge.fence import Deadlines, Fence
from forge.worker.losing import Losing

pytestmark = pytest.mark.impl_free


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(fence, "clock", found)
    return found


def seen(made: Fence) -> Deadlines:
    return Deadlines(os.dup(made.fd))


def test_nothing_is_limited_before_the_first_beat(clock: Clock) -> None:
    made = Fence()
    read = seen(made)
    assert (read.tell_at, read.interrupt_at, read.kill_at) == (math.inf, math.inf, math.inf)
    assert not made.passed()


def test_the_times_count_from_the_start_of_the_last_confirmed_beat(clock: Clock) -> None:
    made = Fence()
    read = seen(made)
    made.confirm(990.0, stale_after=60.0)
    assert (read.tell_at, read.interrupt_at, read.kill_at) == (1038.0, 1041.0, 1044.0)
    made.confirm(1000.0, stale_after=60.0)
    assert (read.tell_at, read.interrupt_at, read.kill_at) == (1048.0, 1051.0, 1054.0)
    clock.now = 1053.9
    assert not made.passed()
    clock.now = 1054.0
    assert made.passed()


def test_a_beat_confirmed_too_late_does_not_hide_that_the_time_was_over(clock: Clock) -> None:
    """A zygote may have seen it, and killed: the master must know."""
    made = Fence()
    made.confirm(1000.0, stale_after=10.0)
    clock.now = 1009.0
    made.confirm(1008.5, stale_after=10.0)
    assert made.passed()
    assert not made.passed(), "once"


def test_who_reads_the_times_cannot_change_them() -> None:
    read = seen(Fence())
    with pytest.raises(TypeError):
        read._words[0] = 0.0


def test_a_worker_tells_its_handlers_and_then_interrupts_them_once_each(clock: Clock) -> None:
    made = Fence()
    losing = Losing(seen(made), clock)
    made.confirm(1000.0, stale_after=10.0)
    assert losing.step() is None
    clock.now = 1008.0
    assert [losing.step(), losing.step()] == ["tell", None]
    clock.now = 1008.5
    assert [losing.step(), losing.step()] == ["interrupt", None]
    made.confirm(1008.0, stale_after=10.0)
    assert losing.step() is None
    clock.now = 1017.0
    assert [losing.step(), losing.step(), losing.step()] == ["tell", "interrupt", None], "of another time"


def test_a_worker_waits_no_longer_than_until_the_next_step(clock: Clock) -> None:
    made = Fence()
    losing = Losing(seen(made), clock)
    made.confirm(1000.0, stale_after=4.0)
    assert losing.patience() == 3201
    clock.now = 1003.2
    assert losing.patience() in (200, 201)
    clock.now = 2000.0
    assert losing.patience() == 5001
    assert Losing(None).patience() is None and Losing(None).step() is None
