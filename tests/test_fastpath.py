"""One suite over both implementations of the fast path. `test_fastpath_twins.py` has them against each other."""

from __future__ import annotations

import enum
import importlib
import inspect
import math
import os
import re
import struct
import subprocess
import sys
from array import array
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, SafeUUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge import _fastpath_py, fastpath
from forge.errors import InvalidJob
from forge.job import Claim, Done, Ending, Failed, Line, NewJob

# `make setup` builds the extension or fails, so a missing one is an error here and not a reason to skip.
NATIVE = importlib.import_module("forge._fastpath")
BOTH = [NATIVE, _fastpath_py]
FORGE = Path(_fastpath_py.__file__).parent
# The files of the native path, in the order in which its front door includes them.
PARTS = re.findall(r'^include "_native/(\w+)\.pxi"$', (FORGE / "_fastpath.pyx").read_text("utf-8"), re.MULTILINE)
# A busy machine must not fail a property.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
ID = UUID("0198c0de-0000-7abc-8def-0123456789ab")


class Color(enum.StrEnum):
    RED = "red"


@pytest.fixture(params=BOTH, ids=["c", "py"])
def impl(request: pytest.FixtureRequest) -> Any:
    return request.param


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


# -- the two and their chooser


def functions(path: Path) -> list[str]:
    """Those that callers may call, as the file has them; none where there is no such file."""
    return re.findall(r"^def ([a-z]\w*)\(", path.read_text("utf-8") if path.exists() else "", re.MULTILINE)


def native_functions() -> list[str]:
    return [name for part in PARTS for name in functions(FORGE / "_native" / f"{part}.pxi")]


def test_every_part_is_included() -> None:
    assert sorted(PARTS) == sorted(path.stem for path in (FORGE / "_native").iterdir())


def test_each_part_has_its_twin_with_the_same_functions_in_the_same_order() -> None:
    for part in PARTS:
        twin = [name for name in functions(FORGE / "_reference" / f"{part}.py") if name in _fastpath_py.__all__]
        assert functions(FORGE / "_native" / f"{part}.pxi") == twin, part
    assert {path.stem for path in (FORGE / "_reference").glob("[!_]*.py")} <= set(PARTS)


def test_both_front_doors_have_every_function() -> None:
    assert sorted(native_functions()) == _fastpath_py.__all__
    assert [name for name in vars(NATIVE) if name in _fastpath_py.__all__] == native_functions()


def test_both_take_the_same_arguments() -> None:
    for name in _fastpath_py.__all__:
        python = inspect.signature(getattr(_fastpath_py, name))
        native = inspect.signature(getattr(NATIVE, name))
        assert list(native.parameters) == list(python.parameters), name


def chosen(value: str | None, prepare: str = "") -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "FORGE_IMPL"} | ({} if value is None else {"FORGE_IMPL": value})
    code = f"{prepare}\nimport forge.fastpath as f; print(f.IMPL, f._impl.__name__)"
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


MISSING = "import sys; sys.modules['forge._fastpath'] = None"


@pytest.mark.parametrize(
    ("value", "prepare", "answer"),
    [
        (None, "", "c forge._fastpath"),
        ("c", "", "c forge._fastpath"),
        ("py", "", "py forge._fastpath_py"),
        (None, MISSING, "py forge._fastpath_py"),
        ("", MISSING, "py forge._fastpath_py"),
    ],
)
def test_the_chooser_obeys_forge_impl(value: str | None, prepare: str, answer: str) -> None:
    assert chosen(value, prepare).stdout.strip() == answer


@pytest.mark.parametrize(
    ("value", "prepare", "words"),
    [
        ("c", MISSING, "FORGE_IMPL=c, but forge's extension cannot be loaded"),
        ("rust", "", "FORGE_IMPL is 'rust'; set it to c or py"),
    ],
)
def test_the_chooser_refuses_what_it_cannot_give(value: str, prepare: str, words: str) -> None:
    run = chosen(value, prepare)
    assert run.returncode != 0
    assert f"ConfigError: {words}" in run.stderr


# -- check_json


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -(2**63),
        2**64 - 1,
        1.5,
        -0.0,
        "",
        "text",
        "é",
        "ÿ\x01",
        "漢字",
        "🔥",
        [],
        {},
        (),
        (1, [2, (3,)]),
        {"a": {"b": [1, None, "x"]}, "ü": 1},
        nested(64),
    ],
)
def test_json_values_are_accepted(impl: Any, value: Any) -> None:
    assert impl.check_json(value, 64, 1000) is True


@pytest.mark.parametrize(
    "value",
    [
        2**64,
        -(2**63) - 1,
        math.nan,
        math.inf,
        -math.inf,
        "a\0b",
        "漢\0",
        "🔥\0",
        "\ud800",
        "漢\udfff",
        "🔥\udabc",
        {"\0": 1},
        {"\ud800": 1},
        {1: 1},
        {Color.RED: 1},
        {"a": math.nan},
        [[math.nan]],
        ({"x": b""},),
        Color.RED,
        b"bytes",
        {1, 2},
        ID,
        object(),
        nested(65),
        "x" * 999,
        ["xxxxxxxxxx"] * 100,
        dict.fromkeys(map(str, range(1000)), 1),
    ],
)
def test_other_values_are_passed_on_for_a_closer_look(impl: Any, value: Any) -> None:
    assert impl.check_json(value, 64, 1000) is False


def test_a_value_that_refers_to_itself_many_times_over_ends_early(impl: Any) -> None:
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    assert impl.check_json(value, 64, 1_000_000) is False
    circle: list[Any] = []
    circle.append(circle)
    assert impl.check_json(circle, 64, 1_000_000) is False


# -- UUIDv7


def test_uuids_have_version_variant_time_and_counter(impl: Any) -> None:
    made = impl.uuids(1_763_257_000_123 << 12 | 0xFFE, bytes([0xFF] * 8 + [0] * 8 + list(range(8))))
    assert made == [
        UUID("019a8a4e-a0bb-7ffe-bfff-ffffffffffff"),
        UUID("019a8a4e-a0bb-7fff-8000-000000000000"),
        UUID("019a8a4e-a0bc-7000-8001-020304050607"),  # the counter was full and carried into the milliseconds
    ]
    for each in made:
        assert (type(each), each.version, each.variant) == (UUID, 7, UUID(int=1 << 63).variant)
        assert each.is_safe is SafeUUID.unknown
        assert UUID(str(each)) == each
        assert hash(UUID(str(each))) == hash(each)


def test_claims_are_made_of_rows_field_by_field(impl: Any) -> None:
    row = (3, 1_763_257_000_000_001, ID.bytes, "mail.send", '{"to":"é"}', 2, 7, 41, None, "key")
    kept = (*row[:8], 604_800, None)
    first, second = impl.claims([row, kept], 5 << 32 | 9, "letters")
    payload = '{"to":"é"}'.encode()
    fields = (3, 1_763_257_000_000_001, ID, 5 << 32 | 9, "letters", "mail.send", payload, 2, 7, 41, False, True)
    assert first == Claim(*fields)
    assert (type(first), type(first.id), str(first.id)) == (Claim, UUID, str(ID))
    assert second == first._replace(keep_result=True, keyed=False)
    assert impl.claims([], 1, "q") == []


def test_claims_take_payloads_that_are_bytes_already(impl: Any) -> None:
    row = (3, 17, ID.bytes, "mail.send", b'{"to":1}', 2, 7, 41, None, None)
    assert impl.claims([row], 9, "letters")[0].payload == b'{"to":1}'


def ending(number: int, **changes: Any) -> Ending:
    """A plain one, but for `changes` of it or of its claim."""
    claim = Claim(0, None, UUID(int=number), 70 + number, "q", "k", b"{}", 1, 5, 60, False, False)
    of_claim = {name: value for name, value in changes.items() if name in Claim._fields}
    rest = {name: value for name, value in changes.items() if name not in of_claim}
    return Ending(claim._replace(**of_claim), Done())._replace(**rest)


def test_plain_endings_are_packed_with_their_queues(impl: Any) -> None:
    endings = [ending(3), ending(4, queue="p"), ending(1 << 127, token=7)]
    ids, tokens, queues, pods = impl.plain_endings(endings, True)
    assert ids == impl.uuid_array([UUID(int=3), UUID(int=4), UUID(int=1 << 127)])
    assert tokens == impl.int8_array([73, 74, 7])
    assert (queues, pods) == ({"q", "p"}, {0: 3})
    flat = b"".join(e.claim.id.bytes for e in endings)
    assert impl.plain_endings(endings, False) == (flat, b"[73,74,7]", queues, pods)
    assert impl.plain_endings([], True) == (impl.uuid_array([]), impl.int8_array([]), set(), {})
    assert impl.plain_endings([], False) == (b"", b"[]", set(), {})


@pytest.mark.parametrize(
    "seconds", [0.0, -0.0, 0.5, 5e-7, 1.5e-6, 2.5e-6, 0.0000009999999, 1.2345675, 999_999.9999996, 1e6, -1.0, math.nan]
)
def test_seconds_are_written_as_python_does(impl: Any, seconds: float) -> None:
    expected = b'{"id":"%b","status":"ok","took":%b}\n' % (ID.hex.encode(), f"{seconds:.6f}".encode())
    assert impl.done_line(ID, seconds) == expected


def test_plain_endings_are_counted_by_pod(impl: Any) -> None:
    tokens = [5 << 32 | 1, 5 << 32 | 2, 1, 5 << 32, -1, 7, 2**63 - 1]
    endings = [ending(number, token=token) for number, token in enumerate(tokens)]
    assert impl.plain_endings(endings, True)[3] == {5: 3, 0: 2, -1: 1, 2**31 - 1: 1}


@pytest.mark.parametrize(
    "odd",
    [
        {"outcome": Failed("no")},
        {"outcome": type("Better", (Done,), {})()},
        {"result": b"1"},
        {"children": (NewJob(ID, "k", b"{}"),)},
        {"keyed": True},
        {"id": UUID(int=3)},
    ],
    ids=lambda odd: next(iter(odd)),
)
def test_an_ending_that_is_not_plain_or_there_twice_is_left_to_others(impl: Any, odd: dict[str, Any]) -> None:
    for arrays in (True, False):
        assert impl.plain_endings([ending(3), ending(4)], arrays) is not None
        assert impl.plain_endings([ending(3), ending(4, **odd)], arrays) is None


def test_endings_are_packed_in_the_order_of_their_ids(impl: Any) -> None:
    """Two transactions must lock rows in one order."""
    endings = [ending(number) for number in (9, 3, 1 << 60, 4, 200, 5)]
    for arrays in (True, False):
        assert impl.plain_endings(endings, arrays) == impl.plain_endings(
            sorted(endings, key=lambda each: each.claim.id), arrays
        )


def test_jobs_of_calls_end_before_the_first_that_is_different(impl: Any) -> None:
    calls: list[Any] = [(1, "a"), (2, "b"), (3, "ü"), (4, 5), (6, "c")]
    ids = [UUID(int=n) for n in range(5)]
    rest = tuple(NewJob(ID, "k", b"")._replace(queue="mail", priority=3))[3:]
    made = impl.task_jobs(calls, 1, 99, (int, str), ids, "tasks.f", rest, 64, 1000)
    assert made == [
        NewJob(ids[1], "tasks.f", b'{"args":[2,"b"],"kwargs":{}}', "mail", 3),
        NewJob(ids[2], "tasks.f", '{"args":[3,"ü"],"kwargs":{}}'.encode(), "mail", 3),
    ]
    assert all(type(job) is NewJob for job in made)
    assert len(impl.task_jobs(calls, 0, 1, (int, str), ids, "k", rest, 64, 1000)) == 1


@pytest.mark.parametrize(
    "odd", [(1, "\0"), (1, "\ud800"), (1, "x" * 1000), (1,), (1, "a", 2), [1, "a"], (True, "a"), None]
)
def test_a_call_that_may_not_be_stored_is_no_job(impl: Any, odd: Any) -> None:
    rest = tuple(NewJob(ID, "k", b""))[3:]
    assert impl.task_jobs([odd], 0, 1, (int, str), [ID], "k", rest, 64, 1000) == []


def test_a_survey_tells_of_keys_and_times(impl: Any) -> None:
    plain = NewJob(ID, "k", b"{}")
    assert impl.survey([plain, plain]) == (False, False, False)
    assert impl.survey([plain, plain._replace(dedupe_key="x")]) == (True, False, False)
    assert impl.survey([plain._replace(delay=0.5), plain]) == (False, True, False)
    assert impl.survey([plain._replace(run_at=datetime(2030, 1, 1, tzinfo=UTC)), plain]) == (False, True, False)
    assert impl.survey([plain, plain._replace(line=Line("||acme"))]) == (False, False, True)
    assert impl.survey([]) == (False, False, False)


def test_uuids_needs_whole_randomness(impl: Any) -> None:
    assert impl.uuids(1, b"") == []
    with pytest.raises(ValueError, match="8 random bytes"):
        impl.uuids(1, b"1234567")


# -- the curves


@pytest.mark.parametrize(
    ("curve", "n", "base", "cap", "r", "seconds"),
    [
        ("exponential", 0, 60.0, 1800.0, 0.5, 60.0),
        ("exponential", 1, 60.0, 1800.0, 0.5, 120.0),
        ("exponential", 4, 60.0, 1800.0, 0.5, 960.0),
        ("exponential", 5, 60.0, 1800.0, 0.5, 1800.0),
        ("exponential", 31, 1.0, 1e99, 0.5, 2.0**30),
        ("exponential", 10**30, 1.0, 1e99, 0.5, 2.0**30),
        ("exponential", -5, 60.0, 1800.0, 0.5, 60.0),
        ("decorrelated", 1, 1.0, 60.0, 0.0, 1.0),
        ("decorrelated", 1, 1.0, 60.0, 0.5, 2.0),
        ("decorrelated", 2, 1.0, 60.0, 0.5, 5.0),
        ("decorrelated", 4, 1.0, 60.0, 0.5, 30.5),
        ("decorrelated", 10**30, 1.0, 1e99, 0.5, 1 + (3.0**30 - 1) / 2),
        ("decorrelated", 3, 100.0, 60.0, 0.5, 60.0),
        ("faktory", 1, 1.0, 60.0, 0.0, 15.0),
        ("faktory", 1, 1.0, 60.0, 0.9999, 44.0),
        ("faktory", 3, 1.0, 60.0, 0.5, 16.0 + 15 + 15 * 3),
        ("faktory", 25, 1.0, 60.0, 0.0, 331_791.0),
        ("faktory", 10**30, 1.0, 60.0, 0.0, 1e8 + 15),
        ("faktory", -1, 1.0, 60.0, 0.0, 15.0),
        ("fixed", 7, 90.0, 60.0, 0.5, 90.0),
        ("none", 7, 90.0, 60.0, 0.5, 0.0),
    ],
)
def test_the_curves_give_these_seconds(
    impl: Any, curve: str, n: int, base: float, cap: float, r: float, seconds: float
) -> None:
    found = impl.delay(curve, n, base, cap, r)
    assert found == seconds
    assert type(found) is float


def test_a_curve_that_is_not_known_is_an_error(impl: Any) -> None:
    with pytest.raises(ValueError, match="no curve 'cubic'"):
        impl.delay("cubic", 1, 1.0, 60.0, 0.5)


@patient
@given(st.integers(-5, 40), st.floats(1, 86400), st.floats(1, 86400), st.floats(0, 1, exclude_max=True))
def test_no_delay_is_past_its_cap_or_under_its_base(n: int, base: float, cap: float, r: float) -> None:
    for each in BOTH:
        assert each.delay("exponential", n, base, cap, r) <= cap
        assert min(base, cap) <= each.delay("decorrelated", n, base, cap, r) <= cap


# -- rows and arrays


def job(**changes: Any) -> NewJob:
    return NewJob(ID, "mail.send", b'{"to":"ada"}', "mail")._replace(**changes)


def test_a_row_is_laid_out_as_postgres_wants_it(impl: Any) -> None:
    row = impl.copy_rows([job(priority=-2, max_attempts=7, timeout=70_000, keep_result=3600, tags=("x", "é"))], [-5])
    assert row == b"".join(
        [
            struct.pack(">h", 10),
            struct.pack(">i", 16) + ID.bytes,
            struct.pack(">i", 4) + b"mail",
            struct.pack(">i", 9) + b"mail.send",
            struct.pack(">i", 12) + b'{"to":"ada"}',
            struct.pack(">ih", 2, -2),
            struct.pack(">ih", 2, 7),
            struct.pack(">ii", 4, 70_000),
            struct.pack(">ii", 4, 3600),
            struct.pack(">iiiiiii", 31, 1, 0, 25, 2, 1, 1) + b"x" + struct.pack(">i", 2) + "é".encode(),
            struct.pack(">iq", 8, -5),
        ]
    )


def test_absent_values_are_null(impl: Any) -> None:
    row = impl.copy_rows([job()])
    assert row.startswith(struct.pack(">h", 9))
    assert row.endswith(struct.pack(">ii", 4, 600) + b"\xff" * 8)
    assert impl.copy_rows([]) == b""


def test_postgres_reads_the_rows_back(impl: Any, pg_server: str) -> None:
    jobs = [
        job(),
        job(id=UUID(int=2**128 - 1), queue="q", kind="κ", payload=b"[1]", priority=-(2**15), max_attempts=2**15 - 1),
        job(id=UUID(int=0), payload=b'"' + b"x" * 10_000 + b'"', timeout=2**31 - 1, keep_result=0, tags=("a", "🔥")),
    ]
    with psycopg.connect(pg_server) as conn:
        conn.execute(
            "create temp table t (id uuid, queue text, kind text, payload json, priority int2, max_attempts int2,"
            " timeout int4, keep_result int4, tags text[], run_at timestamptz)"
        )
        with conn.cursor() as cursor, cursor.copy("copy t from stdin (format binary)") as copy:
            copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8) + impl.copy_rows(jobs, [0, 1, -1]) + b"\xff\xff")
        rows = conn.execute(
            "select id, queue, kind, payload::text, priority, max_attempts, timeout, keep_result, coalesce(tags, '{}'),"
            " (extract(epoch from run_at) * 1000000)::int8 - 946684800000000 from t"
        ).fetchall()
    assert rows == [
        (
            j.id,
            j.queue,
            j.kind,
            j.payload.decode(),
            j.priority,
            j.max_attempts,
            j.timeout,
            j.keep_result,
            list(j.tags),
            at,
        )
        for j, at in zip(jobs, [0, 1, -1], strict=True)
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"priority": 2**15}, "priority is 32768; the database holds -32768 to 32767"),
        ({"max_attempts": -(2**15) - 1}, "max_attempts is -32769"),
        ({"timeout": 2**31}, "timeout is 2147483648"),
        ({"keep_result": 2**70}, "keep_result is 1180591620717411303424"),
    ],
)
def test_a_number_too_large_for_its_column_is_refused(impl: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        impl.copy_rows([job(), job(**changes)])


def test_every_job_needs_a_time_when_one_has(impl: Any) -> None:
    with pytest.raises(ValueError, match="as many run_ats"):
        impl.copy_rows([job(), job()], [1])


@pytest.mark.parametrize(
    ("name", "type_name", "values"),
    [
        ("uuid_array", "uuid[]", [ID, UUID(int=0), UUID(int=2**128 - 1)]),
        ("uuid_array", "uuid[]", []),
        ("int8_array", "int8[]", [0, -1, 2**63 - 1, -(2**63), 256]),
        ("int8_array", "int8[]", []),
        ("text_array", "text[]", ["", "a", "é漢🔥", None, 'quote"{}\\,', "NULL"]),
        ("text_array", "text[]", ["no null"]),
        ("text_array", "text[]", []),
    ],
)
def test_postgres_reads_the_arrays_back(
    impl: Any, pg_server: str, name: str, type_name: str, values: Sequence[Any]
) -> None:
    encode: Callable[[Sequence[Any]], bytes] = getattr(impl, name)
    packed = encode(values)
    assert encode(tuple(values)) == packed
    head = struct.pack(">hi", 1, len(packed))
    with psycopg.connect(pg_server) as conn:
        conn.execute(f"create temp table t (found {type_name})")
        with conn.cursor() as cursor, cursor.copy("copy t from stdin (format binary)") as copy:
            copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8) + head + packed + b"\xff\xff")
        row = conn.execute("select found from t").fetchone()
    assert row == (list(values),)


def test_text_may_be_utf8_already(impl: Any) -> None:
    assert impl.text_array(["é", "b", None]) == impl.text_array(["é".encode(), b"b", None])


# -- times


def new_times() -> array[int]:
    return array("q", bytes(16 * fastpath.BUCKETS))


def filled(times: array[int]) -> list[int]:
    """Where something is counted."""
    return [i for i, n in enumerate(times) for _ in range(n)]


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(-1.0, 0), (0.0, 0), (1e-5, 0), (1.0001e-5, 1), (2e-5, 4), (2.0001e-5, 5), (1e9, 143), (math.inf, 143)],
)
def test_a_job_is_counted_by_its_time_and_by_how_long_it_was_due(impl: Any, seconds: float, bucket: int) -> None:
    times = new_times()
    assert impl.timed(times, seconds, None, 1.0, 5.0) is None, "it is not known since when it was due"
    assert impl.timed(times, seconds, 1_000_000, 1.0, None) is None, "nor how the clocks stand"
    assert filled(times) == [bucket, bucket]
    impl.timed(times, 0.0, 0, 0.0, seconds)
    assert filled(times)[-1] == fastpath.BUCKETS + bucket


@patient
@given(st.lists(st.floats(0, 1e6), max_size=20))
def test_every_time_is_in_the_bucket_whose_bounds_it_lies_between(took: list[float]) -> None:
    for module in BOTH:
        for each in took:
            times = new_times()
            module.timed(times, each, None, 0.0, None)
            (at,) = filled(times)
            assert at == 0 or fastpath.BOUNDS[at - 1] < each
            assert at == fastpath.BUCKETS - 1 or each <= fastpath.BOUNDS[at]


def test_what_is_done_is_counted_as_it_is_read(impl: Any) -> None:
    claims = [Claim(0, 1000 * n, UUID(int=n), 9, "q", "k", b"{}", 1, 5, 600, False, False) for n in range(3)]
    lines = b"".join(impl.done_line(claim.id, 0.5) for claim in claims)
    times, again = new_times(), new_times()
    found = impl.answers(lines, {claim.id.hex: (claim, 2.0) for claim in claims[:2]}, Done(), times, 8.0)
    assert len(found[0]) == 2
    for claim in claims[:2]:
        impl.timed(again, 0.5, claim.run_at, 2.0, 8.0)
    assert times == again
    assert sum(times) == 4, "the third was not in hand"
