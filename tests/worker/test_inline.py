"""What running one job means, ending by ending, and the loop that runs them all."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn
from uuid import UUID

import orjson
import pytest

from forge import Backoff, Cancelled, Dead, Done, Failed, Forge, Snooze, Status, Throttled
from forge.app import Handler
from forge.delays import UNKNOWN_KIND_PAUSE
from forge.inline import Context, drain, execute
from forge.job import Claim, Ending, Released

ID = UUID("0198c0de-0000-7000-8000-000000000007")


def claim(kind: str = "k", payload: Any = None, **changes: Any) -> Claim:
    data = orjson.dumps({"args": [], "kwargs": {}} if payload is None else payload)
    fields: dict[str, Any] = {
        "priority": 3,
        "run_at": 0,
        "id": ID,
        "token": 1 << 32 | 5,
        "queue": "mail",
        "kind": kind,
        "payload": data,
        "attempt": 2,
        "max_attempts": 4,
        "timeout": 60,
        "keep_result": True,
        "keyed": False,
    }
    return Claim(**(fields | changes))


def run(fn: Callable[..., Any], payload: Any = None, *, backoff: Any = None, **changes: Any) -> Ending:
    """One job of a task made of `fn`."""
    app = Forge("sqlite:///unused.db")
    task = app.task(name="k", backoff=backoff)(fn)
    return execute(claim(payload=payload, **changes), {"k": task._handler})


def raises(error: BaseException | type[BaseException]) -> Callable[[], NoReturn]:
    def fn() -> NoReturn:
        raise error

    return fn


def test_a_returned_value_is_the_result() -> None:
    ending = run(lambda a, b, *, unit: f"{a + b} {unit}", {"args": [2, 3], "kwargs": {"unit": "cm"}})
    assert isinstance(ending.outcome, Done)
    assert (ending.result, ending.delay, ending.traceback) == (b'"5 cm"', 0.0, None)


def test_an_async_function_is_run_to_its_end() -> None:
    async def fn() -> list[int]:
        await asyncio.sleep(0)
        return [1, 2]

    assert run(fn).result == b"[1,2]"


def test_a_result_nobody_keeps_is_not_encoded() -> None:
    ending = run(lambda: object(), keep_result=False)
    assert isinstance(ending.outcome, Done)
    assert ending.result is None


def test_a_result_that_is_not_json_is_the_end_of_the_job_and_it_says_so() -> None:
    ending = run(lambda: {"when": {1, 2}})
    assert isinstance(ending.outcome, Dead)
    assert ending.outcome.message.startswith(
        "its work was done, but its result cannot be stored: result.when is of type"
    )


@pytest.mark.parametrize(
    "outcome", [Done(5), Failed("no"), Dead("never"), Cancelled("stopped"), Throttled(7.5), Snooze(9)], ids=repr
)
@pytest.mark.parametrize("way", ["returned", "raised"])
def test_an_outcome_counts_whether_it_is_returned_or_raised(outcome: Any, way: str) -> None:
    ending = run(raises(outcome) if way == "raised" else lambda: outcome)
    assert ending.outcome is outcome
    assert (ending.delay < 0) == isinstance(outcome, Failed)
    assert ending.result == (b"5" if isinstance(outcome, Done) else None)


def test_the_bare_class_of_an_outcome_counts_too() -> None:
    assert isinstance(run(lambda: Dead).outcome, Dead)
    assert isinstance(run(raises(Cancelled)).outcome, Cancelled)
    ending = run(lambda: Snooze)  # for how long?
    assert isinstance(ending.outcome, Failed)
    assert ending.outcome.message.startswith("TypeError: ")


def test_an_exception_fails_the_job_with_type_message_and_traceback() -> None:
    ending = run(raises(ValueError("no luck")))
    assert isinstance(ending.outcome, Failed)
    assert ending.outcome.message == "ValueError: no luck"
    assert ending.traceback is not None
    assert ending.traceback.startswith("Traceback (most recent call last):\n")
    assert ending.traceback.endswith("ValueError: no luck\n")
    assert "inline.py" not in ending.traceback.replace("test_inline.py", ""), "frames of forge's own are no help"


def test_the_traceback_has_the_whole_chain_of_causes() -> None:
    def fn() -> None:
        try:
            try:
                raise KeyError("root")
            except KeyError as e:
                raise OSError("middle") from e
        except OSError as e:
            raise RuntimeError("top") from e

    text = run(fn).traceback
    assert text is not None
    assert text.index("KeyError: 'root'") < text.index("OSError: middle") < text.index("RuntimeError: top")


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit(), asyncio.CancelledError()], ids=repr
)
def test_whatever_leaves_the_handler_the_job_is_finalized(error: BaseException) -> None:
    ending = run(raises(error))
    assert isinstance(ending.outcome, Failed)
    assert ending.outcome.message.startswith(type(error).__name__)
    assert ending.outcome.__cause__ is error


def test_exit_called_by_the_handler_is_a_failure() -> None:
    ending = run(lambda: sys.exit("bye"))
    assert isinstance(ending.outcome, Failed)
    assert ending.outcome.message == "SystemExit: bye"


def test_an_exception_that_cannot_be_printed_still_fails_the_job() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("mute")

    ending = run(raises(Mute()))
    assert isinstance(ending.outcome, Failed)
    assert ending.outcome.message == "Mute: (its message cannot be read)"


def test_a_message_with_nul_and_surrogates_is_kept_escaped() -> None:
    ending = run(raises(ValueError("a\0b\ud800")))
    assert isinstance(ending.outcome, Failed)
    assert ending.outcome.message == "ValueError: a\\u0000b\\ud800"
    assert ending.traceback is not None
    assert "\0" not in ending.traceback


def test_arguments_that_do_not_fit_the_function_fail_the_job() -> None:
    ending = run(lambda a: a, {"args": [], "kwargs": {}})
    assert isinstance(ending.outcome, Failed)
    assert ending.outcome.message.startswith("TypeError: ")


def test_a_payload_of_another_shape_fails_the_job() -> None:
    ending = run(lambda: None, ["not", "a", "call"])
    assert isinstance(ending.outcome, Failed)


def test_an_async_handler_that_takes_too_long_fails_with_its_timeout() -> None:
    async def fn() -> None:
        await asyncio.Event().wait()

    ending = run(fn, timeout=0)
    assert isinstance(ending.outcome, Failed)
    assert ending.outcome.message == "timeout after 0 s"


def test_a_timeout_of_the_handlers_own_is_an_error_like_any_other() -> None:
    async def fn() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    ending = run(fn)
    assert isinstance(ending.outcome, Failed)
    assert ending.outcome.message == "TimeoutError"


def test_a_handler_gets_its_context_and_the_payload() -> None:
    app = Forge("sqlite:///unused.db")
    seen: list[Any] = []

    @app.handler("raw")
    def raw(ctx: Context, payload: Any) -> None:
        seen.extend((ctx, payload))

    execute(claim("raw", {"x": [1]}), app.tasks)
    ctx, payload = seen
    assert payload == {"x": [1]}
    assert (ctx.id, ctx.kind, ctx.queue) == (ID, "raw", "mail")
    assert (ctx.attempt, ctx.max_attempts, ctx.timeout) == (2, 4, 60)


def test_a_job_of_an_unknown_kind_goes_back_untouched_for_a_while() -> None:
    handlers: dict[str, Handler] = {}
    ending = execute(claim("strange"), handlers)
    assert isinstance(ending.outcome, Released)
    assert ending.outcome.message == "no handler for kind strange"
    assert UNKNOWN_KIND_PAUSE[0] <= ending.delay <= UNKNOWN_KIND_PAUSE[1]


@pytest.mark.parametrize(
    ("backoff", "low", "high"),
    [
        (None, -9, -1),  # by its queue, or decorrelated: base 1, up to 3² at the second attempt
        ("decorrelated", 1, 9),
        (Backoff(), 1, 9),
        (Backoff("fixed", 17), 17, 17),
        (Backoff("exponential", 2, 100), 8, 8),
        ("none", 0, 0),
        (lambda n: n * 10, 20, 20),
    ],
)
def test_the_retry_waits_as_the_tasks_curve_says(backoff: Any, low: float, high: float) -> None:
    assert low <= run(raises(ValueError("x")), backoff=backoff).delay <= high


@pytest.mark.parametrize("broken", [lambda n: 1 / 0, lambda n: -1, lambda n: float("nan"), lambda n: "soon"])
def test_a_broken_curve_of_the_users_does_not_lose_the_failure(broken: Any) -> None:
    ending = run(raises(ValueError("x")), backoff=broken)
    assert isinstance(ending.outcome, Failed)
    assert ending.outcome.message.startswith("ValueError: x")
    assert -9 <= ending.delay <= -1


@pytest.fixture
def app(url: str) -> Iterator[Forge]:
    with Forge(url) as opened:
        yield opened


def test_drain_runs_all_that_is_due_in_order_of_priority(app: Forge) -> None:
    ran: list[str] = []

    @app.task
    def note(word: str) -> str:
        ran.append(word)
        return word.upper()

    last = note.using(priority=9).enqueue("last")
    note.using(delay=3600).enqueue("not today")
    note.using(priority=-9).enqueue("first")
    note.using(priority=5).enqueue("middle")
    summary = drain(app)
    assert ran == ["first", "middle", "last"]
    assert (summary.ran, summary.stale, summary.outcomes) == (3, 0, {"done": 3})
    assert last.result(timeout=0) == "LAST"
    assert app.storage.pods() == [], "it has left"


def test_drain_serves_queues_in_turns_and_only_those_asked_for(app: Forge) -> None:
    ran: list[str] = []
    note = app.task(name="note")(lambda word: ran.append(word))
    for n in (1, 2):
        for queue in ("a", "b", "c"):
            note.using(queue=queue).enqueue(f"{queue}{n}")
    drain(app, ["b", "a"])
    assert ran == ["b1", "a1", "b2", "a2"]
    drain(app)
    assert ran[4:] == ["c1", "c2"]


def test_drain_runs_what_its_jobs_enqueue(app: Forge) -> None:
    ran: list[int] = []

    @app.task
    def count(n: int) -> None:
        ran.append(n)
        if n:
            count.enqueue(n - 1)

    count.enqueue(3)
    drain(app)
    assert ran == [3, 2, 1, 0]


def test_drain_can_stop_after_one_job_and_gives_back_what_else_it_had_claimed(app: Forge) -> None:
    ran: list[str] = []
    note = app.task(name="note")(lambda word: ran.append(word))
    jobs = [note.using(queue=queue).enqueue(queue) for queue in ("a", "b")]
    assert drain(app, ["a", "b"], until_empty=False).ran == 1
    assert ran == ["a"]
    assert [(job.job().status, job.job().attempts) for job in jobs] == [(Status.DONE, 1), (Status.PENDING, 0)]


def test_a_failing_job_retries_until_it_is_dead(app: Forge) -> None:
    @app.task(max_attempts=3, backoff=lambda n: 0)
    def never() -> None:
        raise ValueError("no luck")

    handle = never.enqueue()
    endings: list[Ending] = []
    summary = drain(app, on_job=endings.append)
    job = handle.job()
    assert (job.status, job.attempts) == (Status.DEAD, 3)
    assert [(e["attempt"], e["message"]) for e in job.errors] == [(n, "ValueError: no luck") for n in (1, 2, 3)]
    assert "test_inline.py" in job.errors[0]["traceback"]
    assert summary.outcomes == {"failed": 3}
    assert [e.claim.attempt for e in endings] == [1, 2, 3]


def test_a_job_nobody_knows_is_left_for_others_with_its_attempts(app: Forge) -> None:
    handle = app.enqueue("strange", {"x": 1})
    drain(app)
    job = handle.job()
    assert job.status in (Status.PENDING, Status.FAILED)
    assert (job.attempts, job.last_error) == (0, "no handler for kind strange")
    assert job.run_at > job.enqueued_at


def test_an_ending_that_comes_too_late_is_counted_as_stale(app: Forge) -> None:
    @app.task
    def slow() -> None:
        (pod,) = app.storage.pods()
        app.storage.release(pod.id, "taken away")

    handle = slow.enqueue()
    summary = drain(app, until_empty=False)
    assert (summary.ran, summary.stale) == (1, 1)
    assert handle.status is Status.PENDING


def test_ctrl_c_ends_the_loop_after_the_job_is_finalized(app: Forge) -> None:
    @app.task
    def interrupted() -> None:
        raise KeyboardInterrupt

    first = interrupted.enqueue()
    second = app.task(name="second")(lambda: None).using(priority=1).enqueue()
    with pytest.raises(KeyboardInterrupt):
        drain(app)
    assert first.job().last_error == "KeyboardInterrupt"
    job = second.job()
    assert (job.status, job.attempts) == (Status.PENDING, 0), "given back with its attempt"
    assert app.storage.pods() == []
