"""The service that fires: the leader's. It enqueues what is due.

A fire time that came while nobody looked is late: nobody led, or the database was away. What becomes of late ones is
the schedule's to say (`catch_up`), however short the time was. The others all fire, however busy the leader was: it has
seen to all that was due before, and has gone on without a break.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from forge.cluster.cron import FireTimes
from forge.cluster.schedules import job_at
from forge.cluster.service import JITTER, LONGEST_BACKOFF, Service
from forge.errors import DatabaseError, UsageError
from forge.storage import Storage
from forge.storage.contract.schedules import Fired, Firing, Schedule

__all__ = ["ON_TIME", "Cron", "times_to_fire"]

# What a leader may be late that looks every second, and one that has just taken over from another who stopped.
ON_TIME = timedelta(seconds=2)
BREAK = 1.0  # seconds that a look may come later than announced
# Seconds between looks, and while nothing is due soon: an idle pod should be frugal. It hears of new schedules.
EVERY, EVERY_IF_FAR = 1.0, 5.0
FAR = timedelta(seconds=2 * EVERY_IF_FAR)
AT_ONCE = 200  # fire times in one transaction
ROUND = 5.0  # seconds after which a round lets others have their turn
PRUNE_EVERY = 600.0  # seconds
PRUNED_AT_ONCE = 1000
_TICK = timedelta(microseconds=1)


class Stretch(NamedTuple):
    """Fire times in (since, until] are to be seen to; those up to `late` are late."""

    since: datetime
    until: datetime
    late: datetime


def times_to_fire(
    schedule: Schedule, fire_times: FireTimes, now: datetime, on_time: datetime
) -> tuple[list[datetime], datetime]:
    """Which fire times of a schedule that is due are to fire, at most `AT_ONCE`, and the one from which it goes on.
    Those up to `on_time` are late. `UsageError` if there is none to go on from."""
    parts = _parts(schedule, now, on_time)
    if schedule.catch_up == "one" and any(fire_times.latest(part.since, min(part.late, part.until)) for part in parts):
        # The latest of all: one that is on time makes up for those that are late.
        found = [fire_time for part in parts if (fire_time := fire_times.latest(part.since, part.until))][-1:]
    else:
        if schedule.catch_up != "all":
            parts = [part._replace(since=max(part.since, part.late)) for part in parts]
        each = (fire_times.between(part.since, part.until) for part in parts)
        found = list(itertools.islice(itertools.chain.from_iterable(each), AT_ONCE))
    going_on = fire_times.after(found[-1] if len(found) == AT_ONCE else now)
    if going_on is None:
        raise UsageError("it never comes again")
    return found, going_on


def _parts(schedule: Schedule, now: datetime, on_time: datetime) -> list[Stretch]:
    """What is to be seen to, without the pauses. What came shortly before a pause was on time then, and still is."""
    assert schedule.next_at is not None
    since, parts = schedule.next_at - _TICK, []
    for pause in schedule.pauses:
        if pause.until > since:
            parts.append(Stretch(since, pause.since, min(on_time, pause.since - ON_TIME)))
            since = max(since, pause.until)
    return [*parts, Stretch(since, now, on_time)]


class OneFailed(Exception):
    """One schedule could not be fired; all others were seen to."""

    def __init__(self, error: DatabaseError) -> None:
        super().__init__(str(error))
        self.error = error


class Cron(Service):
    """Fires what is due by schedules."""

    name = "cron"
    every = EVERY
    leader_only = True

    def __init__(
        self, storage: Storage, clock: Callable[[], float] = time.monotonic, hears: Callable[[], bool] = lambda: False
    ) -> None:
        """`hears`: whether whoever runs this is told of schedules that were made or changed meanwhile."""
        self._storage, self._clock, self._hears = storage, clock, hears
        self._term: int | None = None  # of the last round
        self._expected_by = -math.inf  # by the clock: a look that comes later comes after a break
        self._seen_to = datetime.min.replace(tzinfo=UTC)  # what was due by then has been seen to
        self._prune_at = 0.0  # monotonic
        self._known: dict[tuple[str, str], FireTimes] = {}

    def run_once(self, term: int | None) -> str | None:
        """Fire what is due."""
        assert term is not None
        if term != self._term:
            self._term, self._expected_by = term, -math.inf
        try:
            said = self._fire_all(term)
        except OneFailed as e:
            self._expect(LONGEST_BACKOFF)
            raise e.error from None
        except BaseException:
            self._expected_by = -math.inf
            raise
        self._expect(self.every)
        self._prune(term)
        return "; ".join(said) or None

    def _expect(self, within: float) -> None:
        """The next look, or the next thing to be done in this one."""
        self._expected_by = self._clock() + within * (1 + JITTER) + BREAK

    def _on_time(self, now: datetime) -> datetime:
        """Fire times that came later are on time."""
        if self._clock() > self._expected_by:
            self._seen_to = now - ON_TIME
        self._expect(EVERY)
        return min(self._seen_to, now - ON_TIME)

    def _fire_all(self, term: int) -> list[str]:
        """What is due, until nothing is. What is wrong with one schedule does not keep the others from firing."""
        end = time.monotonic() + ROUND
        fired: dict[str, int] = {}
        skipped, said = 0, list[str]()
        failed: dict[str, DatabaseError] = {}
        while time.monotonic() < end:
            due = self._storage.schedules.due()
            on_time = self._on_time(due.now)
            far = self._hears() and (due.soonest is None or due.soonest - due.now > FAR)
            self.every = EVERY_IF_FAR if far else EVERY
            if all(schedule.name in failed for schedule in due.schedules):
                self._seen_to = due.now
                break
            for schedule in due.schedules:
                try:
                    done = self._fire(term, schedule, due.now, on_time)
                except UsageError as e:
                    if self._storage.schedules.disable(term, schedule, str(e)):
                        said.append(f"{schedule.name} is disabled: {e}")
                except DatabaseError as e:
                    if failed:  # not this one's fault
                        raise
                    failed[schedule.name] = e
                else:
                    fired[schedule.name] = fired.get(schedule.name, 0) + len(done.fire_times)
                    skipped += len(done.skipped)
                self._expect(EVERY)
        for error in failed.values():
            raise OneFailed(error)
        if names := [name for name, count in fired.items() if count]:
            some = f"{', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
            said.append(f"fired {sum(fired.values())} of {some}" + (f", {skipped} skipped" if skipped else ""))
        return said

    def _fire(self, term: int, schedule: Schedule, now: datetime, on_time: datetime) -> Fired:
        fire_times, going_on = times_to_fire(schedule, self._fire_times(schedule), now, on_time)
        firings = [Firing(fire_time, job_at(schedule, fire_time)) for fire_time in fire_times]
        return self._storage.schedules.fire(term, schedule, firings, going_on)

    def _fire_times(self, schedule: Schedule) -> FireTimes:
        key = schedule.expression, schedule.timezone
        if key not in self._known:
            if len(self._known) >= 10_000:  # edited over and over
                self._known.clear()
            self._known[key] = FireTimes(*key)
        return self._known[key]

    def _prune(self, term: int) -> None:
        """Fire times that are old enough to be forgotten, now and then."""
        if time.monotonic() >= self._prune_at:
            pruned = self._storage.schedules.prune(term, n=PRUNED_AT_ONCE)
            self._prune_at = time.monotonic() + (PRUNE_EVERY if pruned < PRUNED_AT_ONCE else 0)
