"""Histograms: a percentile of merged parts is the bucket of the sample that it is; and what a tally grows by."""

from __future__ import annotations

import itertools
import math
from array import array
from bisect import bisect_left

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge import fastpath
from forge.cluster.metrics import BOUNDS, BUCKETS, Growth, Histogram, Tally, merged
from forge.storage.contract.metrics import COUNTERS, Point, QueueReport, Standing

samples = st.floats(0, 1e7) | st.floats(1e-6, 1e-3) | st.sampled_from([0.0, 1e-5, *BOUNDS[::20]])
patient = settings(deadline=None)


def test_the_buckets_are_what_the_documents_say() -> None:
    assert BUCKETS == 144 == len(BOUNDS) + 1
    assert BOUNDS[0] == 1e-5
    assert all(b / a == pytest.approx(2**0.25) for a, b in itertools.pairwise(BOUNDS))
    assert 5.5 * 86_400 < BOUNDS[-1] < 5.7 * 86_400


@patient
@given(st.lists(st.lists(samples, max_size=30), min_size=1, max_size=12), st.floats(0, 1))
def test_a_percentile_of_merged_parts_is_exact_to_the_bucket(parts: list[list[float]], q: float) -> None:
    total = Histogram()
    for part in parts:
        own = Histogram()
        for each in part:
            own.add(each)
        total.merge(own)
    everything = sorted(each for part in parts for each in part)
    found = total.percentile(q)
    assert total.count == len(everything)
    if not everything:
        assert found is None and total.quantile(q) is None
        return
    exact = everything[max(1, math.ceil(q * len(everything))) - 1]
    assert found is not None
    assert found.low < exact <= found.high or (found.low == 0.0 and exact == 0.0)
    assert found.high == math.inf or found.low == 0.0 or found.high / found.low == pytest.approx(2**0.25)


@patient
@given(st.lists(st.dictionaries(st.integers(0, 143), st.integers(1, 9), max_size=5), max_size=5))
def test_parts_may_be_merged_in_any_order(parts: list[dict[int, int]]) -> None:
    forwards, backwards = Histogram(), Histogram()
    for part in parts:
        forwards.merge(part)
    for part in reversed(parts):
        backwards.merge(part)
    assert forwards == backwards
    assert forwards.count == sum(sum(part.values()) for part in parts)


def test_a_value_beyond_all_buckets_is_told_by_where_they_end() -> None:
    far = Histogram()
    far.add(1e9)
    assert far.percentile(0.5) == (BOUNDS[-1], math.inf)
    assert far.quantile(0.5) == BOUNDS[-1]


# -- growth --------------------------------------------------------------------------------------------------------


def test_what_is_new_is_told_once() -> None:
    tally, other, growth = Tally(), Tally(), Growth()
    assert growth.part("letters", tally, other) is None
    tally.count("completed", 3)
    other.count("reaped")
    fastpath.timed(tally.times, 0.5, 1_000_000, 2.0, 0.0)
    run_time, latency = {bisect_left(BOUNDS, 0.5): 1}, {bisect_left(BOUNDS, 1.0): 1}
    assert growth.part("letters", tally, other) == QueueReport(
        "letters", {"completed": 3, "reaped": 1}, latency, run_time
    )
    assert growth.part("letters", tally, other) is None
    tally.count("completed", 2)
    tally.count("failed")
    assert growth.part("letters", tally, other) == QueueReport("letters", {"completed": 2, "failed": 1}, {}, {})


def test_a_count_that_was_too_high_is_taken_back() -> None:
    """An ending that proves stale was counted as done before."""
    tally, growth = Tally(), Growth()
    tally.count("completed", 5)
    growth.part("letters", tally)
    tally.count("completed", -1)
    assert growth.part("letters", tally) == QueueReport("letters", {"completed": -1}, {}, {})


def test_arrays_of_any_kind_are_looked_at_by_name() -> None:
    growth, counts = Growth(), array("q", [0, 4])
    assert growth.take("a", counts) == {1: 4}
    counts[0] = 2
    assert growth.take("a", counts) == {0: 2}
    assert growth.take("b", counts) == {0: 2, 1: 4}


# -- merging queues ------------------------------------------------------------------------------------------------


def point(at: float, queue: str, n: int, standing: Standing | None = None, enqueued: int | None = None) -> Point:
    return Point(at, queue, dict.fromkeys(COUNTERS, n), {n: 1}, {5: n}, enqueued, standing)


def test_queues_are_added_up_step_by_step() -> None:
    found = merged(
        [
            point(60.0, "a", 1, Standing(1, 2, 3, 4, 5, 6.0), 7),
            point(60.0, "b", 2, Standing(10, 20, 30, 40, 50, 2.0, True)),
            point(120.0, "b", 3),
        ]
    )
    together = Standing(11, 22, 33, 44, 55, 6.0, True)
    assert found == [
        Point(60.0, "*", dict.fromkeys(COUNTERS, 3), {1: 1, 2: 1}, {5: 3}, 7, together),
        Point(120.0, "*", dict.fromkeys(COUNTERS, 3), {3: 1}, {5: 3}, None, None),
    ]
    assert merged([]) == []
