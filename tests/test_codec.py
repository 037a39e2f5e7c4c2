"""What a producer may pass, how it is refused, and that what was taken comes back."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import math
import uuid
from typing import Any, NamedTuple, Self

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge.codec import MAX_DEPTH, check_name, clean_text, decode, encode_payload
from forge.errors import InvalidJob
from forge.job import MAX_NAME, MAX_PAYLOAD

# A busy machine must not fail a property.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Size(enum.StrEnum):
    SMALL = "s"


class Split(int, enum.Enum):
    """Its number is not what it is stored as."""

    _value_: Any

    def __new__(cls, number: int, shown: str) -> Self:
        made = int.__new__(cls, number)
        made._value_ = shown
        return made

    ONE = 1, "one"


class Marked(str):
    """As templates mark safe text: still the same text."""

    __slots__ = ()


class Unequal(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = str.__hash__


class Celsius(float):
    __slots__ = ()


class Point(NamedTuple):
    x: int


@dataclasses.dataclass
class User:
    name: str


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ({"b": 1, "a": [1.5, None, True, "é🔥"]}, '{"b":1,"a":[1.5,null,true,"é🔥"]}'),
        ((1, (2,)), "[1,[2]]"),
        (2**64 - 1, "18446744073709551615"),
        (-(2**63), "-9223372036854775808"),
        ({}, "{}"),
        (None, "null"),
        (Marked("<b>"), '"<b>"'),
        ({"level": Level.HIGH, "size": Size.SMALL}, '{"level":3,"size":"s"}'),
        (collections.OrderedDict(a=[Level.HIGH]), '{"a":[3]}'),
        (collections.defaultdict(list, a=[1]), '{"a":[1]}'),
    ],
)
def test_a_payload_is_stored_as_compact_json(value: Any, stored: str) -> None:
    assert encode_payload(value) == stored.encode()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            {"items": [1, 2, 3, {"price": math.nan}]},
            "payload.items[3].price is NaN; JSON has no such number, pass None",
        ),
        ({"a b": math.inf}, "payload['a b'] is Infinity; JSON has no such number"),
        ([-math.inf], "payload[0] is -Infinity; JSON has no such number"),
        ([2**64], "payload[0] is an integer of more than 64 bits; pass it as a str"),
        (-(2**63) - 1, "payload is an integer of more than 64 bits"),
        ({"id": uuid.UUID(int=1)}, "payload.id is of type uuid.UUID; pass str() of it"),
        ([datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)], "of type datetime.datetime; pass its .isoformat()"),
        (datetime.date(2026, 1, 2), "of type datetime.date; pass its .isoformat()"),
        (datetime.time(1, 2), "of type datetime.time; pass its .isoformat()"),
        (datetime.timedelta(1), "of type datetime.timedelta; pass its .total_seconds()"),
        (Color.RED, "Color; pass its .value"),
        (Split.ONE, "Split; pass its .value"),
        (User("ada"), "User; pass dataclasses.asdict() of it"),
        (decimal.Decimal("1.10"), "of type decimal.Decimal; pass str() of it"),
        (b"raw", "of type bytes; pass text, for example base64"),
        (bytearray(b"raw"), "of type bytearray; pass text"),
        ({1, 2}, "of type set; pass sorted() or list() of it"),
        (Point(1), "Point; pass list() of it, or its ._asdict()"),
        (Celsius(1.5), "Celsius; pass float() of it"),
        ([Unequal("x")], "Unequal; pass str() of it"),
        (1j, "payload is of type complex; pass dict, list, str, int, float, bool or None"),
        (iter([]), "of type list_iterator; pass dict, list"),
        (User, "of type type; pass dict, list"),
        ({1: "x"}, "payload has the key 1 of type int; keys are plain str, pass str() of it"),
        ({"a": {None: 1}}, "payload.a has the key None of type NoneType"),
        ({Size.SMALL: 1}, "Size; keys are plain str, pass str() of it"),
        ({"a": "x\0"}, "payload.a has a NUL character (U+0000) in it"),
        ({"a\0": 1}, "payload has the key 'a\\x00', which has a NUL character"),
        (["\ud800"], "payload[0] has a lone surrogate (U+D800) in it"),
        ({"é\udfff": 1}, "which has a lone surrogate (U+DFFF) in it"),
        (nested(MAX_DEPTH + 1), "is nested deeper than 64 levels; pass a flatter value"),
        ("x" * MAX_PAYLOAD, "payload is too long as JSON; the limit is 1,048,576 bytes"),
        ("é" * (MAX_PAYLOAD // 2), "payload is 1,048,578 bytes of JSON; the limit is 1,048,576 bytes"),
        (collections.OrderedDict(a=math.nan), "payload.a is NaN"),
        ({"x" * 50: math.nan}, "payload['xxxxx"),
    ],
)
def test_a_payload_that_cannot_come_back_is_refused_with_what_to_pass(value: Any, words: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        encode_payload(value)
    message = str(refused.value)
    assert words in message
    assert "\n" not in message
    assert message.isascii() or "…" in message
    assert len(message) < 200


def test_the_name_and_the_limit_are_the_callers() -> None:
    with pytest.raises(InvalidJob, match=r"^result\.x is NaN"):
        encode_payload({"x": math.nan}, name="result")
    assert encode_payload("x" * 8, limit=10) == b'"xxxxxxxx"'
    with pytest.raises(InvalidJob, match=r"^result is too long as JSON; the limit is 10 bytes"):
        encode_payload("x" * 9, limit=10, name="result")


def test_depth_64_is_the_last_that_is_taken() -> None:
    assert encode_payload(nested(MAX_DEPTH)) == b"[" * 64 + b"]" * 64


def test_a_value_that_contains_itself_is_refused() -> None:
    circle: dict[str, Any] = {}
    circle["me"] = circle
    with pytest.raises(InvalidJob, match="nested deeper than 64"):
        encode_payload(circle)


def test_a_small_value_that_unfolds_without_end_is_refused_at_once() -> None:
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    with pytest.raises(InvalidJob, match="too long as JSON"):
        encode_payload(value)
    with pytest.raises(InvalidJob, match="too long as JSON"):
        encode_payload([Marked("x"), value])


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)
anything = st.recursive(
    json_values
    | st.floats()
    | st.text()
    | st.integers()
    | st.binary()
    | st.decimals()
    | st.sampled_from([Color.RED, Level.HIGH]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
    ),
    max_leaves=10,
)


def listed(value: Any) -> Any:
    """The value with its tuples as lists: as it is expected back."""
    if isinstance(value, list | tuple):
        return [listed(item) for item in value]
    if isinstance(value, dict):
        return {key: listed(item) for key, item in value.items()}
    return value


@patient
@given(json_values)
def test_every_json_value_comes_back_as_it_was(value: Any) -> None:
    back = decode(encode_payload(value))
    assert back == value
    assert repr(back) == repr(value)  # tells 1 from 1.0 and True, and -0.0 from 0.0


@patient
@given(anything)
def test_any_value_comes_back_equal_or_is_refused(value: Any) -> None:
    try:
        data = encode_payload(value)
    except InvalidJob:
        return
    assert decode(data) == listed(value)
    assert b"\\u0000" not in data.replace(b"\\\\", b"")


@patient
@given(anything, st.integers(1, 40))
def test_nothing_over_the_limit_is_ever_stored(value: Any, limit: int) -> None:
    try:
        data = encode_payload(value, limit=limit)
    except InvalidJob:
        return
    assert len(data) <= limit


@patient
@given(json_values)
def test_a_payload_of_exactly_the_limit_is_taken(value: Any) -> None:
    data = encode_payload(value)
    assert encode_payload(value, limit=len(data)) == data


@pytest.mark.parametrize("value", ["default", "mail.send", "a b", "émission", "x" * MAX_NAME, "-"])
def test_a_name_comes_back_as_it_is(value: str) -> None:
    assert check_name(value, "queue") == value


def test_a_name_of_an_enum_comes_back_plain() -> None:
    assert type(check_name(Size.SMALL, "queue")) is str


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "queue is empty; give it a name"),
        (None, "queue must be a str, not NoneType"),
        (3, "queue must be a str, not int"),
        (b"mail", "queue must be a str, not bytes"),
        ("x" * (MAX_NAME + 1), "queue has 256 characters; the limit is 255"),
        ("a,b", "queue 'a,b' has a comma in it"),
        ("a\nb", "queue 'a\\nb' has the character U+000A in it"),
        ("a\0", "queue 'a\\x00' has the character U+0000 in it"),
        ("\x7f", "has the character U+007F in it"),
        ("\x85", "has the character U+0085 in it"),
        ("a\ud800", "has the character U+D800 in it"),
    ],
)
def test_a_bad_name_is_refused(value: object, words: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        check_name(value, "queue")
    assert words in str(refused.value)
    assert str(refused.value).isascii()


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("ValueError: no luck", "ValueError: no luck"),
        ("naïve 漢字 🔥", "naïve 漢字 🔥"),
        ("a\0b", "a\\u0000b"),
        ("\ud800 é \0", "\\ud800 é \\u0000"),
        ("", ""),
        (Marked("x"), "x"),
    ],
)
def test_a_message_is_cleaned_and_never_lost(text: str, clean: str) -> None:
    assert clean_text(text) == clean
    assert type(clean_text(text)) is str


def test_a_message_with_nothing_wrong_is_not_copied() -> None:
    text = "é" * 1000
    assert clean_text(text) is text


@patient
@given(st.text(st.characters()))
def test_any_message_can_be_stored(text: str) -> None:
    clean = clean_text(text)
    assert "\0" not in clean
    assert clean.encode().decode() == clean
