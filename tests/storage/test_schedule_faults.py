"""Two leaders at once, and leaders that die in the middle: every fire time fires once, whole."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from forge.job import NewJob
from forge.storage import Storage
from forge.storage.contract.schedules import Firing, NewSchedule, Schedule, Seeded
from forge.storage.shared.scheduling import ScheduleChange

from . import children
from .helpers import lead, new_id, sql

pytestmark = pytest.mark.impl_free

TERM = 5
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
FIRE_TIMES = 10_000
BATCH = 200


def put(storage: Storage, url: str) -> Schedule:
    """A schedule of every second that is long due, and a leader."""
    lead(url, TERM)
    new = NewSchedule(name="often", expression="* * * * * *", kind="tick", queue="ticks", catch_up="all")
    return storage.schedules.put(Seeded(new, FIRST))


def firings(first: int, count: int) -> list[Firing]:
    """Fire times by their numbers. Each job's id is new, as no honest leader's would be: one stored twice would be
    seen."""
    return [
        Firing(fire_time, NewJob(new_id(), "tick", b'"%s"' % fire_time.isoformat().encode(), "ticks"))
        for fire_time in (FIRST + n * SECOND for n in range(first, first + count))
    ]


def force(barrier: Any, url: str, schedule: Schedule) -> list[datetime]:
    """Fire all fire times as a leader does that knows of no other; those it fired."""
    fired: list[datetime] = []
    with children.opened(url) as storage:
        for first in range(0, FIRE_TIMES, BATCH):
            batch = firings(first, BATCH)
            barrier.wait(children.PATIENCE)  # both come with the same fire times at the same moment
            fired += storage.schedules.fire(TERM, schedule, batch, batch[-1].at + SECOND).fire_times
    return fired


def test_two_leaders_that_fire_ten_thousand_fire_times_at_once_fire_each_once(storage: Storage, url: str) -> None:
    schedule = put(storage, url)
    fired = children.race(force, [(url, schedule), (url, schedule)])
    every = [FIRST + n * SECOND for n in range(FIRE_TIMES)]
    assert sorted(fired[0] + fired[1]) == every
    payloads = Counter(row[0] for row in sql(url, "select cast(payload as text) from {job}"))
    assert payloads == Counter(f'"{fire_time.isoformat()}"' for fire_time in every)
    assert sql(url, "select count(*) from {schedule_fire_time} s join {job} j on j.id = s.job_id") == [(FIRE_TIMES,)]
    found = storage.schedules.get("often")
    assert found is not None and (found.next_at, found.last_fire_time) == (every[-1] + SECOND, every[-1])


class Dying:
    """Counts the statements of a firing, and dies behind one of them."""

    def __init__(self, behind: int) -> None:
        self._left = behind
        self.run = 0

    def step(self) -> None:
        self.run += 1
        if self.run == self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def counting(work: Any, dying: Dying) -> Any:
    """A verb of a transaction that dies in its time."""

    def verb(*args: Any, **params: Any) -> Any:
        found = work(*args, **params)
        dying.step()
        return found

    return verb


def die_firing(_: Any, url: str, schedule: Schedule, behind: int) -> int:
    """Fire three fire times and die behind that statement; if there are not so many, how many there are."""
    dying = Dying(behind)
    with children.opened(url) as storage:
        change = storage.schedules._change  # type: ignore[attr-defined]

        def changing(work: Any, term: int | None) -> Any:
            def doomed(transaction: ScheduleChange) -> Any:
                for verb in ("rows", "take_fire_times", "enqueue"):
                    setattr(transaction, verb, counting(getattr(transaction, verb), dying))
                return work(transaction)

            return change(doomed, term)

        storage.schedules._change = changing  # type: ignore[attr-defined]
        assert len(storage.schedules.fire(TERM, schedule, firings(0, 3), FIRST + 3 * SECOND).fire_times) == 3
    return dying.run


def state(storage: Storage, url: str) -> tuple[Sequence[Any], ...]:
    """How many fire times and jobs there are, and the schedule."""
    counts = [sql(url, f"select count(*) from {{{table}}}")[0][0] for table in ("schedule_fire_time", "job", "job_key")]
    return (counts, storage.schedules.all())


def test_a_leader_that_dies_behind_any_statement_of_a_firing_has_fired_nothing(storage: Storage, url: str) -> None:
    schedule = put(storage, url)
    before = state(storage, url)
    for behind in range(1, 100):
        process, pipe = children.start(die_firing, (url, schedule, behind))
        try:
            good, statements = pipe.recv()
        except EOFError:
            process.join()
            assert process.exitcode == -signal.SIGKILL
            assert state(storage, url) == before
        else:
            assert good, statements
            assert statements == behind - 1 >= 4  # the schedule, the fire times, the jobs, the next fire time
            break
        finally:
            process.join()
            pipe.close()
    assert state(storage, url)[0] == [3, 3, 0]
