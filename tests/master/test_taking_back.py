"""Jobs that were sent ahead, or claimed, come back if the one before them takes long and others could run them."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from uuid import UUID

import pytest

from forge import fastpath
from forge.config import QueueConfig
from forge.job import Claim, Done, Ending, NewJob, Status
from forge.master.programs.places import Places
from forge.master.queues.job_pace import AHEAD, JobPace
from forge.master.queues.local_queue import LocalQueue
from forge.master.queues.long_kinds import LongKinds, long_ones
from forge.master.queues.waiting_jobs import WaitingJobs
from forge.storage.contract.lines import Turns

from .conftest import Project, eventually

numbers = itertools.count(1)


def claims(n: int, kind: str = "k") -> list[Claim]:
    return [Claim(0, None, UUID(int=next(numbers)), 1, "q", kind, b"{}", 1, 5, 600, False, False) for _ in range(n)]


def local_queue(workers: int) -> LocalQueue:
    """With jobs that have taken 10 µs so far, so that workers get 500 ahead."""
    made = LocalQueue("q", QueueConfig(max_workers=workers), 10.0)
    for slot in made.slots:
        slot.ready = True
    made.note_all(1000, 0.01, 1e-5)
    return made


def recalled(made: LocalQueue) -> list[bool]:
    return [slot.recalled for slot in made.slots]


# -- from a worker ---------------------------------------------------------------------------------------------


def test_jobs_behind_a_long_one_come_back_though_every_other_worker_is_busy_with_short_ones() -> None:
    made = local_queue(2)
    made.slots[0].send(claims(9), 0.0)
    made.slots[1].send(claims(9), 0.99)
    made.recall(1.0, shared=False)
    assert recalled(made) == [True, False]


def test_nothing_is_sent_or_claimed_behind_a_long_one() -> None:
    made = local_queue(2)
    made.slots[0].send(claims(1), 0.0)
    made.slots[1].send(claims(1), 0.99)
    assert made.wanted(1.0) > 0
    made.claimed(claims(20), 20, 20)
    made.dispatch(1.0)
    assert [len(slot.in_hand) for slot in made.slots] == [1, 21]
    made.slots[1].head_since = 0.0
    assert (made.wanted(1.0), made.room) == (0, 0), "nobody here could start one"


def test_jobs_that_were_sent_behind_one_that_had_been_asked_for_its_others_are_asked_for_as_well() -> None:
    made = local_queue(2)
    made.slots[0].send(claims(2), 0.0)
    made.slots[0].recall()  # to cancel one of them
    made.slots[0].send(claims(5), 0.01)
    assert recalled(made) == [False, False]
    made.recall(1.0, shared=False)
    assert recalled(made) == [True, False]


@pytest.mark.parametrize("shared", [True, False])
def test_where_all_workers_have_long_ones_jobs_come_back_for_other_pods_and_stay_if_there_is_none(shared: bool) -> None:
    made = local_queue(2)
    for slot in made.slots:
        slot.send(claims(9), 0.0)
    made.recall(1.0, shared)
    assert recalled(made) == [shared, shared]


def test_what_comes_back_in_several_pieces_is_in_the_order_it_was_sent_in() -> None:
    made, jobs = local_queue(1), claims(10)
    made.take_in(jobs[6:])
    for piece in (jobs[:2], jobs[2:4], jobs[4:6]):
        made.take_back(piece)
    assert list(made.waiting) == jobs
    made.waiting.take(7)
    made.take_back(jobs[5:7])
    assert list(made.waiting) == jobs[5:]


# -- from the pod ----------------------------------------------------------------------------------------------


def stuck(made: LocalQueue) -> list[Claim]:
    """A queue whose only worker has a long job, with two more in the master's hands since then."""
    made.slots[0].send(claims(1), 0.0)
    jobs = claims(2)
    made.take_in(jobs)
    assert made.left_over(1.0, shared=True) == []
    return jobs


def test_jobs_that_nobody_here_can_start_go_to_other_pods() -> None:
    made = local_queue(1)
    jobs = stuck(made)
    assert made.left_over(1.1, shared=True) == []
    assert made.left_over(1.5, shared=True) == jobs
    assert not made.waiting


def test_they_stay_where_no_other_pod_has_workers() -> None:
    made = local_queue(1)
    stuck(made)
    assert made.left_over(9.0, shared=False) == []
    assert len(made.waiting) == 2


def test_they_stay_where_tokens_may_have_been_spent_for_them() -> None:
    made = local_queue(1)
    stuck(made)
    made.turns = Turns()
    made.turns.scopes = frozenset(["slack"])
    assert made.left_over(9.0, shared=True) == []
    made.turns.scopes = frozenset()
    assert len(made.left_over(9.0, shared=True)) == 2


def test_who_has_given_jobs_back_claims_none_until_one_has_ended_or_could_start() -> None:
    made = local_queue(1)
    (other,) = claims(1)
    made._in_programs = Places(lambda _: 1, lambda _: None)
    made._in_programs.more = lambda queue, places: 100  # type: ignore[method-assign]
    made._in_programs.take(other)
    assert made._in_programs.start(other)  # a program has the place: the worker is idle, and may start nothing
    made.more_waits = True
    assert made.wanted(0.0) == 100
    made.claimed(claims(100), 100, 100)
    made.dispatch(0.0)
    assert made.left_over(0.0, shared=True) == []
    assert len(made.left_over(0.3, shared=True)) == 100
    assert (made.wanted(0.3), made.room) == (0, 0), "they would come and go all the time"
    made.note(0.001)
    assert made.wanted(0.3) == 100
    made._quiet_until = 1.0
    made._in_programs.forget()
    assert made.wanted(0.3) > 0


def test_jobs_of_which_some_are_started_all_the_time_are_not_given_back() -> None:
    line, now = WaitingJobs(), 0.0
    line.extend(claims(100))
    for _ in range(50):
        assert not line.stands_still(now, 0.2)
        line.take(60)
        line.extend(claims(60))
        now += 0.15
    assert not line.stands_still(now, 0.2)
    assert line.stands_still(now + 0.2, 0.2)


def test_jobs_that_leave_too_slowly_are_as_old_as_those_that_do_not_leave() -> None:
    line = WaitingJobs()
    line.extend(claims(100))
    assert not line.stands_still(0.0, 0.2)
    line.take(50)
    assert line.stands_still(0.2, 0.2)


def test_cancelled_and_forgotten_jobs_do_not_make_others_seem_old() -> None:
    line, jobs = WaitingJobs(), claims(5)
    line.extend(jobs)
    assert not line.stands_still(0.0, 0.2)
    line.remove(jobs[3])
    line.take(4)
    line.extend(claims(3))
    assert not line.stands_still(1.0, 0.2)
    line.clear()
    assert not line.stands_still(9.0, 0.2)
    line.put_back(jobs)
    assert list(line) == jobs


def test_after_a_long_job_no_more_are_sent_ahead_than_have_shown_to_be_short() -> None:
    pace = JobPace()
    pace.note(10_000, 0.01, 1e-6)
    assert pace.jobs_in(AHEAD) > 3000
    pace.note(1, 6.0, 6.0)
    assert pace.jobs_in(AHEAD) < 1
    pace.note(1000, 0.001, 1e-6)
    assert pace.jobs_in(AHEAD) == 1000
    pace.note(3000, 0.003, 1e-6)
    assert pace.jobs_in(AHEAD) == 4000


# -- by kind ---------------------------------------------------------------------------------------------------


def hands(made: LocalQueue) -> list[list[Claim]]:
    return [[claim for claim, _ in slot.in_hand.values()] for slot in made.slots]


def test_a_job_of_a_kind_that_takes_long_gets_a_worker_to_itself() -> None:
    made = local_queue(3)
    made.long_kinds.took("film", 6.0)
    a, film, b = claims(4), claims(1, "film"), claims(4)
    made.take_in([*a, *film, *b])
    made.slots[2].draining = True
    assert made.dispatch(0.0)
    assert hands(made) == [a[0::2], a[1::2], []]
    assert not made.dispatch(0.0), "nobody is idle: it waits for who is first, and the others behind it"
    made.slots[1].in_hand.clear()
    assert made.dispatch(0.0)
    assert hands(made) == [[*a[0::2], *b], film, []]
    made.take_in(claims(5))
    assert made.dispatch(0.0)
    assert hands(made)[1] == film


def test_nothing_is_claimed_for_a_worker_with_a_job_of_a_kind_that_takes_long() -> None:
    made = local_queue(1)
    made.more_waits = True
    made.slots[0].send(claims(1, "film"), 0.0)
    assert made.wanted(0.01) > 0
    made.long_kinds.took("film", 6.0)
    assert made.wanted(0.01) == 0


def test_a_kind_that_takes_long_is_known_while_its_first_job_runs_and_forgotten_when_they_have_become_short() -> None:
    made = local_queue(1)
    made.slots[0].send(claims(1, "film"), 0.0)
    made.recall(0.04, shared=False)
    assert "film" not in made.long_kinds
    made.recall(1.0, shared=False)
    assert "film" in made.long_kinds
    for _ in range(4):
        made.long_kinds.took("film", 0.001)
    assert "film" in made.long_kinds
    made.long_kinds.took("film", 0.001)
    assert not made.long_kinds


def test_of_several_jobs_that_have_ended_only_the_kinds_of_the_long_ones_are() -> None:
    jobs = [*claims(3), *claims(1, "film"), *claims(1, "song")]
    done = [Ending(claim, Done()) for claim in jobs]
    took = [0.00001, 0.01, 0.0, 6.0, 0.001]
    lines = [fastpath.done_line(claim.id, seconds) for claim, seconds in zip(jobs, took, strict=True)]
    garbage = b'{"id":"%b","took":nonsense}\n\xff\n' % jobs[3].id.hex.encode()
    found = long_ones(b"".join([garbage, *lines, garbage]), done)
    assert found == [(done[3], 6.0)]
    kinds = LongKinds(song=0.06)
    kinds.learn(done, found)
    assert kinds == {"film": 6.0}


HOLDS = """

@app.task
def hold(name: str) -> None:
    # Keeps the interpreter to itself until somebody writes to that pipe.
    import ctypes
    libc = ctypes.PyDLL(None)
    note("START", name, os.getpid())
    libc.usleep(300_000)
    libc.open(os.path.join(os.path.dirname(LEDGER), name).encode(), os.O_RDONLY)
"""


# -- with real processes ---------------------------------------------------------------------------------------


def short(project: Project, n: int) -> list[NewJob]:
    return [project.app.job("tasks.add", {"args": [i, 1], "kwargs": {}}) for i in range(n)]


def long(project: Project, name: str) -> NewJob:
    """It ends when a file of that name is there."""
    return project.app.job("tasks.wait_for", {"args": [name], "kwargs": {}})


def done(project: Project) -> int:
    return project.app.storage.ended_counts().get("default", {}).get(Status.DONE, 0)


def test_no_short_job_waits_for_a_long_one_while_another_worker_could_run_it(project: Project, tmp_path: Path) -> None:
    project.configure(2)
    project.start()
    project.app.enqueue_many(short(project, 3000))
    eventually(lambda: done(project) == 3000)
    project.app.enqueue_many([*short(project, 500), long(project, "gate"), *short(project, 3500)])
    eventually(lambda: done(project) == 7000)
    assert len(project.events("START")) == 1
    assert not project.events("END"), "the long one still runs"
    (tmp_path / "gate").touch()
    eventually(lambda: done(project) == 7001)


def test_long_jobs_do_not_wait_for_each_other_while_a_worker_could_run_them(project: Project, tmp_path: Path) -> None:
    project.configure(3)
    project.start()
    project.app.enqueue_many(short(project, 3000))
    eventually(lambda: done(project) == 3000)
    jobs = [job for name in ("one", "two", "three") for job in (long(project, name), *short(project, 3))]
    project.app.enqueue_many([*short(project, 500), *jobs])
    eventually(lambda: len(project.events("START")) == 3)
    assert not project.events("END")
    for name in ("one", "two", "three"):
        (tmp_path / name).touch()
    eventually(lambda: done(project) == 3512)


def test_nothing_waits_behind_a_handler_that_is_known_to_keep_its_interpreter(project: Project, tmp_path: Path) -> None:
    """Nothing could be taken back from it."""
    with (tmp_path / "tasks.py").open("a") as tasks:
        tasks.write(HOLDS)
    for name in ("first", "second"):
        os.mkfifo(tmp_path / name)
    project.configure(2)
    project.start()
    project.app.enqueue("tasks.hold", {"args": ["first"], "kwargs": {}})
    with (tmp_path / "first").open("w"):
        pass
    project.app.enqueue_many(short(project, 3000))
    eventually(lambda: done(project) == 3001)
    held = project.app.job("tasks.hold", {"args": ["second"], "kwargs": {}})
    project.app.enqueue_many([*short(project, 500), held, *short(project, 3500)])
    eventually(lambda: done(project) == 7001)
    assert len(project.events("START")) == 2
    with (tmp_path / "second").open("w"):
        pass
    eventually(lambda: done(project) == 7002)
