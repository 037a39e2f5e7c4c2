"""Wake-ups by another way, or none at all."""

from __future__ import annotations

import threading

import pytest

from forge.cluster import schedules
from forge.errors import ConfigError
from forge.job import Ending, Released
from forge.storage import open_storage
from forge.storage.contract.schedules import NewSchedule

from .helpers import is_sqlite, plain_job

pytestmark = pytest.mark.impl_free


def test_without_listening_nothing_is_heard_and_a_wait_ends_by_itself(url: str) -> None:
    with open_storage(url, listen=False) as storage:
        listener = storage.listen()
        assert listener.wait(0) == set()
        storage.enqueue([plain_job()])
        assert listener.wait(0.01) == set()
        listener.close()


def test_closing_ends_a_wait_that_hears_nothing(url: str) -> None:
    with open_storage(url, listen=False) as storage:
        listener = storage.listen()
        answers: list[set[str]] = []
        thread = threading.Thread(target=lambda: answers.append(listener.wait(60)))
        thread.start()
        listener.close()
        thread.join()
        assert answers == [set()]


def test_wake_ups_come_by_their_own_url(url: str) -> None:
    broken = url if is_sqlite(url) else "postgresql://someone@127.0.0.1:1/nothing"
    with open_storage(url, listen_url=url) as storage, open_storage(url, listen_url=broken) as other:
        listener = storage.listen()
        assert listener.wait(0) == {"*"}
        other.enqueue([plain_job()])
        assert listener.wait(10) & {"letters", "*"}
        listener.close()


def test_a_listen_url_that_cannot_be_read_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        open_storage("postgresql:///x", listen_url="postgresql://host:port:port/?=")


def test_a_queue_that_goes_on_wakes_its_pods(url: str) -> None:
    with open_storage(url) as storage:
        storage.set_queue("letters", paused=True)
        listener = storage.listen()
        assert listener.wait(0) == {"*"}
        storage.set_queue("letters", paused=False)
        assert listener.wait(10) & {"letters", "*"}
        listener.close()


def test_a_schedule_that_comes_or_goes_on_is_heard_of(url: str) -> None:
    wanted = NewSchedule(name="tick", expression="* * * * * *", kind="k")
    with open_storage(url) as storage:
        other = open_storage(url)
        listener = storage.listen()
        assert listener.wait(0) == {"*"}
        schedules.put(other, wanted)
        assert listener.wait(10) & {"schedule:", "*"}
        if not is_sqlite(url):
            schedules.put(other, wanted)
            assert listener.wait(0.1) == set(), "nothing has changed"
        schedules.pause(other, "tick")
        listener.wait(0.1)
        schedules.resume(other, "tick")
        assert listener.wait(10) & {"schedule:", "*"}
        listener.close()
        other.close()


def test_a_job_that_is_given_back_wakes_the_pods_of_its_queue(url: str) -> None:
    with open_storage(url) as storage, open_storage(url) as other:
        who = other.register("ant", ["letters"], "west", 1)
        other.enqueue([plain_job()])
        claims = other.claim(who, "letters", 1)
        listener = storage.listen()
        assert listener.wait(0) == {"*"}
        assert other.finalize([Ending(claims[0], Released())]) == []
        assert listener.wait(10) == ({"*"} if is_sqlite(url) else {"letters", "back:letters"})
        listener.close()
