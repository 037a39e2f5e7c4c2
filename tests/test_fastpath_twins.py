"""The native fast path against its reference, on garbage too: the same answer, or an error of the same type."""

from __future__ import annotations

import enum
import importlib
from array import array
from collections.abc import Callable
from copy import copy
from typing import Any
from uuid import UUID, SafeUUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge import _fastpath_py
from forge.job import Claim, Done, Ending, Failed, NewJob

pytestmark = pytest.mark.impl_free

# `make setup` builds the extension or fails, so a missing one is an error here and not a reason to skip.
NATIVE = importlib.import_module("forge._fastpath")
# A busy machine must not fail a property.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Color(enum.StrEnum):
    RED = "red"


def outcome(call: Callable[..., Any], *args: Any) -> Any:
    """What a call answers, or the type of what it raises."""
    try:
        found = call(*args)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
        return type(error)
    try:
        return repr(found)  # repr tells -0.0 from 0.0 and 1 from True, and NaN equals NaN
    except TypeError:  # a named tuple that was made of too few fields has none
        return repr([tuple(each) for each in found])


def agree(name: str, *args: Any) -> None:
    """The same answer or error, and the same done to the dictionaries and arrays among the arguments."""
    theirs, ours = ([copy(each) if type(each) in (dict, array) else each for each in args] for _ in range(2))
    assert outcome(getattr(NATIVE, name), *ours) == outcome(getattr(_fastpath_py, name), *theirs)
    assert outcome(lambda: [each for each in ours if type(each) in (dict, array)]) == outcome(
        lambda: [each for each in theirs if type(each) in (dict, array)]
    )


text = st.text(st.characters(), max_size=20) | st.text(st.sampled_from("a\0é\ud800漢🔥\udfff"), max_size=5)
numbers = st.integers() | st.integers(-(2**66), 2**66) | st.floats() | st.booleans()
scalars = st.none() | numbers | text | st.binary(max_size=5) | st.just(Color.RED) | st.uuids() | st.complex_numbers()
garbage = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(text | st.integers(), inner, max_size=4)
    ),
    max_leaves=10,
)
uuid_or_not = st.uuids() | st.integers(-3, 3).map(lambda i: _odd_uuid(i * 2**100)) | garbage


def _odd_uuid(number: Any) -> UUID:
    """A UUID whose number is not one of 128 bits: nobody makes one, but both must treat it alike."""
    found = object.__new__(UUID)
    object.__setattr__(found, "int", number)
    object.__setattr__(found, "is_safe", SafeUUID.unknown)
    return found


@patient
@given(garbage, st.integers(-1, 5), st.integers(-5, 60))
def test_both_judge_garbage_alike(value: Any, depth: int, limit: int) -> None:
    agree("check_json", value, depth, limit)
    agree("check_json", value, 64, 1_000_000)


@patient
@given(garbage, garbage, garbage)
def test_both_treat_garbage_arguments_of_check_json_alike(value: Any, depth: Any, limit: Any) -> None:
    agree("check_json", value, depth, limit)


@patient
@given(st.integers() | st.integers(0, 2**60) | garbage, st.binary(max_size=64) | garbage)
def test_both_make_the_same_ids(tick: Any, rand: Any) -> None:
    agree("uuids", tick, rand)


@patient
@given(
    st.sampled_from(["exponential", "decorrelated", "faktory", "fixed", "none"]) | garbage,
    numbers | garbage,
    numbers | garbage,
    numbers | garbage,
    st.floats(0, 1) | numbers | garbage,
)
def test_both_give_the_same_delays(curve: Any, n: Any, base: Any, cap: Any, r: Any) -> None:
    agree("delay", curve, n, base, cap, r)


@patient
@given(st.integers(-(2**70), 2**70), st.floats(1, 86400), st.floats(1, 86400), st.floats(0, 1))
def test_both_give_the_same_delays_to_the_last_bit(n: int, base: float, cap: float, r: float) -> None:
    for curve in ("exponential", "decorrelated", "faktory"):
        agree("delay", curve, n, base, cap, r)


small = st.integers(-(2**15), 2**15 - 1)
jobs_or_not = st.builds(
    NewJob,
    id=st.uuids() | uuid_or_not,
    kind=text | garbage,
    payload=st.binary() | garbage,
    queue=text | garbage,
    priority=small | numbers | garbage,
    max_attempts=small | numbers,
    timeout=small | numbers,
    keep_result=st.none() | small | numbers,
    tags=st.lists(text, max_size=3).map(tuple) | garbage,
)


@patient
@given(st.lists(jobs_or_not | garbage, max_size=4) | garbage, st.none() | st.lists(numbers, max_size=4) | garbage)
def test_both_encode_rows_alike(jobs: Any, run_ats: Any) -> None:
    agree("copy_rows", jobs, None)
    agree("copy_rows", jobs, run_ats)


@patient
@given(
    st.lists(st.builds(NewJob, id=st.uuids(), kind=text, payload=st.binary(), queue=text, priority=small), max_size=20)
)
def test_both_encode_sound_rows_alike(jobs: list[NewJob]) -> None:
    agree("copy_rows", jobs, [job.priority for job in jobs])


@patient
@given(st.lists(uuid_or_not) | garbage, st.lists(numbers) | garbage, st.lists(st.none() | text | st.binary()) | garbage)
def test_both_encode_arrays_alike(ids: Any, values: Any, texts: Any) -> None:
    agree("uuid_array", ids)
    agree("int8_array", values)
    agree("text_array", texts)


rows_of_claims = st.lists(
    st.tuples(
        st.integers(),
        st.integers(),
        st.binary(min_size=16, max_size=16) | st.binary(max_size=20),
        text,
        text,
        st.integers(),
        st.integers(),
        st.integers(),
        st.none() | st.integers(),
        st.none() | text,
    )
    | st.tuples(st.integers(), st.binary()),
    max_size=4,
)


endings_or_not = st.builds(
    Ending,
    claim=st.builds(
        Claim,
        priority=small,
        run_at=st.none(),
        id=uuid_or_not,
        token=numbers,
        queue=text,
        kind=text,
        payload=st.binary(),
        attempt=small,
        max_attempts=small,
        timeout=small,
        keep_result=st.booleans(),
        keyed=st.booleans() | garbage,
    ),
    outcome=st.sampled_from([Done(), Failed("no"), 3]),
    result=st.none() | st.binary(),
    children=st.just(()) | garbage,
)


@patient
@given(st.lists(endings_or_not, max_size=3))
def test_both_pack_the_same_endings(endings: list[Any]) -> None:
    agree("plain_endings", endings, True)
    agree("plain_endings", endings, False)


@patient
@given(
    st.lists(st.tuples(st.integers(), text) | st.tuples(numbers, garbage) | garbage, max_size=5),
    st.integers(0, 3),
    st.integers(0, 6),
    st.integers(0, 80),
)
def test_both_make_the_same_jobs_of_calls(calls: list[Any], start: int, stop: int, limit: int) -> None:
    ids, rest = [UUID(int=n) for n in range(5)], tuple(NewJob(UUID(int=1), "k", b""))[3:]
    agree("task_jobs", calls, start, stop, (int, str), ids, "k", rest, 64, limit)


@patient
@given(st.lists(jobs_or_not, max_size=4))
def test_both_survey_alike(jobs: list[Any]) -> None:
    agree("survey", jobs)


@patient
@given(rows_of_claims, st.integers(), text)
def test_both_make_the_same_claims_of_rows(rows: list[Any], token: int, queue: str) -> None:
    agree("claims", rows, token, queue)
