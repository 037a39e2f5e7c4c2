"""Ids: ascending within a process whatever the clock does, distinct across threads and forks."""

from __future__ import annotations

import os
import threading
from uuid import UUID

from forge import fastpath


def test_ids_ascend_within_a_process() -> None:
    made = fastpath.uuid7_many(100_000)
    made += [fastpath.uuid7() for _ in range(1000)]
    made += fastpath.uuid7_many(3)
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert fastpath.uuid7_many(0) == []


def test_ticks_ascend_when_the_clock_stands_or_goes_back() -> None:
    ticks = fastpath._Ticks()
    assert ticks.take(10, 1000, 5) == 1000 << 12 | 5
    assert ticks.take(1, 1000, 0) == 1000 << 12 | 15
    assert ticks.take(5000, 999, 0) == 1000 << 12 | 16
    assert ticks.take(1, 1001, 0) == (1000 << 12 | 16) + 5000
    assert ticks.take(1, 1002, 2047) == 1002 << 12 | 2047


def test_ids_of_many_threads_are_distinct_and_ascend_in_each() -> None:
    made: list[list[UUID]] = [[] for _ in range(8)]
    start = threading.Barrier(8)

    def produce(into: list[UUID]) -> None:
        start.wait()
        for n in range(200):
            into += fastpath.uuid7_many(n % 7 + 1)

    threads = [threading.Thread(target=produce, args=(into,)) for into in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(each == sorted(each) for each in made)
    assert len({one for each in made for one in each}) == sum(map(len, made))


def test_a_forked_child_makes_other_ids_even_if_the_lock_was_held() -> None:
    reading, writing = os.pipe()
    with fastpath._ticks.lock:
        child = os.fork()
        if child == 0:
            # No pytest in here: only write and leave.
            try:
                os.write(writing, b"".join(each.bytes for each in fastpath.uuid7_many(100)))
            finally:
                os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    theirs = {UUID(bytes=data[i : i + 16]) for i in range(0, len(data), 16)}
    ours = set(fastpath.uuid7_many(100))
    assert len(theirs) == 100
    assert not theirs & ours
    assert {each.int >> 64 for each in theirs} != {each.int >> 64 for each in ours}
