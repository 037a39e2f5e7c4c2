"""Every function of the fast path, native against reference: on sound input, on the same with one part spoiled or cut
short, and on garbage. Both give the same answer, or an error of the same type.

A function is taken up by one line in SOUND; a test fails for one that has none.
"""

from __future__ import annotations

import inspect
import sys
from array import array
from types import FrameType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.fastpath import NATIVE
from forge import _fastpath_py
from forge.fastpath import BUCKETS
from forge.job import Claim, Done, Ending, Line, NewJob
from tests.test_fastpath_twins import agree, garbage, text, uuid_or_not

pytestmark = pytest.mark.impl_free  # both are compared here, whichever is chosen

# A busy machine must not fail a property.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

int16, int32 = st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | int64 | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner).map(tuple) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
attempts, seconds, chance = st.integers(-2, 120), st.floats(0, 86400), st.floats(0, 1, exclude_max=True)
limits = st.integers(0, 60) | st.just(1 << 20)

new_jobs = st.builds(
    NewJob,
    id=st.uuids(),
    kind=words,
    payload=st.binary(max_size=20),
    queue=words,
    priority=int16,
    delay=st.sampled_from([0, 0.0, 1.5]),
    max_attempts=int16,
    timeout=int32,
    keep_result=st.none() | int32,
    dedupe_key=st.none() | words,
    tags=st.lists(words, max_size=3).map(tuple),
    line=st.none() | st.builds(Line, words),
)
claim_rows = st.tuples(
    int16,
    int64,
    st.binary(min_size=16, max_size=16),
    words,
    words | st.binary(max_size=9),
    int16,
    int16,
    int32,
    st.none() | int32,
    st.none() | words,
)


def ending(id_: UUID, token: int, queue: str) -> Ending:
    return Ending(Claim(0, None, id_, token, queue, "k", b"{}", 1, 5, 60, False, False), Done())


def by_id(endings: list[Ending]) -> list[Ending]:
    return sorted(endings, key=lambda each: each.claim.id)


endings = st.lists(st.builds(ending, st.uuids(), int64, words), max_size=4)
claims = st.builds(
    Claim,
    priority=st.just(0),
    run_at=st.none(),
    id=st.uuids(),
    token=int64,
    queue=words,
    kind=words,
    payload=st.binary(max_size=9).filter(lambda found: b"\n" not in found),
    attempt=int16,
    max_attempts=int16,
    timeout=int32,
    keep_result=st.booleans(),
    keyed=st.booleans(),
)
one_id = UUID(int=0x0123456789ABCDEF)
one_claim = Claim(0, 817_000_000_000_000, one_id, 9, "q", "k", b"{}", 1, 5, 600, False, False)
in_hand = st.sampled_from([{}, {one_id.hex: ("the claim", 1.0)}, {one_id.hex: (one_claim, 1.0)}])
times = st.sampled_from([array("q", bytes(16 * BUCKETS)), array("q", [1] * 7), array("d", [0.0] * 288)])
took = st.floats(0, 100) | st.floats()
reply_lines = st.builds(_fastpath_py.done_line, st.uuids() | st.just(one_id), took) | st.sampled_from(
    [b'{"say":"progress"}\n', b"\n", b'{"id":"' + one_id.hex.encode() + b'","status":"ok","took":1234567.000000}\n']
)
lines = st.builds(lambda *parts: b"".join(parts), st.sampled_from([b"PUSH", b"ACK", b""]), st.sampled_from([b" ", b""]),
                  st.binary(max_size=9), st.sampled_from([b"\r\n", b"\n"]))  # fmt: skip
one_line = words.map(lambda found: "".join(found.splitlines()))
replies = (
    one_line.map(_fastpath_py.resp_simple)
    | st.builds(_fastpath_py.resp_error, one_line, words)
    | int64.map(_fastpath_py.resp_int)
    | st.binary(max_size=9).map(_fastpath_py.resp_bulk)
    | st.just(b"$-1\r\n")
    | st.sampled_from(
        [b"$-0\r\n", b"$007\r\n1234567\r\n", b":\r\n", b"$2\r\nab", b"*1\r\n", b":9223372036854775808\r\n"]
    )
)

# What each function takes in earnest, argument by argument.
SOUND: dict[str, st.SearchStrategy[tuple[Any, ...]]] = {
    "check_json": st.tuples(json_values, st.integers(0, 5) | st.just(64), limits),
    "uuids": st.tuples(
        st.integers(0, 2**60 - 1), st.lists(st.binary(min_size=8, max_size=8), max_size=5).map(b"".join)
    ),
    "claims": st.tuples(st.lists(claim_rows, max_size=4), int64, words),
    "delay": st.tuples(
        st.sampled_from(["exponential", "decorrelated", "faktory", "fixed", "none"]), attempts, seconds, seconds, chance
    ),
    "copy_rows": st.tuples(st.lists(new_jobs, max_size=4), st.none())
    | st.lists(st.tuples(new_jobs, int64), max_size=4).map(lambda both: ([j for j, _ in both], [at for _, at in both])),
    "task_jobs": st.tuples(
        st.lists(st.tuples(int64, words), max_size=5),
        st.integers(0, 3),
        st.integers(0, 6),
        st.just((int, str)),
        st.lists(st.uuids(), min_size=5, max_size=5),
        words,
        st.just(tuple(NewJob(UUID(int=1), "k", b""))[3:]),
        st.just(64),
        limits,
    ),
    "survey": st.tuples(st.lists(new_jobs, max_size=4)),
    "uuid_array": st.tuples(st.lists(st.uuids())),
    "int8_array": st.tuples(st.lists(int64)),
    "plain_endings": st.tuples(endings.map(by_id) | endings, st.booleans()),
    "job_lines": st.tuples(st.lists(claims, max_size=3), in_hand, seconds),
    "jobs_in": st.lists(
        claims.map(lambda found: _fastpath_py.job_lines([found], {}, 0.0)) | st.sampled_from([b"\n", b'{"do":"x"}\n']),
        max_size=4,
    ).map(lambda found: (b"".join(found),)),
    "done_line": st.tuples(st.uuids(), took),
    "timed": st.tuples(
        times, st.floats() | took, st.none() | int64 | st.integers(), st.floats(), st.none() | st.floats()
    ),
    "answers": st.tuples(st.lists(reply_lines, max_size=4).map(b"".join), in_hand, st.just(Done()))
    | st.tuples(
        st.lists(reply_lines, max_size=4).map(b"".join), in_hand, st.just(Done()), times, st.none() | st.floats()
    ),
    "text_array": st.tuples(st.lists(st.none() | words | st.binary(max_size=9))),
    "resp_simple": st.tuples(words),
    "resp_error": st.tuples(words, words),
    "resp_int": st.tuples(int64),
    "resp_bulk": st.tuples(st.none() | st.binary()),
    "resp_commands": st.tuples(st.lists(lines, max_size=5).map(b"".join), limits),
    "resp_values": st.tuples(st.lists(replies, max_size=5).map(b"".join), limits),
}
FUNCTIONS = [name for name in _fastpath_py.__all__ if name != "burst"]  # that takes no data: tests/worker/test_burst.py


def test_every_function_is_compared() -> None:
    assert sorted(SOUND) == FUNCTIONS
    assert all(inspect.isroutine(getattr(module, name)) for name in SOUND for module in (NATIVE, _fastpath_py))


@st.composite
def spoiled(draw: st.DrawFn, value: Any) -> Any:
    """`value` with something wrong: it, or a part of it at any depth, is garbage, cut short or changed by a bit."""
    if isinstance(value, list | tuple) and value and draw(st.integers(0, 3)):
        at = draw(st.integers(0, len(value) - 1))
        parts = [*value[:at], draw(spoiled(value[at])), *value[at + 1 :]]
        if isinstance(value, list):
            return parts
        return type(value)._make(parts) if hasattr(value, "_make") else tuple(parts)
    if isinstance(value, bytes | str | list | tuple) and value and draw(st.booleans()):
        start = draw(st.integers(0, len(value)))
        return value[start:] if draw(st.booleans()) else value[:start]
    if isinstance(value, bytes) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        return value[:at] + bytes([draw(st.integers(0, 255) | st.sampled_from(b"\r\n$+-:0"))]) + value[at + 1 :]
    return draw(garbage | text | uuid_or_not | st.binary(max_size=20) | st.sampled_from([2**63, -(2**63) - 1, 2**64]))


def compare(name: str, arguments: st.SearchStrategy[tuple[Any, ...]]) -> None:
    @patient
    @given(arguments)
    def run(args: tuple[Any, ...]) -> None:
        agree(name, *args)

    run()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_answer_alike(name: str) -> None:
    compare(name, SOUND[name])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_answer_alike_when_something_is_wrong(name: str) -> None:
    def one_of(args: tuple[Any, ...]) -> st.SearchStrategy[tuple[Any, ...]]:
        return st.integers(0, len(args) - 1).flatmap(
            lambda at: spoiled(args[at]).map(lambda bad: (*args[:at], bad, *args[at + 1 :]))
        )

    compare(name, SOUND[name].flatmap(one_of))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_answer_garbage_alike(name: str) -> None:
    arity = len(inspect.signature(getattr(_fastpath_py, name)).parameters)
    compare(name, st.tuples(*[garbage | text | uuid_or_not] * arity))


# -- what a caller may do that no strategy does


both = pytest.mark.parametrize("module", [NATIVE, _fastpath_py], ids=["c", "py"])


@both
def test_an_iterator_is_read_once(module: Any) -> None:
    row = (3, 17, bytes(16), "k", b"{}", 2, 7, 41, None, None)
    assert len(module.claims(iter([row, (*row[:4], memoryview(b"{}"), *row[5:])]), 9, "q")) == 2
    assert module.int8_array(iter([1, True])) == module.int8_array([1, 1])
    assert module.copy_rows(iter([NewJob(UUID(int=1), "k", b"")])) == module.copy_rows([NewJob(UUID(int=1), "k", b"")])


@both
def test_a_payload_that_is_neither_text_nor_bytes_is_passed_on(module: Any) -> None:
    row = (3, 17, bytes(16), "k", None, 2, 7, 41, None, None)
    assert module.claims([row], 9, "q")[0].payload is None


@both
def test_times_are_looked_up_by_place(module: Any) -> None:
    """Not by going through them, as a dict shows."""
    job = NewJob(UUID(int=1), "k", b"")
    assert module.copy_rows([job], {0: 5}) == module.copy_rows([job], [5])
    with pytest.raises(KeyError):
        module.copy_rows([job], {5: 0})


@both
def test_a_stop_may_be_any_number(module: Any) -> None:
    rest = tuple(NewJob(UUID(int=1), "k", b""))[3:]
    for stop, made in ((-(10**30), 0), (-1, 0), (10**30, 1)):
        assert len(module.task_jobs([(1,)], 0, stop, (int,), [UUID(int=1)], "k", rest, 64, 100)) == made


@both
def test_a_list_that_shrinks_meanwhile_is_an_error_and_no_crash(module: Any) -> None:
    """Another thread may do that whenever Python code runs; here a profiler does, which is surer."""
    calls, rest = [(2**63,)] * 1000, tuple(NewJob(UUID(int=1), "k", b""))[3:]

    def clear(frame: FrameType, event: str, arg: object) -> None:
        if frame.f_code.co_name == "check_json":
            calls.clear()

    before = sys.getprofile()
    sys.setprofile(clear)
    try:
        with pytest.raises(IndexError):
            module.task_jobs(calls, 0, 1000, (int,), [UUID(int=1)] * 1000, "k", rest, 64, 100)
    finally:
        sys.setprofile(before)
