"""Looking at jobs: by id, by filter page by page, and counted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from forge.job import Cancelled, Counts, Dead, Done, Ending, Job, JobFilter, NewJob, Status
from forge.storage import Storage
from forge.storage.contract import Incarnation

from .helpers import age, during, end, ended, fail, full_job, ids, new_id, plain_job, plain_jobs, row

pytestmark = pytest.mark.impl_free


def all_pages(storage: Storage, where: JobFilter, limit: int, between: Callable[[], Any] = lambda: None) -> list[Job]:
    """Every page of a listing; `between` happens after each."""
    jobs, cursor = list[Job](), None
    while True:
        page = storage.find(where, limit, cursor)
        assert len(page.jobs) <= limit
        jobs += page.jobs
        between()
        if page.cursor is None:
            return jobs
        cursor = page.cursor


def test_get_answers_live_and_ended_jobs_and_not_the_unknown(storage: Storage, who: Incarnation) -> None:
    gone, live = full_job(), full_job()
    before = ended(storage, who, gone)
    with during(storage) as when:
        storage.enqueue([live])
    found = storage.get([gone.id, new_id(), live.id])
    assert found == {gone.id: before, live.id: row(live, enqueued_at=when)}
    assert storage.get([]) == {}


@pytest.fixture
def jobs(storage: Storage, who: Incarnation) -> dict[str, NewJob]:
    """One job of each standing, named by it, oldest id first, no two alike in queue, kind and tags together."""
    made = {
        "done": full_job(queue="a", kind="x", tags=("red", "blue")),
        "dead": full_job(queue="a", kind="y", tags=("red",)),
        "cancelled": full_job(queue="b", kind="x", tags=()),
        "failed": full_job(queue="b", kind="y", tags=("blue", "re")),
        "in_progress": full_job(queue="c", kind="x", tags=("RED",)),
        "pending": full_job(queue="c", kind="z", tags=("green", "red")),
    }
    for name, new in made.items():
        storage.enqueue([new])
        if name != "pending":
            (claim,) = storage.claim(who, new.queue, 1)
            endings = {"done": Done(), "dead": Dead("d"), "cancelled": Cancelled()}
            if name in endings:
                storage.finalize([Ending(claim, endings[name])])
            elif name == "failed":
                storage.finalize([fail(claim, delay=500)])
    return made


def find(storage: Storage, jobs: dict[str, NewJob], **where: Any) -> list[str]:
    """The names of what a filter finds, in the order found; the same by pages of one."""
    names = {new.id: name for name, new in jobs.items()}
    page = storage.find(JobFilter(**where))
    assert page.cursor is None
    assert all_pages(storage, JobFilter(**where), 1) == page.jobs
    assert {job.id: job for job in page.jobs} == storage.get(ids(page.jobs))
    return [names[job.id] for job in page.jobs]


def test_without_a_filter_all_jobs_come_newest_first(storage: Storage, jobs: dict[str, NewJob]) -> None:
    assert find(storage, jobs) == list(jobs)[::-1]


@pytest.mark.parametrize("status", list(Status))
def test_a_status_finds_its_jobs(storage: Storage, jobs: dict[str, NewJob], status: Status) -> None:
    assert find(storage, jobs, statuses=frozenset({status})) == [str(status)]


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ({"statuses": frozenset({Status.DEAD, Status.PENDING})}, ["pending", "dead"]),
        ({"statuses": frozenset({Status.DEAD, Status.CANCELLED})}, ["cancelled", "dead"]),
        ({"statuses": frozenset({Status.DONE, Status.CANCELLED})}, ["cancelled", "done"]),
        ({"queues": ["a"]}, ["dead", "done"]),
        ({"queues": ["a", "c"]}, ["pending", "in_progress", "dead", "done"]),
        ({"queues": ["nothing"]}, []),
        ({"kinds": ["x"]}, ["in_progress", "cancelled", "done"]),
        ({"kinds": ["y", "z"]}, ["pending", "failed", "dead"]),
        ({"tag": "red"}, ["pending", "dead", "done"]),
        ({"tag": "re"}, ["failed"]),
        ({"tag": "r%"}, []),
        ({"tag": "red", "kinds": ["x", "y"]}, ["dead", "done"]),
        ({"tag": "red", "queues": ["a"], "statuses": frozenset({Status.DEAD})}, ["dead"]),
        ({"kinds": ["x"], "statuses": frozenset({Status.IN_PROGRESS, Status.DONE})}, ["in_progress", "done"]),
    ],
)
def test_filters_narrow_together(
    storage: Storage, jobs: dict[str, NewJob], where: dict[str, Any], names: list[str]
) -> None:
    assert find(storage, jobs, **where) == names


def test_pages_join_without_gap_or_overlap(storage: Storage, who: Incarnation) -> None:
    made = plain_jobs(53)
    storage.enqueue(made)
    end(storage, storage.claim(who, "letters", 20))
    for limit in (1, 7, 52, 53, 54):
        assert ids(all_pages(storage, JobFilter(), limit)) == ids(made)[::-1]


def test_a_last_page_that_is_just_full_says_it_is_the_last(storage: Storage) -> None:
    storage.enqueue(plain_jobs(4))
    first = storage.find(JobFilter(), 2)
    assert first.cursor is not None
    assert storage.find(JobFilter(), 2, first.cursor).cursor is None


def test_pages_stay_stable_while_jobs_come_and_end(storage: Storage, who: Incarnation) -> None:
    made = plain_jobs(30)
    storage.enqueue(made)

    def meanwhile() -> None:
        storage.enqueue(plain_jobs(3))
        claims = storage.claim(who, "letters", 4)
        storage.finalize([Ending(claim, Done() if n % 2 else Dead("d")) for n, claim in enumerate(claims)])

    assert ids(all_pages(storage, JobFilter(), 7, meanwhile)) == ids(made)[::-1]


def test_a_bad_cursor_is_refused(storage: Storage) -> None:
    with pytest.raises(ValueError, match=r"."):
        storage.find(JobFilter(), cursor="nonsense")


def test_counts_say_where_the_live_jobs_of_each_queue_stand(storage: Storage, url: str, who: Incarnation) -> None:
    storage.enqueue(plain_jobs(5, "a") + plain_jobs(3, "a", delay=100) + plain_jobs(2, "b", delay=100))
    first, second, third = storage.claim(who, "a", 3)
    storage.finalize([fail(first, delay=50), Ending(second, Done())])
    counts = storage.counts()
    assert counts == {
        "a": Counts(2, 3, 1, 1, counts["a"].oldest_pending_age),
        "b": Counts(scheduled=2),
    }
    assert third.queue == "a"


def test_the_age_of_the_oldest_due_job_counts_from_when_it_was_due(
    storage: Storage, url: str, who: Incarnation
) -> None:
    storage.enqueue([plain_job(priority=1), plain_job(), plain_job("later", delay=500)])
    age(url, "job", "run_at", 300, "priority = 1")
    counts = storage.counts()
    assert 300 <= counts["letters"].oldest_pending_age < 400
    assert counts["later"].oldest_pending_age == 0


def test_a_claimed_job_is_not_among_the_waiting(storage: Storage, who: Incarnation) -> None:
    storage.enqueue([plain_job(run_at=datetime(2024, 1, 1, tzinfo=UTC))])
    storage.claim(who, "letters", 1)
    assert storage.counts() == {"letters": Counts(in_progress=1)}


def test_ended_counts_are_by_queue_and_status(storage: Storage, jobs: dict[str, NewJob]) -> None:
    assert storage.ended_counts() == {"a": {Status.DONE: 1, Status.DEAD: 1}, "b": {Status.CANCELLED: 1}}


def test_an_empty_database_has_nothing_to_show(storage: Storage) -> None:
    assert storage.find(JobFilter()) == ([], None)
    assert storage.counts() == {}
    assert storage.ended_counts() == {}
    assert storage.queues() == {}
    assert storage.pods() == []
    assert storage.get([UUID(int=1)]) == {}
