"""When a pod asks which of its jobs are to be cancelled, and what its heart has to do."""

from __future__ import annotations

from typing import Any, cast

import pytest

from forge.config import Config
from forge.fence import Fence
from forge.job import Pod
from forge.master.news import Beat, CancelsFound, LookDue
from forge.master.pod.presence import ASK_EVERY, Presence
from forge.master.pod_state import PodState
from forge.storage import Storage
from forge.storage.contract import Incarnation

from .conftest import eventually

pytestmark = pytest.mark.impl_free


class Pokes(list[float]):
    """Stands where the beating thread does."""

    def poke(self, at: float = 0.0) -> None:
        self.append(at)


@pytest.fixture
def presence() -> Any:
    found: Any = Presence(cast(Any, None), cast(Any, None), PodState(Config()), Fence(), lambda _: None)
    found._heartbeat = Pokes()
    found._state.note_held(True)
    found.who = Incarnation(Pod(7, "here", "localhost", 1, ("default",), cast(Any, None), cast(Any, None)))
    return found


def test_a_wake_up_right_after_a_question_leads_to_another_one_a_little_later(presence: Any) -> None:
    for now in (100.0, 100.1, 100.2, 100.24):
        presence.woken({"*"}, now)
    assert presence._heartbeat == [100.0, 100.0 + ASK_EVERY], "the second answers for the third and the fourth too"
    presence.woken({"*"}, 100.3)
    assert presence._heartbeat[2:] == [100.0 + 2 * ASK_EVERY]
    presence.woken({"*"}, 200.0)
    assert presence._heartbeat[3:] == [200.0]


def test_a_wake_up_for_this_pod_is_a_question_at_once_and_one_for_another_is_none(presence: Any) -> None:
    presence.woken({"cancel:7"}, 100.0)
    presence.woken({"cancel:8", "default"}, 100.0)
    assert presence._heartbeat == [0.0]


def test_nobody_asks_for_jobs_that_are_not_there(presence: Any) -> None:
    presence._state.note_held(False)
    presence.woken({"*"}, 100.0)
    assert presence._heartbeat == []


class Asked:
    """A storage, and what it was asked."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.asked.add(name)
        return getattr(self._storage, name)


def test_the_heart_is_asked_for_nothing_whose_cost_grows_with_the_jobs_there_have_been(storage: Storage) -> None:
    news: list[type[object]] = []
    heart: Any = Asked(storage)
    config = Config(database=storage.url, heartbeat=0.02, poll_interval=0.02)
    state = PodState(config)
    presence = Presence(storage, heart, state, Fence(), lambda each: news.append(type(each)))
    presence.start(["default"])
    state.note_idle(["default"])
    eventually(lambda: news.count(LookDue) > 5 and news.count(Beat) > 5)
    state.note_held(True)
    presence._heartbeat.poke()
    eventually(lambda: CancelsFound in news and "pulse" in heart.asked)
    presence.stop()
    assert heart.asked <= {"pulse", "shares", "cancel_requests"}
