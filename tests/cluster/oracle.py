"""Cron the slow way: a walk over every minute of real time, looking at the wall clock. Shares nothing with forge's own.

An expression is made as text and as the sets it means, together, so nothing here reads cron. Which times come a second
time is found by remembering the latest wall-clock time seen, and a gap by the wall clock jumping: zoneinfo is asked for
nothing but what the clock shows at an instant.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

MINUTE = timedelta(minutes=1)
RUN_UP = timedelta(hours=30)  # before the window: longer than clocks are ever turned back
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class Field(NamedTuple):
    """One field of an expression: its text, and the values it means."""

    text: str
    values: frozenset[int]

    @property
    def named(self) -> bool:
        """Whether it leaves anything out."""
        return self.text != "*"


LAST_DAY = Field("L", frozenset({-1}))


class Spec(NamedTuple):
    """An expression."""

    second: Field | None
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    @property
    def text(self) -> str:
        return " ".join(field.text for field in self if field is not None)

    def seconds(self) -> list[int]:
        return [0] if self.second is None else sorted(self.second.values)

    def fits(self, wall: datetime) -> bool:
        """Whether a wall-clock minute is one of the expression's."""
        return (
            wall.minute in self.minute.values
            and wall.hour in self.hour.values
            and wall.month in self.month.values
            and self._fits_day(wall)
        )

    def _fits_day(self, wall: datetime) -> bool:
        last = (wall + timedelta(days=1)).month != wall.month
        day = wall.day in self.day.values or (last and -1 in self.day.values)
        weekday = wall.isoweekday() % 7 in self.weekday.values
        return day or weekday if self.day.named and self.weekday.named else day and weekday


def walk(spec: Spec, zone: str, start: datetime, end: datetime) -> Iterator[datetime]:
    """Every fire time in (start, end), in order."""
    info = ZoneInfo(zone)
    names_hours = spec.hour.values != frozenset(range(24))
    instant = (start - RUN_UP).replace(second=0, microsecond=0)
    wall = instant.astimezone(info).replace(tzinfo=None)
    latest = wall - MINUTE
    while instant < end:
        assert wall.second == 0, f"{zone} is not whole minutes off UTC here"
        if wall > latest + MINUTE and names_hours:  # the clocks went forward, over these minutes
            skipped = (latest + MINUTE * n for n in range(1, (wall - latest) // MINUTE))
            jumped = any(spec.fits(minute) for minute in skipped)
        else:
            jumped = False
        again = names_hours and wall <= latest
        seconds = set(spec.seconds()) if spec.fits(wall) and not again else set()
        fire_times = [instant + timedelta(seconds=second) for second in sorted(seconds | ({0} if jumped else set()))]
        yield from (fire_time for fire_time in fire_times if start < fire_time < end)
        latest = max(latest, wall)
        instant += MINUTE
        wall = instant.astimezone(info).replace(tzinfo=None)


@cache
def transitions(zone: str, first: int = 1975, last: int = 2037) -> tuple[datetime, ...]:
    """The days on which the zone's clocks were, or will be, changed."""
    info, found = ZoneInfo(zone), []
    day, end = datetime(first, 1, 1, tzinfo=UTC), datetime(last, 1, 1, tzinfo=UTC)
    before = day.astimezone(info).utcoffset()
    while day < end:
        day += timedelta(days=1)
        now = day.astimezone(info).utcoffset()
        if now != before:
            found.append(day)
        before = now
    return tuple(found)


def _values(low: int, high: int, names: tuple[str, ...] = (), *, whole: bool = True) -> st.SearchStrategy[Field]:
    """A field between these bounds: one value, several, a range, or with a step. `whole`: no others are possible."""
    number = st.integers(low, high)
    pair = st.tuples(number, number).map(lambda two: (min(two), max(two)))
    step = st.integers(2, max(2, (high - low) // 2))

    def shown(value: int) -> str:
        return names[value - low] if names else str(value)

    single = number.map(lambda v: Field(shown(v), frozenset({v})))
    spread = pair.map(lambda p: Field(f"{shown(p[0])}-{shown(p[1])}", frozenset(range(p[0], p[1] + 1))))
    spread = spread.filter(lambda f: len(f.values) <= high - low)  # croniter takes a full range for named, or for *
    every = step.map(lambda n: Field(f"*/{n}", frozenset(range(low, high + 1, n))))
    stepped = st.tuples(pair, step).map(
        lambda t: Field(f"{t[0][0]}-{t[0][1]}/{t[1]}", frozenset(range(t[0][0], t[0][1] + 1, t[1])))
    )
    several = st.lists(st.one_of(single, spread), min_size=2, max_size=4).map(
        lambda each: Field(",".join(f.text for f in each), frozenset().union(*(f.values for f in each)))
    )
    several = several.filter(lambda f: len(f.values) <= high - low)
    return st.one_of(single, several, spread, stepped, *([every] if whole else []))


def _any(low: int, high: int) -> st.SearchStrategy[Field]:
    return st.just(Field("*", frozenset(range(low, high + 1))))


def specs() -> st.SearchStrategy[Spec]:
    """Expressions. Most name no day: those that do are rarely due near a given change of the clocks."""
    seconds = st.one_of(st.none(), st.none(), _values(0, 59), _any(0, 59))
    minutes = st.one_of(_values(0, 59), _any(0, 59))
    hours = st.one_of(_values(0, 3, whole=False), _values(0, 23), _any(0, 23))
    days = st.one_of(_any(1, 31), _any(1, 31), _any(1, 31), _values(1, 31), st.just(LAST_DAY))
    months = st.one_of(_any(1, 12), _any(1, 12), _any(1, 12), _values(1, 12), _values(1, 12, MONTHS))
    weekdays = st.one_of(_any(0, 6), _any(0, 6), _any(0, 6), _values(0, 6), _values(0, 6, DAYS))
    return st.builds(Spec, seconds, minutes, hours, days, months, weekdays)
