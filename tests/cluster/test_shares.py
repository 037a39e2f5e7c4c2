"""How workers are split over pods: exact, fair, sparing with moves, the same whoever computes it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge.cluster.shares import Held, changes, grants, targets
from forge.storage.contract.shares import Cluster, Member, Share, ShareChange

pytestmark = pytest.mark.impl_free
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

ONE = "q"

capacities = st.dictionaries(st.integers(1, 50), st.integers(1, 9), min_size=1, max_size=8)
alike = st.sets(st.integers(1, 50), min_size=1, max_size=12).map(lambda pods: dict.fromkeys(pods, 1))
totals = st.integers(0, 60) | st.integers(0, 10_000)
someone_has = st.dictionaries(st.integers(1, 50), st.integers(0, 20), max_size=10)


def split(total: int, pods: Mapping[int, int], present: Mapping[int, int] | None = None) -> dict[int, int]:
    return targets({ONE: total}, {ONE: pods}, {ONE: present or {}})[ONE]


def moves(before: Mapping[int, int], after: Mapping[int, int]) -> int:
    return sum(abs(after.get(pod, 0) - before.get(pod, 0)) for pod in {*before, *after})


def test_ten_over_three_pods_is_four_three_three() -> None:
    assert split(10, {1: 1, 2: 1, 3: 1}) == {1: 4, 2: 3, 3: 3}


def test_who_has_the_extra_worker_keeps_it() -> None:
    assert split(10, {1: 1, 2: 1, 3: 1}, {1: 3, 2: 3, 3: 4}) == {1: 3, 2: 3, 3: 4}


def test_capacities_weigh() -> None:
    assert split(10, {1: 1, 2: 4}) == {1: 2, 2: 8}


def test_fewer_workers_than_pods_leave_some_without() -> None:
    assert sorted(split(2, dict.fromkeys(range(1, 6), 1)).values()) == [0, 0, 0, 1, 1]


@patient
@given(totals, capacities, someone_has)
def test_nothing_is_lost_and_nobody_is_a_whole_worker_from_his_quota(
    total: int, pods: dict[int, int], present: dict[int, int]
) -> None:
    found = split(total, pods, present)
    assert found.keys() == pods.keys()
    assert sum(found.values()) == total
    whole = sum(pods.values())
    for pod, workers in found.items():
        assert abs(workers * whole - total * pods[pod]) < whole


@patient
@given(totals, alike, someone_has)
def test_equal_pods_differ_by_one_at_most(total: int, pods: dict[int, int], present: dict[int, int]) -> None:
    found = split(total, pods, present)
    assert max(found.values()) - min(found.values()) <= 1


@patient
@given(totals, capacities, someone_has)
def test_what_has_been_split_stays(total: int, pods: dict[int, int], present: dict[int, int]) -> None:
    found = split(total, pods, present)
    assert split(total, pods, found) == found


@patient
@given(totals, alike)
def test_one_more_worker_takes_none_from_anybody(total: int, pods: dict[int, int]) -> None:
    before = split(total, pods)
    after = split(total + 1, pods, before)
    assert moves(before, after) == 1


@patient
@given(st.integers(0, 60), st.sets(st.integers(1, 9), min_size=1, max_size=7), someone_has)
def test_no_other_fair_split_moves_fewer_workers(total: int, pods: set[int], present: dict[int, int]) -> None:
    found = split(total, dict.fromkeys(pods, 1), present)
    base, extras = divmod(total, len(pods))
    fair = ({pod: base + (pod in more) for pod in pods} for more in itertools.combinations(pods, extras))
    assert moves(present, found) == min(moves(present, other) for other in fair)


@patient
@given(totals, alike, st.integers(51, 60))
def test_a_pod_that_comes_takes_only_its_own_share_from_the_others(
    total: int, pods: dict[int, int], newcomer: int
) -> None:
    before = split(total, pods)
    after = split(total, {**pods, newcomer: 1}, before)
    assert moves(before, after) == 2 * after[newcomer], "one less here, one more there, and no other move"


@patient
@given(totals, alike.filter(lambda pods: len(pods) > 1), st.data())
def test_a_pod_that_goes_leaves_the_others_what_they_have_and_more(
    total: int, pods: dict[int, int], data: st.DataObject
) -> None:
    before = split(total, pods)
    gone = data.draw(st.sampled_from(sorted(pods)))
    after = split(total, {pod: 1 for pod in pods if pod != gone}, before)
    assert all(workers >= before[pod] for pod, workers in after.items())


clusters = st.fixed_dictionaries(
    {
        "totals": st.dictionaries(
            st.text("abcdef", min_size=1, max_size=2), st.integers(0, 12), min_size=1, max_size=12
        ),
        "pods": st.dictionaries(st.integers(1, 30), st.integers(1, 3), min_size=1, max_size=8),
        "seed": st.integers(0, 2**32),
    }
)


def drawn(given: dict[str, object]) -> tuple[dict[str, int], dict[str, dict[int, int]], dict[str, dict[int, int]]]:
    """Queues, some of the pods on each, and whatever they may have had before."""
    totals, pods, rng = given["totals"], given["pods"], random.Random(given["seed"])  # type: ignore[arg-type]
    assert isinstance(totals, dict) and isinstance(pods, dict)
    serving = {q: {p: c for p, c in pods.items() if rng.random() < 0.7} for q in totals}
    present = {q: {p: rng.randrange(6) for p in pods if rng.random() < 0.7} for q in totals}
    return totals, serving, present


@patient
@given(clusters, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(given: dict[str, object], rng: random.Random) -> None:
    totals, serving, present = drawn(given)

    def shuffled(mapping: Mapping[str, int]) -> dict[str, int]:
        return dict(sorted(mapping.items(), key=lambda _: rng.random()))

    expected = targets(totals, serving, present)
    again = targets(
        shuffled(totals),
        {q: dict(sorted(of.items(), key=lambda _: rng.random())) for q, of in sorted(serving.items(), reverse=True)},
        {q: dict(sorted(of.items(), key=lambda _: rng.random())) for q, of in present.items()},
    )
    assert again == expected
    assert targets(totals, serving, expected) == expected


@settings(patient, max_examples=50)
@given(st.integers(2, 9), st.integers(1, 60), st.integers(0, 2**32))
def test_extras_of_many_queues_are_spread_whoever_had_them(pods: int, queues: int, seed: int) -> None:
    """One worker for each of many queues, all of which the first pod had."""
    rng = random.Random(seed)
    totals = {f"q{n:03}": rng.choice([1, 1, 1, 5, 7]) for n in range(queues)}
    serving = {q: dict.fromkeys(range(1, pods + 1), 1) for q in totals}
    found = targets(totals, serving, {q: {1: total} for q, total in totals.items()})
    loads = [sum(found[q][pod] for q in totals) for pod in range(1, pods + 1)]
    assert max(loads) - min(loads) <= 1
    assert sum(loads) == sum(totals.values())


# -- on the way ------------------------------------------------------------------------------------------------------

held_by = st.dictionaries(st.integers(1, 9), st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda t: Held(*t)))


@patient
@given(st.integers(0, 40), st.sets(st.integers(1, 9), min_size=1), held_by)
def test_nobody_grows_into_what_another_still_holds(total: int, pods: set[int], held: dict[int, Held]) -> None:
    aims = split(total, dict.fromkeys(pods, 1), {pod: has.workers for pod, has in held.items()})
    found = grants(total, aims, held)

    def taken(split: Mapping[int, int]) -> int:
        return sum(max(split.get(pod, 0), has.holds) for pod, has in held.items()) + sum(
            workers for pod, workers in split.items() if pod not in held
        )

    before = sum(max(min(has.workers, aims.get(pod, 0)), has.holds) for pod, has in held.items())
    assert taken(found) <= max(total, before)
    assert all(workers <= aims.get(pod, 0) for pod, workers in found.items())


@patient
@given(st.integers(0, 40), st.sets(st.integers(1, 9), min_size=1), held_by)
def test_once_pods_hold_what_they_are_given_the_split_is_reached_in_one_more_step(
    total: int, pods: set[int], held: dict[int, Held]
) -> None:
    aims = split(total, dict.fromkeys(pods, 1), {pod: has.workers for pod, has in held.items()})
    first = grants(total, aims, held)
    shrunk = {pod: Held(workers, workers) for pod, workers in first.items()}
    second = grants(total, aims, shrunk)
    assert {pod: workers for pod, workers in second.items() if pod in aims} == aims


def test_a_pod_in_the_way_holds_up_only_what_it_holds() -> None:
    held = {1: Held(10, 10), 2: Held(0, 0), 3: Held(0, 0)}
    assert grants(10, {1: 4, 2: 3, 3: 3}, held) == {1: 4, 2: 0, 3: 0}
    assert grants(10, {1: 4, 2: 3, 3: 3}, {**held, 1: Held(4, 8)}) == {1: 4, 2: 2, 3: 0}
    assert grants(10, {1: 4, 2: 3, 3: 3}, {**held, 1: Held(4, 4)}) == {1: 4, 2: 3, 3: 3}


# -- rows ------------------------------------------------------------------------------------------------------------


def test_only_rows_that_differ_are_written() -> None:
    pods = [Member(pod, ("a", "b"), 1) for pod in (3, 1, 2)]
    rows = [Share(1, "a", 3, 3, 3), Share(2, "a", 3, 3, 3), Share(3, "a", 3, 3, 3), Share(1, "b", None, 1, 1)]
    found = changes(Cluster({"a": 10, "b": 1}, pods, rows))
    assert found == [ShareChange(1, "b", 1), ShareChange(2, "a", 4), ShareChange(2, "b", 0), ShareChange(3, "b", 0)]


def test_a_pod_that_serves_a_queue_no_more_gives_its_workers_up_before_its_row_goes() -> None:
    pods = [Member(1, ("a",), 1), Member(2, (), 1)]
    has = Share(2, "a", 5, 5, 5)
    assert changes(Cluster({"a": 10}, pods, [Share(1, "a", 5, 5, 5), has])) == [ShareChange(2, "a", 0)]
    assert changes(
        Cluster({"a": 10}, pods, [Share(1, "a", 5, 5, 5), has._replace(workers=0, applied=0, running=2)])
    ) == [ShareChange(1, "a", 8)]
    assert changes(
        Cluster({"a": 10}, pods, [Share(1, "a", 8, 8, 8), has._replace(workers=0, applied=0, running=0)])
    ) == [
        ShareChange(1, "a", 10),
        ShareChange(2, "a", None),
    ]


def test_a_pod_without_capacity_and_a_queue_without_settings_take_no_part() -> None:
    pods = [Member(1, ("a", "b"), 1), Member(2, ("a",), 0)]
    assert changes(Cluster({"a": 10}, pods, [])) == [ShareChange(1, "a", 10)]
