"""Chains: the last job has the place of all of them, so its ending is the last that is written."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge.job import Claim, Done, Ending, Released, Status
from forge.master.queues.chains import Chains
from forge.master.queues.local_queue import MOST_BEHIND
from tests.storage.helpers import sql

from .conftest import Project, eventually, making
from .readers import claims
from .test_lines import TASKS, all_done, check_guarded, enqueue, kill_workers

pytestmark = pytest.mark.impl_free


WELL, BACK = Done(), Released()


def ending(claim: Claim) -> Ending:
    return Ending(claim, WELL)


def chained(n: int) -> tuple[Chains, list[Claim]]:
    chains, jobs = Chains(), claims(n)
    chains.add(jobs)
    return chains, jobs


def test_endings_in_order_are_passed_on_as_they_come() -> None:
    chains, jobs = chained(3)
    for job in jobs:
        assert chains.passed([ending(job)]) == ([ending(job)], [])
    assert not chains


def test_the_last_ones_ending_is_kept_until_all_others_have_ended() -> None:
    chains, (first, second, last) = chained(3)
    assert chains.passed([ending(last), ending(first)]) == ([ending(first)], [])
    assert list(chains.kept) == [last.id]
    assert chains.passed([Ending(second, BACK)]) == ([Ending(second, BACK)], [ending(last)])
    assert not chains and not chains.kept


def test_the_only_one_left_is_handed_the_place_and_the_last_one_waits_no_longer() -> None:
    chains, (first, second, last) = chained(3)
    chains.passed([ending(last)])
    assert chains.hand_over() is None, "two are left"
    chains.passed([ending(second)])
    assert chains.hand_over() == (last, first)
    assert chains.hand_over() is None, "it is told once"
    assert chains.handed_over(last) == [ending(last)]
    assert chains.passed([ending(first)]) == ([ending(first)], [])
    assert not chains and not chains.kept


def test_a_place_handed_over_too_late_frees_nothing_twice() -> None:
    chains, (first, last) = chained(2)
    chains.passed([ending(last)])
    assert chains.hand_over() == (last, first)
    assert chains.passed([ending(first)]) == ([ending(first)], [ending(last)])
    assert chains.handed_over(last) == []


def test_jobs_in_chains_are_told_from_others() -> None:
    chains, jobs = Chains(), claims(4)
    assert chains.apart(jobs) == (jobs, ())
    chains.add(jobs[1:3])
    assert chains.apart(jobs) == ([jobs[0], jobs[3]], jobs[1:3])
    chains.passed([ending(jobs[2])])
    chains.clear()
    assert chains.apart(jobs) == (jobs, ()) and not chains.kept


@pytest.fixture
def short(tmp_path: Path, url: str) -> Iterator[Project]:
    """A project whose pod runs so many short jobs of a key that it chains them."""
    for made in making(tmp_path, url):
        (tmp_path / "tasks.py").write_text(TASKS)
        made.settings("heartbeat = 0.1\npoll_interval = 0.05\n[queues.default]\nmax_workers = 4\n")
        yield made


def test_short_jobs_of_a_key_keep_to_its_limit_while_workers_that_have_many_of_them_are_killed(short: Project) -> None:
    """Chains get long: each run is short, and so many wait. Whoever is killed has the rest of a chain in hand."""
    pod = short.start()
    jobs: list[tuple[str, int, float]] = []

    def in_hand() -> int:
        return int(sql(short.url, f"select count(*) from {{job}} where status = '{Status.IN_PROGRESS}'")[0][0])

    def chained() -> bool:
        """Two places for each of two keys, and more jobs than that in hand. One that has run all gets more."""
        if in_hand() > 4:
            return True
        if len(short.events("END")) >= len(jobs):
            more = [(f"key{n % 2}", n, 0.001) for n in range(len(jobs), len(jobs) + 1500)]
            enqueue(short, "guarded", *more)
            jobs.extend(more)
        return in_hand() > 4

    eventually(chained)
    killed = kill_workers([pod], random.Random(3), 15)
    eventually(lambda: all_done(short, len(jobs)), within=90)
    # Who is killed has run some whose replies were not sent yet: those are run again.
    check_guarded(short, killed * MOST_BEHIND, jobs)
