"""Arguments of a task: which are taken, in which form they are stored, and the dedupe keys made of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest

from forge import InvalidJob

from .helpers import run
from .recorder import Recorder, call

if TYPE_CHECKING:
    from decimal import Decimal


@pytest.fixture
def app() -> Iterator[Recorder]:
    with Recorder() as app:
        yield app


def test_arguments_are_stored_in_one_form_however_they_were_passed(app: Recorder) -> None:
    @app.task
    def f(a: int, b: int = 2, *, c: int = 3) -> None: ...

    f.enqueue(1)
    f.enqueue(1, 5)
    f.enqueue(b=5, a=1)
    f.enqueue(1, c=7)
    assert app.payloads == [call(1), call(1, 5), call(1, 5), call(1, c=7)]
    for payload in app.payloads:
        f.fn(*payload["args"], **payload["kwargs"])


def test_star_arguments_are_taken(app: Recorder) -> None:
    @app.task
    def f(a: str, *rest: int, **more: str) -> None: ...

    f.enqueue("x", 1, 2, k="v")
    assert app.payloads == [call("x", 1, 2, k="v")]
    with pytest.raises(InvalidJob, match="parameter rest must be int, not str"):
        f.enqueue("x", 1, "2")  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="parameter more must be str, not int"):
        f.enqueue("x", k=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "missing a required argument: 'a'"),
        ((1,), {}, "missing a required argument: 'b'"),
        ((1, 2, 3, 4), {}, r"too many positional arguments \(4\); it takes \(a, b, c\)"),
        ((1, 2), {"d": 4}, "got an unexpected keyword argument 'd'"),
        ((1, 2), {"a": 4}, "multiple values for argument 'a'"),
        (("1", 2), {}, "parameter a must be int, not str"),
        ((1, None), {}, "parameter b must be int, not NoneType"),
        ((1, 2.0), {}, "parameter b must be int, not float"),
        ((1, 2, 7), {}, "parameter c must be str or None, not int"),
    ],
)
def test_arguments_that_do_not_fit_the_signature_are_refused(
    app: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    @app.task(name="tasks.f")
    def f(a: int, b: int, c: str | None = None) -> None: ...

    anything: Any = f
    with pytest.raises(InvalidJob, match=f"^tasks.f: {message}"):
        anything.enqueue(*args, **kwargs)
    with pytest.raises(InvalidJob, match=message):
        anything.enqueue_many([anything.call(*args, **kwargs)])
    assert app.stored == []


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (int, [1, True], ["1", 1.0, None]),
        (float, [1.5, 1], ["1", None]),
        (str, ["x"], [1, None, b"x"]),
        (bool, [True], [1, "true", None]),
        (None, [None], [0, ""]),
        (list, [[1], (1,)], ["x", {}, None]),
        (list[int], [[1], ["unchecked"]], ["x", {}]),
        (dict[str, int], [{"a": 1}], [[1], None]),
        (int | None, [1, None], ["x"]),
        (Optional[str], ["x", None], [1]),  # noqa: UP045 (the older spelling)
        (Annotated[int, "metres"], [1], ["x"]),
        (int | list[str], [1, ["x"]], ["x"]),
        ("int", [1], ["x"]),
        ("Decimal", ["whatever"], []),
        ("not even python(", ["whatever"], []),
        (Any, [1, "x", None], []),
        (int | Any, [1, "x"], []),
        (object, [1, "x"], []),
    ],
    ids=str,
)
def test_simple_annotations_are_checked_and_others_left_to_type_checkers(
    app: Recorder, annotation: Any, good: list[Any], bad: list[Any]
) -> None:
    def f(value): ...  # type: ignore[no-untyped-def]

    f.__annotations__ = {"value": annotation}
    task: Any = app.task(f)
    for value in good:
        task.enqueue(value)
        task.enqueue(value=value)
    for value in bad:
        for args, kwargs in (((value,), {}), ((), {"value": value})):
            with pytest.raises(InvalidJob, match="parameter value must be"):
                task.enqueue(*args, **kwargs)


def test_an_annotation_known_only_to_type_checkers_does_no_harm(app: Recorder) -> None:
    @app.task
    def pay(amount: Decimal, note: str) -> None: ...

    anything: Any = pay
    anything.enqueue("1.5", "x")
    with pytest.raises(InvalidJob, match="parameter note must be str"):
        anything.enqueue("1.5", 2)


def test_an_argument_that_is_not_json_is_refused(app: Recorder) -> None:
    @app.task
    def f(value: Any) -> None: ...

    with pytest.raises(InvalidJob, match=r"payload\.args\[0\] is of type set"):
        f.enqueue({1, 2})


def test_many_calls_are_tuples_or_typed_calls(app: Recorder) -> None:
    @app.task
    def f(a: int, b: str = "x", *, c: int = 0) -> None: ...

    f.enqueue_many([(1,), (2, "y"), f.call(3, c=4)])
    f.using(queue="bulk").enqueue_many((n,) for n in range(3))
    run(f.aenqueue_many([f.call(9)]))
    assert f.enqueue_many([]) == []
    assert app.payloads == [call(1), call(2, "y"), call(3, c=4), call(0), call(1), call(2), call(9)]
    assert [job.queue for job in app.stored] == ["default"] * 3 + ["bulk"] * 3 + ["default"]
    ids = [job.id for job in app.stored]
    assert ids == sorted(set(ids))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (1, r"item 1: must be a tuple of arguments or task.call\(…\), not int"),
        ({"a": 1}, "item 1: must be a tuple of arguments"),
        (("x",), "item 1: .*: parameter a must be int, not str"),
        ((), "item 1: .*: missing a required argument: 'a'"),
    ],
)
def test_one_bad_item_refuses_all_and_says_which(app: Recorder, item: Any, message: str) -> None:
    @app.task
    def f(a: int) -> None: ...

    with pytest.raises(InvalidJob, match=message):
        f.enqueue_many([(1,), item])
    assert app.stored == []


def test_an_id_names_one_job(app: Recorder) -> None:
    @app.task
    def f(a: int) -> None: ...

    id = "0198c0de-0000-7000-8000-000000000001"
    f.using(id=id).enqueue(1)
    f.using(id=id).enqueue_many([(1,)])
    assert [str(job.id) for job in app.stored] == [id, id]
    with pytest.raises(InvalidJob, match="id names one job, not 2"):
        f.using(id=id).enqueue_many([(1,), (2,)])


def test_dedupe_by_arguments_does_not_care_how_they_are_passed(app: Recorder) -> None:
    @app.task(dedupe=True, name="f")
    def f(a: int, b: dict[str, int], c: int = 3) -> None: ...

    f.enqueue(1, {"x": 1, "y": 2})
    f.enqueue(b={"y": 2, "x": 1}, a=1, c=3)
    f.enqueue(2, {})
    f.using(dedupe_key="mine").enqueue(1, {})
    same, as_well, other, mine = (job.dedupe_key for job in app.stored)
    assert same == as_well != other
    assert mine == "mine"
    assert same is not None
    assert same.startswith("f:")


def test_dedupe_by_pattern_and_by_function(app: Recorder) -> None:
    @app.task(dedupe="report:{user[id]}:{day}")
    def report(user: dict[str, int], day: str = "today") -> None: ...

    def by_day(n: int, day: str) -> str | None:
        return day if n else None

    @app.task(dedupe=by_day)
    def other(n: int, day: str) -> None: ...

    report.enqueue({"id": 7})
    other.enqueue(1, "monday")
    other.using(unique_for=60).enqueue_many([(0, "x"), (1, "y")])
    assert [(job.dedupe_key, job.unique_for) for job in app.stored] == [
        ("report:7:today", None),
        ("monday", None),
        (None, None),
        ("y", 60),
    ]


def test_a_key_made_by_a_function_is_checked(app: Recorder) -> None:
    @app.task(dedupe=lambda n: "")
    def f(n: int) -> None: ...

    with pytest.raises(InvalidJob, match="dedupe_key must have 1 to 1024 characters"):
        f.enqueue(1)


def test_unique_for_without_any_key_is_refused(app: Recorder) -> None:
    @app.task
    def f(n: int) -> None: ...

    with pytest.raises(InvalidJob, match="unique_for needs a dedupe_key"):
        f.using(unique_for=60)
