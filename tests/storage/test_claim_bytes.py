"""A claim is bounded by the bytes of its payloads, whatever they take on disk."""

from __future__ import annotations

import random

import pytest

from forge.job import Line, NewJob
from forge.storage import Storage
from forge.storage.contract import Incarnation, LowWater
from forge.storage.contract.lines import Turns
from forge.storage.shared.low_water import MOST_BYTES, full, payload_bytes
from forge.storage.shared.walking import claim_in_turn

from .helpers import ids, new_id, plain_jobs

pytestmark = pytest.mark.impl_free

MIB = 1024 * 1024
NEVER = 1e9


def large(size: int, kind: str = "plain", **more: object) -> NewJob:
    """Of the letter x, which takes next to nothing on disk, or of random ones, which take what they are."""
    text = "x" * size if kind == "plain" else "".join(random.Random(size).choices("abcdefgh012345", k=size))
    return NewJob(new_id(), "k", f'"{text}"'.encode(), "letters", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["plain", "random"])
def test_a_claim_ends_with_the_job_that_fills_it(storage: Storage, who: Incarnation, kind: str) -> None:
    jobs = [*plain_jobs(20), *(large(MIB, kind) for _ in range(5)), *plain_jobs(20)]
    storage.enqueue(jobs)
    water, found = LowWater(NEVER), []
    sizes = []
    while claims := storage.claim(who, "letters", 100, water, 2 * MIB):
        found += claims
        sizes.append(len(claims))
        assert full(claims, 100, 2 * MIB) or len(found) == len(jobs)
    assert ids(found) == ids(jobs)
    assert sizes == [22, 2, 21]


def test_a_job_that_is_larger_than_a_claim_may_be_comes_alone(storage: Storage, who: Incarnation) -> None:
    jobs = [large(3 * MIB), *plain_jobs(2), large(2 * MIB, "random"), large(MIB)]
    storage.enqueue(jobs)
    water = LowWater(NEVER)
    found = [ids(storage.claim(who, "letters", 10, water, MIB)) for _ in range(4)]
    assert found == [[jobs[0].id], ids(jobs[1:4]), [jobs[4].id], []]


def test_the_bound_is_one_for_all_priorities_together(storage: Storage, who: Incarnation) -> None:
    jobs = [large(MIB, priority=priority) for priority in (1, 1, 2, 3, 3)]
    storage.enqueue(jobs)
    assert ids(storage.claim(who, "letters", 10, None, 5 * MIB // 2)) == ids(jobs[:3])


def test_without_a_word_a_claim_is_bounded_too(storage: Storage, who: Incarnation) -> None:
    storage.enqueue([large(MIB) for _ in range(12)])
    claims = storage.claim(who, "letters", 100)
    assert MOST_BYTES <= payload_bytes(claims) < MOST_BYTES + 2 * MIB


def test_so_is_a_claim_of_lines(storage: Storage, who: Incarnation) -> None:
    """And it says that there are more: nobody else would."""
    lines = [Line.of(partition=name) for name in ("a", "b")]
    storage.enqueue([large(MIB, line=line) for line in lines for _ in range(3)])
    turns, counts = Turns(), []
    while True:
        taken = storage.lines.claim(who, "letters", 100, turns, None, 2 * MIB)
        counts.append(len(taken.claims))
        if not taken.more:
            break
    assert counts in ([2, 2, 2], [2, 2, 2, 0])


def test_so_is_one_of_both(storage: Storage, who: Incarnation) -> None:
    line = Line.of(partition="a")
    storage.enqueue([*(large(MIB) for _ in range(4)), *(large(MIB, line=line) for _ in range(4))])
    turns, water, found = Turns(), LowWater(NEVER), []
    while True:
        taken = claim_in_turn(storage, who, "letters", 100, water, turns, None, 3 * MIB)
        assert payload_bytes(taken.claims) < 5 * MIB
        found += taken.claims
        if not taken.more:
            break
    assert len(set(ids(found))) == len(found) == 8
