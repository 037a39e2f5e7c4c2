"""Bad input is refused at enqueue with a sentence that names the field and the limit, and nothing is stored."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest

from forge import Forge, InvalidJob, UsageError
from forge.job import LARGEST_PAYLOAD, NewJob

YEAR = 365.25 * 86_400
TOO_DEEP: Any = None
for _ in range(70):
    TOO_DEEP = [TOO_DEEP]


@pytest.fixture(scope="module")
def app() -> Iterator[Forge]:
    """An app that is never connected: refusals happen before."""
    with Forge("sqlite:////nowhere/at/all.db") as app:
        yield app


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"priority": 32_768}, "priority must be -32768 to 32767, not 32768"),
    ({"priority": -32_769}, "priority must be -32768 to 32767, not -32769"),
    ({"priority": 1.5}, "priority must be a whole number, not 1.5"),
    ({"priority": True}, "priority must be a whole number, not True"),
    ({"priority": 10**5000}, "priority must be -32768 to 32767, not a larger number"),
    ({"max_attempts": 0}, "max_attempts must be 1 to 32767, not 0"),
    ({"max_attempts": 32_768}, "max_attempts must be 1 to 32767, not 32768"),
    ({"max_attempts": "3"}, "max_attempts must be a whole number, not '3'"),
    ({"timeout": 0}, "timeout must be 1 to 604800 seconds (7 days), not 0"),
    ({"timeout": 604_801}, "timeout must be 1 to 604800 seconds (7 days), not 604801"),
    ({"timeout": 1.5}, "timeout must be whole seconds or a timedelta, not 1.5"),
    ({"timeout": timedelta(milliseconds=1500)}, "timeout must be whole seconds, not 0:00:01.5"),
    ({"delay": -0.1}, "delay must be 0 to 3155760000 seconds (100 years), not -0.1"),
    ({"delay": 101 * YEAR}, "delay must be 0 to 3155760000 seconds (100 years)"),
    ({"delay": 10**400}, "delay must be 0 to 3155760000 seconds (100 years), not a larger number"),
    ({"delay": float("nan")}, "delay must be 0 to 3155760000 seconds (100 years), not nan"),
    ({"delay": float("inf")}, "delay must be 0 to 3155760000 seconds (100 years), not inf"),
    ({"delay": "5"}, "delay must be seconds or a timedelta, not '5'"),
    ({"delay": timedelta(seconds=-1)}, "delay must be 0 to 3155760000 seconds (100 years), not -1.0"),
    ({"run_at": datetime(2030, 1, 1)}, "run_at 2030-01-01T00:00:00 has no time zone; add one"),  # noqa: DTZ001
    ({"run_at": datetime(1969, 12, 31, tzinfo=UTC)}, "run_at must be in the years 1970 to 9999 (UTC)"),
    (
        {"run_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))},
        "run_at must be in the years 1970 to 9999",
    ),
    ({"run_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))}, "run_at must be in the years 1970 to 9999"),
    ({"run_at": 1_800_000_000}, "run_at must be a datetime, not 1800000000"),
    ({"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 3}, "run_at and delay are both given; give one"),
    ({"unique_for": 60}, "unique_for needs a dedupe_key"),
    ({"unique_for": 0, "dedupe_key": "k"}, "unique_for must be 1 to 315360000 seconds (3650 days), not 0"),
    ({"dedupe_key": ""}, "dedupe_key must have 1 to 1024 characters, not 0"),
    ({"dedupe_key": "k" * 1025}, "dedupe_key must have 1 to 1024 characters, not 1025"),
    ({"dedupe_key": "😀" * 651}, "dedupe_key must have at most 2600 bytes in UTF-8, not 2604"),
    ({"dedupe_key": "a\0b"}, "dedupe_key must not hold a NUL character"),
    ({"dedupe_key": "\ud800"}, "dedupe_key must not hold a lone surrogate"),
    ({"dedupe_key": 7}, "dedupe_key must be a string, not 7"),
    ({"on_conflict": "ignore"}, "on_conflict must be one of keep, replace, push, not 'ignore'"),
    ({"tags": "red"}, "tags must be a list of strings, not 'red'"),
    ({"tags": 7}, "tags must be a list of strings, not 7"),
    ({"tags": [""]}, "tags: each must have 1 to 255 characters, not 0"),
    ({"tags": ["x" * 256]}, "tags: each must have 1 to 255 characters, not 256"),
    ({"tags": ["a\0"]}, "tags: each must not hold a NUL character"),
    ({"tags": ["\udfff"]}, "tags: each must not hold a lone surrogate"),
    ({"tags": [1]}, "tags: each must be a string, not 1"),
    ({"tags": ["t"] * 101}, "tags must be at most 100, not 101"),
    ({"keep_result": 0}, "keep_result must be 1 to 315360000 seconds (3650 days), not 0"),
    ({"keep_result": 1.5}, "keep_result must be whole seconds or a timedelta, not 1.5"),
    ({"keep_result": 10**10}, "keep_result must be 1 to 315360000 seconds (3650 days)"),
    ({"id": "not an id"}, "id must be a UUID, not 'not an id'"),
    ({"id": 7}, "id must be a UUID, not 7"),
    ({"queue": ""}, "queue is empty"),
    ({"queue": "a,b"}, "queue 'a,b' has a comma in it"),
    ({"queue": "q" * 256}, "queue has 256 characters; the limit is 255"),
    ({"queue": 7}, "queue must be a str, not int"),
    ({"kind": ""}, "kind is empty"),
    ({"kind": "a\nb"}, "kind 'a\\nb' has the character U+000A in it"),
    ({"kind": None}, "kind must be a str, not NoneType"),
    ({"payload": float("nan")}, "payload is NaN"),
    ({"payload": [float("-inf")]}, "payload[0] is -Infinity"),
    ({"payload": {"name": "a\0b"}}, "payload.name has a NUL character"),
    ({"payload": {"name": "\ud800"}}, "payload.name has a lone surrogate"),
    ({"payload": "x" * 1_048_576}, "the limit is 1,048,576"),
    ({"payload": TOO_DEEP}, "is nested deeper than 64 levels"),
    ({"payload": {1: 2}}, "payload has the key 1 of type int"),
    ({"payload": b"bytes"}, "payload is of type bytes"),
    ({"payload": object()}, "payload is of type object"),
]


@pytest.mark.parametrize(("said", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_bad_field_is_refused_by_name_and_nothing_is_stored(app: Forge, said: dict[str, Any], message: str) -> None:
    options = {"kind": "mail", "payload": {}} | said
    with pytest.raises(InvalidJob) as refusal:
        app.enqueue(**options)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_payload_limit_of_ones_own_is_enforced(app: Forge) -> None:
    with Forge("sqlite:////nowhere/at/all.db", max_payload=10) as small:
        assert small.job("mail", "x" * 8).payload == b'"xxxxxxxx"'
        with pytest.raises(InvalidJob, match="the limit is 10"):
            small.job("mail", "x" * 9)


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "1", LARGEST_PAYLOAD + 1])
def test_a_payload_limit_that_is_no_size_or_more_than_a_worker_can_be_sent_is_refused(size: Any) -> None:
    with pytest.raises(Exception, match="max_payload must be a whole number of bytes from 1 to 15728640, not "):
        Forge(max_payload=size)


def test_a_misspelt_option_is_refused_with_the_nearest_name(app: Forge) -> None:
    with pytest.raises(UsageError, match="mail: no option dely; did you mean delay"):
        app.enqueue("mail", {}, dely=3)  # type: ignore[call-arg]


def test_every_field_reaches_the_job(app: Forge) -> None:
    id, at = uuid4(), datetime(2030, 5, 6, 7, 8, 9, 10, timezone(timedelta(hours=2)))
    job = app.job(
        "mail",
        {"a": [1]},
        queue="letters",
        priority=-3,
        run_at=at,
        max_attempts=7,
        timeout=timedelta(minutes=2),
        dedupe_key="key",
        unique_for=timedelta(hours=1),
        on_conflict="push",
        tags=(tag for tag in ("red", "blue")),
        keep_result=timedelta(days=1),
        id=str(id),
    )
    assert job == NewJob(
        id, "mail", b'{"a":[1]}', "letters", -3, at, 0.0, 7, 120, "key", 3600, "push", ("red", "blue"), 86_400
    )


def test_what_is_not_said_has_the_documented_default(app: Forge) -> None:
    job = app.job("mail", None)
    assert isinstance(job.id, UUID)
    assert job.id.version == 7
    assert job[1:] == ("mail", b"null", "default", 0, None, 0.0, 5, 600, None, None, "keep", (), None, None)


@pytest.mark.parametrize(
    ("said", "seconds"), [(None, None), (False, None), (True, 604_800), (30, 30), (timedelta(hours=1), 3600)]
)
def test_keep_result_is_seconds_in_any_spelling(app: Forge, said: Any, seconds: int | None) -> None:
    assert app.job("mail", None, keep_result=said).keep_result == seconds


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", -32_768),
        ("priority", 32_767),
        ("max_attempts", 1),
        ("max_attempts", 32_767),
        ("timeout", 1),
        ("timeout", 604_800),
        ("delay", 0.0),
        ("delay", 100 * YEAR),
        ("run_at", datetime(1970, 1, 1, tzinfo=UTC)),
        ("run_at", datetime(9999, 12, 29, tzinfo=UTC)),
        ("dedupe_key", "k" * 1024),
        ("dedupe_key", "😀" * 650),
        ("tags", ("t" * 255,) * 100),
        ("queue", "q" * 255),
    ],
)
def test_a_value_at_its_limit_is_taken(app: Forge, field: Any, value: Any) -> None:
    assert getattr(app.job("mail", None, **{field: value}), field) == value


def test_limits_are_what_both_databases_can_hold(url: str) -> None:
    with Forge(url) as app:
        handle = app.enqueue(
            "k" * 255,
            "x" * 1_048_574,
            queue="q" * 255,
            priority=32_767,
            run_at=datetime.max.replace(tzinfo=UTC),
            max_attempts=32_767,
            timeout=604_800,
            dedupe_key="".join(chr(0x10000 + n * 1597) for n in range(640)),
            unique_for=315_360_000,
            tags=[f"{n:03}" + "ü" * 252 for n in range(100)],
            keep_result=315_360_000,
        )
        job = handle.job()
        assert (job.kind, job.payload, job.queue, job.priority) == ("k" * 255, "x" * 1_048_574, "q" * 255, 32_767)
        assert abs(job.run_at - datetime.max.replace(tzinfo=UTC)) < timedelta(days=2)
        assert (job.timeout, job.unique_for, job.keep_result, len(job.tags)) == (604_800, 315_360_000, 315_360_000, 100)
