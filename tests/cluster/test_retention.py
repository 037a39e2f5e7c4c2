"""Retention as the leader runs it: short rounds, pauses, and a term in every batch."""

from __future__ import annotations

import math
from typing import Any

import pytest

from forge.cluster.retention import AT_LEAST, AT_MOST, EVERY, FROM_THE_START, SOON, Retention
from forge.cluster.services import by_hand
from forge.config import Config
from forge.errors import LostLease
from forge.job import Done, Ending, Status
from forge.storage import Storage
from forge.storage.contract import Pruned
from forge.storage.contract.leases import Holder
from tests.storage.helpers import age, long_ago, plain_jobs

pytestmark = pytest.mark.impl_free


def old(storage: Storage, url: str, n: int, queue: str = "letters", days: float = 10) -> None:
    """Jobs of a queue that ended so long ago."""
    who = storage.register("ada", [queue], "north", 1)
    storage.enqueue([long_ago(job) for job in plain_jobs(n, queue)])
    storage.finalize([Ending(claim, Done()) for claim in storage.claim(who, queue, n)])
    age(url, "job_history", "finished_at", days * 86_400, f"queue = '{queue}'")


def lead(storage: Storage) -> int:
    term = storage.leases.acquire(Holder("a", None, "here", 1), 60.0).term
    assert term is not None
    return term


def test_a_round_deletes_in_batches_and_rests_after_each_for_as_long_as_it_took(storage: Storage, url: str) -> None:
    for n in range(4):
        old(storage, url, 10, f"q{n}", 10 + n)
    old(storage, url, 5, "young", 1)
    naps: list[float] = []
    service = Retention(storage, at_most=math.inf, batch=10, sleep=naps.append)
    assert service.run_once(lead(storage)) == "40 ended jobs deleted"
    assert len(naps) == 4
    assert min(naps) > 0
    assert service.every == EVERY
    assert storage.ended_counts() == {"young": {Status.DONE: 5}}
    assert service.run_once(lead(storage)) is None


def test_a_round_that_took_long_enough_goes_on_soon_where_it_ended(storage: Storage, url: str) -> None:
    storage.set_queue("kept", retain_done_days=1000)
    for n in range(3):
        old(storage, url, 10, "kept", 30 + n)
        old(storage, url, 10, f"q{n}", 20 - n)
    service, term = Retention(storage, at_most=0.0, batch=10), lead(storage)
    said, paces = [], []
    for _ in range(7):
        said.append(service.run_once(term))
        paces.append(service.every)
    assert said == [None] * 6 + ["30 ended jobs deleted"], "what stays was looked at once, not again in each round"
    assert paces == [SOON] * 6 + [EVERY]
    assert storage.ended_counts() == {"kept": {Status.DONE: 30}}


def test_a_leader_that_was_followed_deletes_nothing_more(storage: Storage, url: str) -> None:
    for n in range(3):
        old(storage, url, 10, f"q{n}", 10 + n)
    first = lead(storage)

    def followed(_: float) -> None:
        storage.leases.release(first)
        storage.leases.acquire(Holder("b", None, "there", 2), 60.0)

    service = Retention(storage, at_most=math.inf, batch=10, sleep=followed)
    with pytest.raises(LostLease):
        service.run_once(first)
    assert sum(counts[Status.DONE] for counts in storage.ended_counts().values()) == 20


class Timed:
    """A storage whose passes take as long and delete as much as the test says."""

    def __init__(self, clock: list[float]) -> None:
        self.clock, self.took, self.batch = clock, 0.0, Pruned(0, 0, None)

    def prune(self, n: int, after: str | None, *, term: int | None) -> Pruned:  # noqa: ARG002
        self.clock[0] += self.took
        return self.batch


def test_the_next_pass_comes_when_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("forge.cluster.retention.time.monotonic", lambda: clock[0])
    storage: Any = Timed(clock)
    service = Retention(storage)

    def wait(pause: float, walked: int, deleted: int, took: float = 0.0) -> float:
        clock[0] += pause
        storage.took, storage.batch = took, Pruned(walked, deleted, None)
        service.run_once(1)
        return service.every

    assert wait(0, 0, 0) == EVERY
    assert wait(60, 600_000, 600_000) == AT_LEAST, "ten thousand a second"
    assert wait(5, 50_000, 50_000) == 5
    assert wait(5, 10_000, 10_000) == 25, "two thousand a second: so many are worth a pass in 25 s"
    assert wait(25, 10, 10) == EVERY
    assert wait(60, 1_000_000, 0, took=90.0) == pytest.approx(900), "in vain: a tenth of its time is enough"
    assert wait(900, 1_000_000, 1_000_000, took=90.0) == 49.5, "of a thousand a second"
    assert wait(60, 1_000_000, 0, took=9000.0) == AT_MOST


def test_a_pass_begins_where_the_last_one_left_something_and_now_and_then_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, asked = [1000.0], list[str | None]()
    monkeypatch.setattr("forge.cluster.retention.time.monotonic", lambda: clock[0])
    # Two batches a pass: in the first all goes, in the second something stays.
    answers = {None: Pruned(9, 9, "b", "b"), "b": Pruned(9, 4, None, "c"), "c": Pruned(9, 8, "d", "c2")}
    answers |= {"c2": Pruned(0, 0, None, None), "d": Pruned(9, 0, None, "e")}

    class Scripted:
        def prune(self, n: int, after: str | None, *, term: int | None) -> Pruned:  # noqa: ARG002
            asked.append(after)
            return answers[after]

    storage: Any = Scripted()
    service = Retention(storage, at_most=math.inf, sleep=lambda _: None)
    for _ in range(4):
        service.run_once(1)
        clock[0] += 60
    assert asked == [None, "b", "c", "d", "c2", "c2"], "the second pass kept c2 first; nothing is there now"
    clock[0] += FROM_THE_START
    service.run_once(1)
    assert asked[6:] == [None, "b"]


def test_a_job_that_comes_below_the_floor_is_pruned_with_the_next_pass_from_the_start(
    storage: Storage, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    term, service = lead(storage), Retention(storage, batch=10)
    old(storage, url, 25)
    old(storage, url, 5, "young", 1)
    assert service.run_once(term) == "25 ended jobs deleted"
    old(storage, url, 3)
    monkeypatch.setattr(service, "_start_at", 0.0)
    assert service.run_once(term) == "3 ended jobs deleted"
    assert storage.ended_counts() == {"young": {Status.DONE: 5}}


def test_by_hand_a_round_is_everything(storage: Storage, url: str) -> None:
    old(storage, url, 2500)
    prune = next(service for service in by_hand(storage, Config()) if service.name == "prune")
    assert prune.run_once(lead(storage)) == "2,500 ended jobs deleted"
