"""When a pod may take others for dead."""

from __future__ import annotations

import pytest

from forge.cluster.reaper import Reaper, Streak
from forge.storage import Storage
from tests.storage.helpers import age, claimed, one

from .test_service import Clock

pytestmark = pytest.mark.impl_free
STALE = 60.0


def beats(clock: Clock, streak: Streak, seconds: float, every: float = 1.0) -> None:
    for _ in range(round(seconds / every)):
        clock.now += every
        streak.beat(STALE)


def test_a_pod_that_has_just_started_waits_out_a_whole_threshold() -> None:
    clock = Clock()
    streak = Streak(clock)
    assert not streak.lasts(STALE)
    beats(clock, streak, 60)
    assert not streak.lasts(STALE)
    beats(clock, streak, 1)
    assert streak.lasts(STALE)


def test_after_an_outage_it_waits_again() -> None:
    clock = Clock()
    streak = Streak(clock)
    beats(clock, streak, 100)
    streak.end()
    assert not streak.lasts(STALE)
    beats(clock, streak, 60)
    assert not streak.lasts(STALE)
    beats(clock, streak, 1)
    assert streak.lasts(STALE)


def test_a_database_that_hung_without_an_error_counts_as_an_outage() -> None:
    clock = Clock()
    streak = Streak(clock)
    beats(clock, streak, 100)
    clock.now += 41  # no answer, for so long
    assert not streak.lasts(STALE)
    beats(clock, streak, 59)
    assert not streak.lasts(STALE)
    beats(clock, streak, 2)
    assert streak.lasts(STALE)


def test_beats_that_are_merely_late_are_no_break() -> None:
    clock = Clock()
    streak = Streak(clock)
    beats(clock, streak, 300, every=30)
    assert streak.lasts(STALE)


def test_the_reaper_reaps_only_while_the_streak_lasts(storage: Storage, url: str) -> None:
    clock, (silent, own) = Clock(), (storage.register(name, ["letters"], "north", 1) for name in ("ada", "bob"))
    streak = Streak(clock)
    reaper = Reaper(storage, lambda: STALE, streak)
    job = claimed(storage, silent)
    age(url, "pod", "beat_at", 100)
    storage.beat(own)
    assert reaper.run_once(None) is None
    assert len(storage.pods()) == 2
    beats(clock, streak, 61)
    assert reaper.run_once(None) == "1 pod had gone silent; 1 job taken back"
    assert reaper.run_once(None) is None
    assert [pod.id for pod in storage.pods()] == [own.pod.id]
    assert one(storage, job.id).last_error == "reaped after stale heartbeat"


@pytest.mark.parametrize(("stale", "every"), [(60.0, 3.0), (1.0, 0.5)])
def test_it_looks_every_three_seconds_or_twice_in_a_threshold(stale: float, every: float, storage: Storage) -> None:
    settings = [300.0]
    reaper = Reaper(storage, lambda: settings[-1], None)
    assert reaper.every == 3
    settings.append(stale)  # a reload
    reaper.run_once(None)
    assert reaper.every == every
