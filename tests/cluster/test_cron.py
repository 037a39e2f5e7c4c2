"""When schedules come due: by hand around the changes of the clocks, and against a walk over every minute."""

from __future__ import annotations

import itertools
import zoneinfo
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st

from forge.cluster.cron import FireTimes
from forge.errors import UsageError

from .oracle import Spec, specs, transitions, walk

pytestmark = pytest.mark.impl_free

# Changes of an hour and of half an hour, to the summer and, in Casablanca, back from it for a month; a day that never
# was (Apia, Kwajalein); changes at midnight (Beirut, Havana, Asuncion); no changes; odd offsets.
ZONES = (
    "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia",
    "Pacific/Kwajalein", "Asia/Beirut", "America/Havana", "America/Asuncion", "Europe/Dublin", "Antarctica/Troll",
    "Asia/Kathmandu", "Pacific/Chatham", "America/St_Johns", "Asia/Tehran", "UTC",
)  # fmt: skip

# A failure is told as it was met: making it smaller takes minutes.
PLAIN: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "phases": [Phase.generate],
    "suppress_health_check": list(HealthCheck),
}


def fire_times(expression: str, zone: str, start: str, hours: float) -> list[str]:
    """The fire times from `start` (UTC) on, as the wall clock shows them."""
    since = datetime.fromisoformat(start).replace(tzinfo=UTC)
    found = FireTimes(expression, zone).between(since, since + timedelta(hours=hours))
    return [fire_time.astimezone(zoneinfo.ZoneInfo(zone)).strftime("%d %H:%M%z") for fire_time in found]


@pytest.mark.parametrize(
    ("expression", "zone", "start", "hours", "expected"),
    [
        # Clocks go back at 03:00: what comes twice is due the first time.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T20:00", 30, ["25 02:30+0200", "26 02:30+0100"]),
        ("0 3 * * *", "Europe/Berlin", "2026-10-24T20:00", 10, ["25 03:00+0100"]),
        ("0 */2 * * *", "Europe/Berlin", "2026-10-24T21:00", 7, ["25 00:00+0200", "25 02:00+0200", "25 04:00+0100"]),
        # An interval goes on through it.
        (
            "*/30 * * * *", "Europe/Berlin", "2026-10-24T23:59", 2.6,
            ["25 02:00+0200", "25 02:30+0200", "25 02:00+0100", "25 02:30+0100", "25 03:00+0100", "25 03:30+0100"],
        ),
        # Clocks go forward at 02:00: what is skipped is due at the end of the gap, once.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T20:00", 30, ["29 03:00+0200", "30 02:30+0200"]),
        ("*/15 2 * * *", "Europe/Berlin", "2026-03-28T20:00", 20, ["29 03:00+0200"]),
        ("0 2,3 * * *", "Europe/Berlin", "2026-03-28T20:00", 20, ["29 03:00+0200"]),
        ("30 * * * *", "Europe/Berlin", "2026-03-28T23:59", 2.5, ["29 01:30+0100", "29 03:30+0200"]),
        # Half an hour.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", 20, ["04 02:30+1100"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T10:00", 20, ["05 01:45+1100"]),
        # A day that never was: 30 December 2011.
        ("0 12 * * *", "Pacific/Apia", "2011-12-29T10:00", 50, ["29 12:00-1000", "31 00:00+1400", "31 12:00+1400"]),
        ("0 0 30 12 *", "Pacific/Apia", "2011-12-29T10:00", 50, ["31 00:00+1400"]),
        # Back for the month of fasting, and forward again: as in autumn and in spring.
        ("30 2 * * *", "Africa/Casablanca", "2026-02-14T12:00", 30, ["15 02:30+0100"]),
        ("30 2 * * *", "Africa/Casablanca", "2026-03-21T12:00", 30, ["22 03:00+0100"]),
    ],
)  # fmt: skip
def test_a_change_of_the_clocks(expression: str, zone: str, start: str, hours: float, expected: list[str]) -> None:
    assert fire_times(expression, zone, start, hours) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 3 * * *", ["2024-02-28T03:00:00", "2024-02-29T03:00:00"]),
        ("*/20 * * * * *", ["2024-02-28T00:00:20", "2024-02-28T00:00:40"]),
        ("15 10 3 * * *", ["2024-02-28T03:10:15", "2024-02-29T03:10:15"]),
        ("0 0 L * *", ["2024-02-29T00:00:00", "2024-03-31T00:00:00"]),
        ("0 0 29 2 *", ["2024-02-29T00:00:00", "2028-02-29T00:00:00"]),
        ("0 12 * * mon-fri", ["2024-02-28T12:00:00", "2024-02-29T12:00:00"]),
        ("0 0 1 * sun", ["2024-03-01T00:00:00", "2024-03-03T00:00:00"]),
        ("0 4-4 * * sat-sat", ["2024-03-02T04:00:00", "2024-03-09T04:00:00"]),
        ("0 0 * * fri#2", ["2024-03-08T00:00:00", "2024-04-12T00:00:00"]),
        ("@daily", ["2024-02-29T00:00:00", "2024-03-01T00:00:00"]),
        (" @Weekly ", ["2024-03-03T00:00:00", "2024-03-10T00:00:00"]),
    ],
)
def test_expressions(expression: str, expected: list[str]) -> None:
    found = FireTimes(expression)
    first = found.after(datetime(2024, 2, 28, tzinfo=UTC))
    assert first is not None
    assert [f"{fire_time:%Y-%m-%dT%H:%M:%S}" for fire_time in (first, found.after(first)) if fire_time] == expected


@pytest.mark.parametrize(
    ("expression", "zone", "words"),
    [
        ("0 3 * *", "UTC", "must be 5 cron fields, or 6 with seconds first"),
        ("61 3 * * *", "UTC", "must be a cron expression ("),
        ("0 0 30 2 *", "UTC", "must be a schedule that ever comes"),
        ("@dayly", "UTC", "must be 5 or 6 cron fields, or one of @yearly,"),
        ("0 0 15W * *", "UTC", "must be a cron expression without W, which forge does not know"),
        ("R 3 * * *", "UTC", "must be a cron expression without R"),
        ("h(0-5) 3 * * *", "UTC", "must be a cron expression without H"),
        ("0 3 * * *", "Europe/Berlim", 'must be the name of a time zone, such as "Europe/Berlin"'),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(expression: str, zone: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        FireTimes(expression, zone)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fraction_of_a_second_after_a_fire_time_is_after_it() -> None:
    at = datetime(2026, 1, 1, 3, tzinfo=UTC)
    found = FireTimes("0 3 * * *")
    assert found.after(at - timedelta(microseconds=1)) == at
    assert found.after(at) == found.after(at + timedelta(microseconds=1)) == at + timedelta(days=1)


def test_a_moment_of_any_zone_is_the_instant_it_is() -> None:
    berlin = datetime(2026, 1, 1, 4, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    assert FireTimes("0 4 * * *").after(berlin) == datetime(2026, 1, 1, 4, tzinfo=UTC)


def test_the_latest_of_a_year_of_seconds_is_found_without_walking_it() -> None:
    end = datetime(2026, 6, 1, 12, 0, 0, 500, UTC)
    assert FireTimes("* * * * * *").latest(end - timedelta(days=365), end) == end.replace(microsecond=0)
    assert FireTimes("0 0 1 1 *").latest(end - timedelta(days=365), end) == datetime(2026, 1, 1, tzinfo=UTC)
    assert FireTimes("0 0 1 1 *").latest(end - timedelta(days=30), end) is None
    assert FireTimes("0 0 1 6 *").latest(datetime(2026, 6, 1, tzinfo=UTC), end) is None  # it is not after itself


def agree(spec: Spec, zone: str, around: datetime, shift: float) -> None:
    """forge and the walk name the same fire times, from there on for two days or 150 of them."""
    start = around + timedelta(hours=shift)
    end = start + timedelta(days=2)
    try:
        found = FireTimes(spec.text, zone)
    except UsageError as e:
        assume("ever comes" not in str(e))
        raise
    expected = list(itertools.islice(walk(spec, zone, start, end), 150))
    until = expected[-1] if len(expected) == 150 else end - timedelta(microseconds=1)
    assert list(found.between(start, until)) == expected, spec.text
    assert found.latest(start, until) == (expected[-1] if expected else None), spec.text


def moments(zones: tuple[str, ...]) -> st.SearchStrategy[tuple[str, datetime]]:
    """A zone and a day on which its clocks change, or any day where they never do."""
    never = (datetime(2001, 2, 28, tzinfo=UTC), datetime(2024, 2, 28, tzinfo=UTC))
    return st.sampled_from(zones).flatmap(
        lambda zone: st.tuples(st.just(zone), st.sampled_from(transitions(zone) or never))
    )


@seed(5)
@settings(max_examples=120, **PLAIN)
@given(specs(), moments(ZONES), st.floats(-30, 30, allow_nan=False))
def test_no_fire_time_differs_from_a_walk_over_every_minute(
    spec: Spec, when: tuple[str, datetime], shift: float
) -> None:
    agree(spec, *when, shift)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@seed(6)
@settings(max_examples=5_000, **PLAIN)
@given(
    specs(),
    moments(tuple(sorted(zoneinfo.available_timezones() - {"localtime", "Factory"}))),
    st.floats(-30, 30, allow_nan=False),
)
def test_nor_in_any_zone_there_is(spec: Spec, when: tuple[str, datetime], shift: float) -> None:
    agree(spec, *when, shift)
