"""Whatever a handler returns or raises, its own job ends, its worker lives, and both storages take the ending."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID, uuid4

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge import Cancelled, Context, Dead, Done, Failed, Forge, Middleware, Snooze, Status, Throttled
from forge.codec import UNREADABLE
from forge.inline import execute
from forge.job import LONGEST_DELAY, Ending, NewJob, Outcome, Released, Written
from forge.job_messages import ending_of, reply_frame
from forge.storage import Storage
from forge.worker.outcomes import MAX_MESSAGE, MAX_TRACEBACK
from tests.storage.helpers import plain_job
from tests.worker.conftest import Drive
from tests.worker.test_inline import claim, raises, run


class CardDeclined(Dead):
    """The natural way to use outcomes."""


class Declined(Failed):
    def __init__(self, card: str) -> None:
        self.card = card


class Worded(Dead):
    message = "no such account"


class Both(Snooze, Dead):
    pass


class Mute:
    """Every word it says is another's end."""

    def __str__(self) -> str:
        raise SystemExit(1)

    def __repr__(self) -> str:
        raise KeyboardInterrupt


class MuteError(Exception):
    __str__ = __repr__ = Mute.__str__


class Hollow(Failed):
    @property
    def message(self) -> str:
        raise SystemExit(1)

    @message.setter
    def message(self, value: str) -> None:
        pass


class Liar:
    """Nothing about it can be asked."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise SystemExit(1)

    def __eq__(self, other: object) -> bool:
        raise SystemExit(1)

    __hash__ = None  # type: ignore[assignment]


class Number(float):
    def __float__(self) -> float:
        raise SystemExit(1)


def gone(outcome: Outcome, field: str) -> Outcome:
    delattr(outcome, field)
    return outcome


def cyclic() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


SECONDS = "a number of seconds, 0 or more"

ODD: list[tuple[Any, type[Outcome], str]] = [
    (Failed(404), Failed, "404"),  # type: ignore[arg-type]
    (Dead(404), Dead, "404"),  # type: ignore[arg-type]
    (Cancelled(404), Cancelled, "404"),  # type: ignore[arg-type]
    (Failed(1.5), Failed, "1.5"),  # type: ignore[arg-type]
    (Failed(["a"]), Failed, "['a']"),  # type: ignore[arg-type]
    (Failed(True), Failed, "True"),  # type: ignore[arg-type]
    (Failed(None), Failed, "failed"),  # type: ignore[arg-type]
    (Failed(""), Failed, "failed"),
    (Dead(b""), Dead, "dead"),  # type: ignore[arg-type]
    (Failed(b"x\xff"), Failed, "x\ufffd"),  # type: ignore[arg-type]
    (Failed(ValueError("no luck")), Failed, "ValueError: no luck"),  # type: ignore[arg-type]
    (Failed(10**5000), Failed, UNREADABLE),  # type: ignore[arg-type]  # Python itself refuses to print it
    (Failed("\ud800 \0"), Failed, "\\ud800 \\u0000"),
    (Failed("x" * 100_000), Failed, "x" * (MAX_MESSAGE - 1) + "…"),
    (Failed(Mute()), Failed, UNREADABLE),  # type: ignore[arg-type]
    (Failed(MuteError()), Failed, f"MuteError: {UNREADABLE}"),  # type: ignore[arg-type]
    (Hollow(), Failed, UNREADABLE),
    (gone(Failed("x"), "message"), Failed, "failed"),
    (CardDeclined("no funds"), Dead, "no funds"),
    (CardDeclined(), Dead, "CardDeclined"),
    (Declined("4711"), Failed, "Declined"),
    (Worded(), Dead, "no such account"),
    (Both(60), Snooze, ""),
    (Snooze(True), Failed, f"Snooze(True): seconds must be {SECONDS}"),
    (Snooze("abc"), Failed, f'Snooze("abc"): seconds must be {SECONDS}'),  # type: ignore[arg-type]
    (Snooze(None), Failed, f"Snooze(None): seconds must be {SECONDS}"),  # type: ignore[arg-type]
    (Snooze(math.inf), Failed, f"Snooze(inf): seconds must be {SECONDS}"),
    (Snooze(math.nan), Failed, f"Snooze(nan): seconds must be {SECONDS}"),
    (Snooze(-1), Failed, f"Snooze(-1): seconds must be {SECONDS}"),
    (Snooze(Number(5)), Failed, f"Snooze(5.0): seconds must be {SECONDS}"),
    (gone(Snooze(5), "seconds"), Failed, f"Snooze(?): seconds must be {SECONDS}"),
    (Throttled("abc"), Failed, f'Throttled("abc"): retry_after must be {SECONDS}, or None'),  # type: ignore[arg-type]
    (Throttled(-5), Failed, f"Throttled(-5): retry_after must be {SECONDS}, or None"),
    (Throttled([1]), Failed, f"Throttled([1]): retry_after must be {SECONDS}, or None"),  # type: ignore[arg-type]
    (
        Throttled("30", job_only=True),  # type: ignore[arg-type]
        Failed,
        f'Throttled("30"): retry_after must be {SECONDS}, or None',
    ),
    (Throttled(30, job_only="yes"), Failed, 'Throttled("yes"): job_only must be True or False'),  # type: ignore[arg-type]
    (Throttled(), Throttled, ""),
    (Written(), Done, ""),
    (Released(), Failed, "Released"),
    (Outcome("odd"), Failed, "Outcome: odd"),
]


@pytest.mark.parametrize("way", ["returned", "raised"])
@pytest.mark.parametrize("n", range(len(ODD)))
def test_an_odd_outcome_is_made_one_that_everybody_takes(n: int, way: str) -> None:
    outcome, kind, message = ODD[n]
    ending = run(raises(outcome) if way == "raised" else lambda: outcome)
    assert type(ending.outcome) is kind
    if message:
        assert ending.outcome.message == message  # type: ignore[attr-defined]
    assert_passes_on(ending)


def test_the_name_of_what_it_was_made_of_travels_with_it() -> None:
    for what, name in [(CardDeclined("x"), "CardDeclined"), (KeyError("x"), "KeyError"), (Failed("x"), None)]:
        ending = run(raises(what))
        assert ending_of(orjson.loads(reply_frame(ending, 0.1)), ending.claim).outcome.error_type == name


def test_a_delay_beyond_all_calendars_is_the_longest_there_is() -> None:
    ending = run(raises(Snooze(1e300)))
    assert isinstance(ending.outcome, Snooze) and ending.outcome.seconds == LONGEST_DELAY
    ending = run(raises(Snooze(10**400)))
    assert isinstance(ending.outcome, Failed)


@dataclass
class Odd:
    """A result of no use."""

    n: int


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda: 10**30, "integer of more than 64 bits"),
        (lambda: "\ud800", "lone surrogate"),
        (lambda: math.nan, "NaN"),
        (lambda: Odd(1), "dataclasses.asdict"),
        (Mute, "is of type"),
        (Liar, "SystemExit"),
    ],
)
@pytest.mark.parametrize("way", [lambda value: value, Done], ids=["bare", "done"])
def test_a_result_that_cannot_be_stored_is_the_end_of_the_job_in_words(
    way: Callable[[Any], Any], result: Callable[[], Any], words: str
) -> None:
    ending = run(lambda: way(result()))
    assert isinstance(ending.outcome, Dead) and words in ending.outcome.message
    assert_passes_on(ending)
    raised = run(raises(Done(result())))
    assert isinstance(raised.outcome, Dead) and words in raised.outcome.message


@pytest.mark.parametrize("make", [MuteError, cyclic, SystemExit, KeyboardInterrupt, RecursionError])
def test_an_exception_is_told_with_its_type_whatever_it_does_when_printed(make: Callable[[], BaseException]) -> None:
    error = make()
    ending = run(raises(error))
    assert isinstance(ending.outcome, Failed)
    assert ending.outcome.message.startswith(type(error).__name__)
    assert ending.traceback and "raise error" in ending.traceback
    assert_passes_on(ending)


def test_a_traceback_has_an_end() -> None:
    ending = run(raises(ValueError("x" * 3_000_000)))
    assert ending.traceback is not None
    assert len(ending.traceback) < MAX_TRACEBACK + 200
    assert ending.traceback.startswith("Traceback") and "characters left out" in ending.traceback


JOB = NewJob(UUID(int=9), "k", b"[1]")


@pytest.mark.parametrize(
    ("child", "words"),
    [
        (JOB._replace(id="x"), "id must be a UUID"),  # type: ignore[arg-type]
        (JOB._replace(payload=b"{"), "cannot be stored"),
        (JOB._replace(payload=b"[\n1]"), "one line"),
        (JOB._replace(payload={"x": 1}), "one line"),  # type: ignore[arg-type]
        (JOB._replace(kind="a,b"), "comma"),
        (JOB._replace(queue=7), "queue must be a str"),  # type: ignore[arg-type]
        (JOB._replace(priority=40_000), "priority must be a whole number"),
        (JOB._replace(timeout=10**30), "timeout must be a whole number"),
        (JOB._replace(max_attempts=True), "max_attempts must be a whole number"),
        (JOB._replace(delay=math.nan), "delay must be a number of seconds"),
        (JOB._replace(run_at=datetime(2024, 1, 1, tzinfo=UTC).replace(tzinfo=None)), "run_at must be a datetime with"),
        (JOB._replace(tags=("\0",)), "a tag must be text"),
        (JOB._replace(dedupe_key="\ud800"), "dedupe_key must be text"),
        (JOB._replace(on_conflict="explode"), "on_conflict must be one of"),  # type: ignore[arg-type]
        (JOB._replace(line="x"), "line must be a Line"),  # type: ignore[arg-type]
    ],
)
def test_a_follow_up_that_cannot_be_stored_fails_the_job_that_wanted_it(child: Any, words: str) -> None:
    def fn(ctx: Context) -> None:
        ctx.enqueue_many([JOB, child])

    ending = run(fn)
    assert isinstance(ending.outcome, Failed)
    assert ending.outcome.message.startswith("job 2 of 2 that it enqueued cannot be stored: ")
    assert words in ending.outcome.message
    assert ending.children == ()


def test_a_good_follow_up_is_passed_on() -> None:
    job = JOB._replace(run_at=datetime(2031, 1, 1, tzinfo=UTC), tags=("t",), dedupe_key="k", unique_for=5)

    def fn(ctx: Context) -> None:
        ctx.enqueue_many([job])

    ending = run(fn)
    assert ending.children == (job,)
    assert ending_of(orjson.loads(reply_frame(ending, 0.0)), ending.claim).children == (job,)


def test_a_hook_that_changes_the_outcome_cannot_make_it_odd() -> None:
    app = Forge("sqlite:///unused.db")

    class Spoil(Middleware):
        def after_job(self, ctx: Context, outcome: Any) -> None:  # noqa: ARG002
            outcome.message = 404

    app.add_middleware(Spoil())
    task: Any = app.task(name="k")(raises(Failed("x")))
    ending = execute(claim(), {"k": task._handler})
    assert isinstance(ending.outcome, Failed) and ending.outcome.message == "404"


def test_one_failure_that_is_raised_again_and_again_stays_as_it_is() -> None:
    always = Failed("no")

    def curve(attempt: int) -> float:
        raise SystemExit(1)

    for _ in range(2):
        ending = run(raises(always), backoff=curve)
        assert isinstance(ending.outcome, Failed)
        assert ending.outcome.message == "no (and its backoff failed: SystemExit: 1)"
    assert always.message == "no"


@pytest.mark.parametrize("n", range(6))
def test_any_word_of_progress_is_text(n: int) -> None:
    message: Any = [404, b"x", "\ud800", ValueError("x"), Mute(), "x" * 5000][n]
    said: list[Any] = []

    class Link:
        def progress(self, *words: Any) -> None:
            said.append(words[2])

    app = Forge("sqlite:///unused.db")
    Context(claim(), app, Link()).progress(5, message)  # type: ignore[arg-type]
    assert isinstance(said[0], str) and len(said[0]) <= 1000 and said[0].encode()


@pytest.mark.parametrize("worker", ["process", "threads", "async"])
def test_a_worker_lives_through_all_of_them(drive: Drive, worker: str) -> None:
    app = Forge("sqlite:///unused.db")
    values = [outcome for outcome, _, _ in ODD] + [Liar(), Mute(), MuteError(), SystemExit(1), {1: Mute()}]

    @app.handler("give")
    def give(ctx: Context, payload: Any) -> Any:
        value = values[payload]
        if issubclass(type(value), BaseException):
            raise value
        return value

    driven = drive(app, worker=worker, concurrency=1)
    for n in range(len(values)):
        reply = driven.reply(driven.job("give", n))
        ending_of(reply, claim())
    assert driven.reply(driven.job("give", len(values) - 1))["status"] == "dead"


# -- anything at all -----------------------------------------------------------------------------------------------


def hostile(name: str) -> Any:
    def method(*_: Any) -> NoReturn:
        raise SystemExit(name)

    return method


_DUNDERS = ["__str__", "__repr__", "__eq__", "__hash__", "__float__", "__bool__", "__len__", "__iter__", "__lt__",
            "__getattribute__", "__getattr__", "__reduce__", "__sizeof__", "__int__", "__index__"]  # fmt: skip
_BASES = [object, Failed, Dead, Done, Snooze, Throttled, Cancelled, Outcome, Exception, BaseException, str, int, float,
          dict, list, tuple, bytes, ValueError, ExceptionGroup]  # fmt: skip


@st.composite
def hostile_objects(draw: st.DrawFn) -> Any:
    base = draw(st.sampled_from(_BASES))
    names = draw(st.sets(st.sampled_from(_DUNDERS), max_size=4))
    kind = type("Hostile", (base,), {name: hostile(name) for name in names})
    for args in ((), (5,), ("x", [ValueError("y")])):
        try:
            return kind(*args)
        except BaseException:  # noqa: BLE001 (not with these)
            continue
    return kind


class Box:
    """Keeps what is in it from whoever would look at it before its time."""

    def __init__(self, raises: bool, value: Any) -> None:
        self.raises, self.value = raises, value


def values() -> st.SearchStrategy[Any]:
    plain = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(st.characters()),
        st.text(st.characters(categories=["Cs", "Cc", "L"])),
        st.binary(),
        st.builds(Decimal),
        st.datetimes(),
        st.uuids(),
        hostile_objects(),
    )
    nested = st.recursive(plain, lambda each: st.lists(each) | st.dictionaries(st.text() | st.integers(), each))
    return st.one_of(
        nested,
        st.sampled_from([Failed, Dead, Done, Snooze, Throttled, Cancelled, Released, Written, Outcome]),
        *(st.builds(kind, nested) for kind in (Failed, Dead, Done, Snooze, Throttled, Cancelled, CardDeclined)),
        st.builds(Throttled, nested, nested),
        st.builds(Released, nested, nested, nested),
        st.builds(ValueError, nested),
    )


def assert_passes_on(ending: Ending) -> Ending:
    """What the master reads is what the worker meant."""
    line = reply_frame(ending, 0.5)
    assert line.count(b"\n") == 1
    got = ending_of(orjson.loads(line), ending.claim)
    assert type(got.outcome) is type(ending.outcome)
    for field in ("message", "retry_after", "job_only", "seconds", "error_type"):
        assert getattr(got.outcome, field, None) == getattr(ending.outcome, field, None)
    assert got[2:] == ending[2:]
    return got


@given(given=st.lists(st.builds(Box, st.booleans(), values()), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_handlers_return_or_raise_their_neighbour_is_done(storage: Storage, given: list[Box]) -> None:
    app = Forge("sqlite:///unused.db")

    @app.handler("k")
    def give(ctx: Context, payload: Any) -> Any:
        if payload is None:
            return None
        box = given[payload]
        if box.raises and issubclass(type(box.value), BaseException):
            raise box.value
        return box.value

    queue = uuid4().hex  # of its own: one that cools down since the last example gives nothing away
    who = storage.register("ada", [queue], "north", 4711)
    jobs = [plain_job(queue, kind="k", payload=b"null", keep_result=60)]
    jobs += [plain_job(queue, kind="k", payload=b"%d" % n, keep_result=60) for n in range(len(given))]
    storage.enqueue(jobs)
    endings = [assert_passes_on(execute(each, app.tasks)) for each in storage.claim(who, queue, 100)]
    assert len(endings) == len(jobs)
    assert storage.finalize(endings) == []
    found = storage.get([job.id for job in jobs])
    assert found[jobs[0].id].status is Status.DONE
    assert not any(job.status is Status.IN_PROGRESS for job in found.values())
