"""When a cron expression comes due: from an expression and a time zone to instants. Pure: no clock, no database.

croniter knows which times of a wall clock fit an expression. What the change of the clocks does to them is decided
here, by one question: does the expression name hours?

- It names hours (`30 2 * * *`, `0 */6 * * *`, `*/10 0-4 * * *`): it means those times of the day, each once. A time
  that the clocks skip comes at the end of the gap; of a time that comes twice, the first counts. Several times in one
  gap are one fire time.
- It names none (`*/15 * * * *`, `30 * * * *`): it means an interval. It comes whenever the wall clock shows a fitting
  time, so through a repeated hour it goes on every 15 minutes, and a skipped hour has no times that could be missed.

Everything is whole seconds: the offsets of zones, and the times of expressions.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from croniter import CroniterBadDateError, croniter

from forge.config import checks
from forge.errors import UsageError

__all__ = ["FireTimes"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WALL_EPOCH = _EPOCH.replace(tzinfo=None)
# Further than any zone has ever turned its clocks back.
_LONGEST_REPEAT = 25 * 3600
_ALL_HOURS = frozenset(range(24))


class FireTimes:
    """The times of one expression in one zone, as instants. For one thread at a time."""

    def __init__(self, expression: str, timezone: str = "UTC") -> None:
        """`UsageError` in one line if either cannot be used."""
        if wanted := checks.schedule(expression):
            raise UsageError(f"schedule {expression!r} must be {wanted}")
        if wanted := checks.timezone(timezone):
            raise UsageError(f"timezone {timezone!r} must be {wanted}")
        self._zone = None if timezone == "UTC" else ZoneInfo(timezone)
        self._cron = croniter(checks.seconds_last(expression), 0.0)
        hours = self._cron.expanded[1]
        self._names_hours = hours[0] != "*" and not _ALL_HOURS.issubset(hours)

    def after(self, moment: datetime) -> datetime | None:
        """The first fire time after this instant; None if there is none within some fifty years."""
        try:
            found = self._next((moment - _EPOCH) // timedelta(seconds=1))
        except CroniterBadDateError:
            return None
        return _EPOCH + timedelta(seconds=found)

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Every fire time in (after, until], in order."""
        fire_time = self.after(after)
        while fire_time is not None and fire_time <= until:
            yield fire_time
            fire_time = self.after(fire_time)

    def latest(self, after: datetime, until: datetime) -> datetime | None:
        """The last fire time in (after, until], None if there is none. Does not walk all of them: it looks further and
        further back."""
        back = timedelta(seconds=1)
        while True:
            since = max(after, until - back)
            last = deque(self.between(since, until), maxlen=1)
            if last or since <= after:
                return last[0] if last else None
            back *= 2

    # All below: instants and wall-clock times are seconds since 1970, the latter as if the zone were UTC.

    def _next(self, after: int) -> int:
        if self._zone is None:
            return self._next_wall(after)
        return self._next_named(after) if self._names_hours else self._next_shown(after)

    def _next_wall(self, wall: int) -> int:
        return int(self._cron.get_next(float, start_time=float(wall)))

    def _next_named(self, after: int) -> int:
        """The first time of the day whose instant is later."""
        wall = after + self._offset(after)
        if self._at(after).fold:
            wall = self._end_of_repeat(after) - 1  # all times up to there were due the first time
        while True:
            wall = self._next_wall(wall)
            instant = self._instant(wall)
            if instant > after:
                return instant

    def _next_shown(self, after: int) -> int:
        """The first later instant at which the wall clock shows a fitting time."""
        wall = after + self._offset(after)
        found = None
        while found is None:
            wall = self._next_wall(wall)
            found = next((instant for instant in self._shown_at(wall) if instant > after), None)
        # Times up to now may be shown once more before that, if the clocks are about to go back.
        near = min(found, after + _LONGEST_REPEAT)
        if self._offset(near) < self._offset(after):
            turn = self._first(after, near, lambda at: self._offset(at) == self._offset(near))
            back = turn + self._offset(turn)
            return min(found, turn + self._next_wall(back - 1) - back)
        return found

    def _end_of_repeat(self, instant: int) -> int:
        """The wall-clock time at which the clocks had been turned back into the stretch that `instant` is in."""
        offset = self._offset(instant)
        first_time = self._as_if(instant + offset, fold=0)
        turn = self._first(first_time, instant, lambda at: self._offset(at) == offset)
        return turn + self._offset(turn - 1)

    def _instant(self, wall: int) -> int:
        """When the clock shows this for the first time, or jumps over it."""
        first, second = self._as_if(wall, fold=0), self._as_if(wall, fold=1)
        if first + self._offset(first) == wall:
            return first
        return self._first(second, first, lambda at: at + self._offset(at) >= wall)

    def _shown_at(self, wall: int) -> list[int]:
        """When the clock shows this: never, once or twice."""
        both = {self._as_if(wall, fold=0), self._as_if(wall, fold=1)}
        return sorted(instant for instant in both if instant + self._offset(instant) == wall)

    def _as_if(self, wall: int, *, fold: int) -> int:
        """The instant by the offset before (fold 0) or behind (fold 1) a change of the clocks that is near."""
        shown = (_WALL_EPOCH + timedelta(seconds=wall)).replace(tzinfo=self._zone, fold=fold)
        return wall - _seconds(shown.utcoffset())

    def _at(self, instant: int) -> datetime:
        return (_EPOCH + timedelta(seconds=instant)).astimezone(self._zone)

    def _offset(self, instant: int) -> int:
        return _seconds(self._at(instant).utcoffset())

    @staticmethod
    def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
        """The first instant in (low, high] from which on it holds."""
        return low + 1 + bisect.bisect_left(range(low + 1, high), True, key=holds)


def _seconds(offset: timedelta | None) -> int:
    assert offset is not None
    return offset // timedelta(seconds=1)
