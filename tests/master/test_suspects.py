"""Blame only what is certain: who was in hand when a process died runs alone next, and nobody is the worse for it."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from forge.config import QueueConfig
from forge.job import Claim, Status
from forge.master.queues.local_queue import LocalQueue
from forge.master.workers.suspects import REMEMBERED, ZYGOTE_DIED, Suspects, ZygoteDeaths
from forge.protocol import MOST_UNANSWERED

from .conftest import TASKS, Pod, Project, alive, eventually

pytestmark = pytest.mark.impl_free

numbers = itertools.count(1)


def claims(n: int) -> list[Claim]:
    return [Claim(0, None, UUID(int=next(numbers)), 1, "q", "k", b"{}", 1, 5, 600, False, False) for _ in range(n)]


def local_queue(workers: int, **settings: Any) -> LocalQueue:
    made = LocalQueue("q", QueueConfig(max_workers=workers, **settings), 10.0)
    for slot in made.slots:
        slot.ready, slot.capacity = True, made.settings.concurrency
    made.note(0.0001)
    return made


def suspected(made: LocalQueue, jobs: list[Claim], now: float = 0.0) -> None:
    """They are suspects, and there is a worker for them."""
    made.suspects.add(jobs)
    made.suspects.settle(now, made.places)
    for slot in made.suspects.slots:
        slot.ready = True


# -- who runs where --------------------------------------------------------------------------------------------------


def test_suspects_run_one_by_one_and_the_other_workers_get_as_many_as_ever() -> None:
    made, jobs = local_queue(3), claims(2)
    suspected(made, jobs)
    made.claimed(claims(120), 120, 120)
    made.dispatch(0.0)
    (alone,) = made.suspects.slots
    assert [claim for claim, _ in alone.in_hand.values()] == jobs[:1]
    assert sorted(len(slot.in_hand) for slot in made.slots) == [0, 50, 50], "one leaves its place to the suspect"
    alone.answered(jobs[0].id.hex, 0.0)
    made.dispatch(0.0)
    assert [claim for claim, _ in alone.in_hand.values()] == jobs[1:]


def test_a_queue_for_one_job_at_a_time_never_runs_two() -> None:
    made, jobs = local_queue(1), claims(1)
    made.slots[0].send(claims(1), 0.0)
    suspected(made, jobs)
    made.claimed(claims(10), 10, 10)
    made.dispatch(0.0)
    (alone,) = made.suspects.slots
    assert not alone.in_hand, "the worker still has a job"
    made.slots[0].in_hand.clear()
    made.dispatch(0.0)
    assert alone.in_hand and not made.slots[0].in_hand, "it comes before those that wait"
    alone.in_hand.clear()
    made.dispatch(0.0)
    assert made.slots[0].in_hand


def test_a_suspect_takes_the_place_of_one_job_in_a_worker_of_many() -> None:
    made = local_queue(1, worker="async", concurrency=20)
    suspected(made, claims(3))
    made.claimed(claims(50), 50, 50)
    made.dispatch(0.0)
    assert (made.suspects.running, len(made.slots[0].in_hand)) == (1, 19)


def test_suspects_that_take_long_get_more_workers_but_no_more_places() -> None:
    made = local_queue(1, worker="async", concurrency=3)
    suspected(made, claims(5))
    made.dispatch(0.0)
    for now in (0.01, 1.0, 2.0, 3.0, 4.0):
        suspected(made, [], now)
        made.dispatch(now)
    assert made.suspects.running == 3
    made.claimed(claims(5), 5, 5)
    assert not made.dispatch(4.0)


def test_without_suspects_there_is_no_worker_for_them() -> None:
    made, jobs = local_queue(1), claims(1)
    suspected(made, jobs)
    made.dispatch(0.0)
    made.suspects.slots[0].answered(jobs[0].id.hex, 0.0)
    made.suspects.settle(1.0, 1)
    assert not made.suspects.slots


def test_who_has_died_alone_runs_alone_when_it_is_claimed_again() -> None:
    made, (bad, good) = local_queue(1), claims(2)
    made.suspects.blame(bad.id)
    made.claimed([bad, good], 2, 2)
    assert list(made.suspects.waiting) == [bad] and list(made.waiting) == [good]


def test_cancelled_suspects_leave_the_line() -> None:
    made, (one, two) = local_queue(1), claims(2)
    made.suspects.add([one, two])
    assert made.cancel({(one.id, one.token)}, 0.0) == [one]
    assert list(made.suspects.waiting) == [two]


def test_those_that_are_given_back_are_still_suspects_when_they_return() -> None:
    suspects, jobs = Suspects("q", ZygoteDeaths()), claims(2)
    suspects.add(jobs)
    assert suspects.take_out() == jobs
    assert suspects.sift(jobs) == [] and list(suspects.waiting) == jobs


def test_not_more_are_remembered_than_there_is_room_for() -> None:
    suspects, (job,) = Suspects("q", ZygoteDeaths()), claims(1)
    suspects.blame(job.id)
    for other in claims(REMEMBERED):
        suspects.blame(other.id)
    assert suspects.sift([job]) == [job]


def test_of_those_that_saw_two_zygotes_die_one_runs_at_a_time_in_the_whole_pod() -> None:
    deaths, (one, two, other) = ZygoteDeaths(), (job.id for job in claims(3))
    for job in (one, two):
        assert not deaths.seen_by(job, 0.0, 3.0)
        assert deaths.may_start(job, 3.0), "once may be by chance"
        assert not deaths.seen_by(job, 0.0, 3.0)
    running = {one}
    assert deaths.may_start(one, 10.0)
    deaths.started(one, lambda: one in running, 10.0)
    assert not deaths.may_start(two, 10.0) and deaths.may_start(other, 10.0)
    assert not deaths.seen_by(other, 0.0, 11.0)
    assert deaths.seen_by(one, 10.0, 11.0), "it died while no other suspect was tried"
    running.clear()
    assert deaths.may_start(two, 11.0)
    deaths.started(two, lambda: two in running, 11.0)
    assert deaths.may_start(one, 11.0), "the other one has ended meanwhile"


def test_a_suspect_that_runs_longer_than_ever_before_does_not_keep_the_next_one_waiting() -> None:
    deaths, (one, two) = ZygoteDeaths(), (job.id for job in claims(2))
    for job in (one, two, one, two):
        deaths.seen_by(job, 0.0, 3.0)
    deaths.started(one, lambda: True, 10.0)
    assert not deaths.may_start(two, 15.0)
    assert deaths.may_start(two, 17.1)
    assert not deaths.seen_by(one, 10.0, 17.1), "by then it is not certain any more"


# -- with real processes ---------------------------------------------------------------------------------------------

MORE = """
import asyncio, ctypes


@app.handler("poison")
async def poison(ctx, payload):
    note("POISON", os.getpid())
    while len([line for line in open(LEDGER) if line.startswith("START ")]) < payload:
        await asyncio.sleep(0.01)
    ctypes.string_at(0)


@app.handler("poison.thread")
def poison_thread(ctx, payload):
    note("POISON", os.getpid())
    while len([line for line in open(LEDGER) if line.startswith("START ")]) < payload:
        time.sleep(0.01)
    ctypes.string_at(0)


@app.handler("bystander")
async def bystander(ctx, payload):
    note("START", payload, os.getpid())
    while not os.path.exists(os.path.join(os.path.dirname(LEDGER), "go")):
        await asyncio.sleep(0.01)
    note("END", payload, os.getpid())
    return payload


@app.handler("bystander.thread")
def bystander_thread(ctx, payload):
    note("START", payload, os.getpid())
    while not os.path.exists(os.path.join(os.path.dirname(LEDGER), "go")):
        time.sleep(0.01)
    note("END", payload, os.getpid())
    return payload


@app.handler("quick")
def quick(ctx, payload):
    if payload == "poison":
        note("POISON", os.getpid())
        ctypes.string_at(0)


@app.handler("parricide")
def parricide(ctx, payload):
    note("PARRICIDE", os.getpid())
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
"""


def started(project: Project, settings: str) -> Pod:
    (project.folder / "tasks.py").write_text(TASKS + MORE)
    project.settings(settings)
    return project.start()


def zygote(pod: Pod) -> int:
    pid = pod.process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@pytest.mark.parametrize(("kind", "suffix"), [("async", ""), ("threads", ".thread")])
def test_a_job_that_kills_its_worker_is_dead_and_its_neighbours_are_none_the_worse(
    project: Project, kind: str, suffix: str
) -> None:
    pod = started(project, f'[queues.default]\nmax_workers = 1\nworker = "{kind}"\nconcurrency = 20\n')
    neighbours = [project.app.enqueue(f"bystander{suffix}", n, keep_result=True) for n in range(19)]
    poison = project.app.enqueue(f"poison{suffix}", 19)
    eventually(lambda: pod.says("jobs run again alone"))
    (project.folder / "go").touch()
    assert [job.result(timeout=60) for job in neighbours] == list(range(19))
    eventually(lambda: poison.status == Status.DEAD)
    assert poison.job().crashes == 3
    assert [error["message"].split()[-1] for error in poison.job().errors] == ["SIGSEGV"] * 3
    assert len(project.events("POISON")) == 4, "once with others, three times alone"
    for job in neighbours:
        found = job.job()
        assert (found.attempts, found.crashes, found.errors) == (1, 0, ())
    assert pod.says("20 jobs run again alone")
    eventually(lambda: len(pod.children()) == 2)  # the zygote and the one worker: none for suspects


def test_a_job_that_kills_its_worker_amid_short_ones_leaves_no_trace_on_them(project: Project) -> None:
    started(project, "[queues.default]\nmax_workers = 4\n")
    jobs = [project.app.job("quick", "poison" if n == 1500 else n) for n in range(3000)]
    project.app.enqueue_many(jobs)
    eventually(lambda: project.app.storage.counts() == {}, within=60)
    assert project.app.storage.ended_counts()["default"] == {Status.DONE: 2999, Status.DEAD: 1}
    found = project.app.storage.get([job.id for job in jobs])
    poison = found.pop(jobs[1500].id)
    assert poison.crashes == 3
    assert {(job.attempts, job.crashes, job.errors) for job in found.values()} == {(1, 0, ())}


def test_a_job_that_kills_the_zygote_is_dead_and_what_ran_beside_it_is_not(project: Project) -> None:
    started(project, "[queues.default]\nmax_workers = 3\n[queues.other]\nmax_workers = 1\n")
    beside = project.app.enqueue("bystander.thread", 1, keep_result=True)
    elsewhere = project.app.enqueue("bystander.thread", 2, keep_result=True, queue="other")
    eventually(lambda: len(project.events("START")) == 2)
    parricide = project.app.enqueue("parricide", None)
    eventually(lambda: parricide.status == Status.DEAD, within=90)
    assert parricide.job().crashes == 3
    assert [error["message"] for error in parricide.job().errors] == [ZYGOTE_DIED] * 3
    (project.folder / "go").touch()
    for job in (beside, elsewhere):
        assert job.result(timeout=60) in (1, 2)
        assert (job.job().attempts, job.job().crashes, job.job().errors) == (1, 0, ())


def test_a_zygote_that_does_not_answer_is_replaced(project: Project) -> None:
    pod = started(project, "[queues.default]\nmax_workers = 2\n")
    config = project.folder / "forge.toml"
    config.write_text("ready_within = 2.0\n" + config.read_text())
    assert pod.stop() == 0
    pod = project.start()
    stopped = zygote(pod)
    os.kill(stopped, signal.SIGSTOP)
    for worker in pod.children() - {stopped}:
        os.kill(worker, signal.SIGKILL)  # and nobody can be forked in their place
    job = project.app.enqueue("quick", 1)
    eventually(lambda: job.status == Status.DONE)
    assert pod.says("the zygote has not answered for 1 s; it is killed")
    assert not alive(stopped)


def test_most_jobs_that_were_sent_ahead_to_a_worker_that_died_are_no_suspects(project: Project) -> None:
    """Workers answer for no more than so many jobs at once: what is behind those has not begun."""
    pod = started(project, "[queues.default]\nmax_workers = 1\n")
    project.app.enqueue_many([project.app.job("quick", "poison" if n == 9000 else n) for n in range(12_000)])
    eventually(lambda: project.app.storage.counts() == {}, within=60)
    words = [line for line in pod.lines if "run again alone" in line or "runs again alone" in line]
    alone = [int(line.split("; ")[1].split()[0]) for line in words]
    assert alone and max(alone) <= MOST_UNANSWERED + 1
