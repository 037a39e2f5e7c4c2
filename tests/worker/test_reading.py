"""Who reads in a worker, and the inbox in which jobs wait."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from forge.job import Claim
from forge.worker.inbox import Inbox
from forge.worker.reading import Reading
from tests.master.conftest import eventually

pytestmark = pytest.mark.impl_free


def job(number: int) -> Claim:
    return Claim(0, None, number, 1, "q", "k", b"", 1, 5, 60, False, False)  # type: ignore[arg-type]


def test_jobs_leave_the_inbox_in_the_order_they_came_in() -> None:
    inbox = Inbox()
    inbox.put([job(1), job(2)])
    inbox.put([job(3), None])
    assert [inbox.popleft(), inbox.get(), inbox.get(), inbox.get()] == [job(1), job(2), job(3), None]
    assert not inbox


def test_many_threads_that_wait_get_every_job_once() -> None:
    inbox, got = Inbox(), list[int]()
    lock = threading.Lock()

    def work() -> None:
        while (claim := inbox.get()) is not None:
            with lock:
                got.append(claim.id)  # type: ignore[arg-type]  # a number here

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for at in range(0, 4000, 4):
        inbox.put([job(at + i) for i in range(4)])
        if at % 100 == 0:
            time.sleep(0.001)  # so that they come to wait, which nothing shows: the test holds whether they do or not
    inbox.put([None] * len(threads))
    for thread in threads:
        thread.join(30)
    assert sorted(got) == list(range(4000))


class Master:
    """What it says comes in through `says`; who heard it is noted."""

    def __init__(self) -> None:
        self.says: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.heard: list[tuple[str, str]] = []
        self.ticks = 0
        self.asked = False
        self.jobs = 0
        self.reading = Reading(
            self.hear, self.tick, asked=lambda: self.asked, waiting=lambda: self.jobs > 0, shared=True
        )

    def hear(self) -> bool:
        word = self.says.get()
        if word == "job":
            self.jobs += 1
        self.heard.append((word, threading.current_thread().name))
        return word == "job"

    def tick(self) -> None:
        self.ticks += 1


def test_the_first_job_comes_by_the_second_thread_and_the_next_by_the_main_one() -> None:
    master, main = Master(), threading.current_thread().name
    master.reading.start()
    eventually(lambda: not master.reading.by_main())  # the other has it by now
    master.says.put("job")
    eventually(lambda: master.jobs == 1)
    eventually(master.reading.by_main)  # it was given back, and there is a job, so nothing is read
    assert master.heard == [("job", "reader")]
    master.jobs = 0
    master.says.put("job")
    assert master.reading.by_main()
    assert master.heard[1:] == [("job", main)]


def reading_by_main(master: Master) -> None:
    """Until it is the main thread's to read, with one job heard."""
    master.reading.start()
    master.says.put("job")
    eventually(lambda: master.jobs == 1)
    eventually(master.reading.by_main)
    master.jobs = 0
    master.says.put("job")
    assert master.reading.by_main()
    master.heard.clear()


def test_while_a_job_takes_long_orders_are_heard_by_the_second_thread() -> None:
    master = Master()
    reading_by_main(master)
    ticks = master.ticks
    master.says.put("cancel")  # and the main thread is at work
    eventually(lambda: master.heard == [("cancel", "reader")])
    assert master.ticks > ticks, "what is to be done in time was done first"
    assert not master.reading.by_main()


def test_an_answer_is_heard_while_the_main_thread_waits_for_it() -> None:
    master = Master()
    reading_by_main(master)
    master.asked = True
    master.reading.needed()
    master.says.put("answer")
    eventually(lambda: master.heard == [("answer", "reader")])
    master.says.put("job")
    eventually(lambda: len(master.heard) == 2)
    time.sleep(0.1)  # nothing to wait for: what is looked for is that it goes on reading
    master.says.put("answer")
    eventually(lambda: len(master.heard) == 3)
    assert {who for _, who in master.heard} == {"reader"}
