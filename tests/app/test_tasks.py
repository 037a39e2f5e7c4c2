"""Tasks: what a decorated function becomes, which arguments it takes, and what ends up in the job."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from forge import Backoff, ConfigError, Forge, InvalidJob, Task, UsageError
from forge.app import AsyncTask, SyncTask

from .helpers import run, work_off
from .recorder import Recorder


@pytest.fixture
def app() -> Iterator[Recorder]:
    with Recorder() as app:
        yield app


def test_a_plain_call_calls_the_function(app: Recorder) -> None:
    @app.task
    def add(a: int, b: int = 1) -> int:
        """Adds."""
        return a + b

    @app.task(queue="slow")
    async def later(a: int) -> int:
        return a

    assert (add(2, b=3), run(later(4)), app.stored) == (5, 4, [])
    assert (add.__name__, add.__doc__, type(add), type(later)) == ("add", "Adds.", SyncTask, AsyncTask)
    assert inspect.iscoroutinefunction(later.fn)


def test_the_kind_is_module_and_name(app: Recorder) -> None:
    @app.task(name="mail.send")
    def send() -> None: ...

    @app.task
    def nested() -> None: ...

    assert send.kind == "mail.send"
    assert nested.kind == f"{__name__}.test_the_kind_is_module_and_name.<locals>.nested"
    assert str(send) == "<Task mail.send>"


def test_a_script_names_its_tasks_as_a_worker_that_imports_it_will(tmp_path: Path) -> None:
    script = tmp_path / "chores.py"
    script.write_text(
        textwrap.dedent("""\
            from forge import Forge
            app = Forge()
            @app.task
            def sweep() -> None: ...
            if __name__ == "__main__":
                print(sweep.kind)
            """)
    )
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "chores.py").write_text(script.read_text())
    env = {"PYTHONPATH": ":".join([str(tmp_path), *filter(None, sys.path)])}

    def kind(*argv: str) -> str:
        return subprocess.run(
            [sys.executable, *argv], env=env, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert kind("chores.py") == "chores.sweep"
    assert kind("-m", "house.chores") == "house.chores.sweep"
    assert kind("-c", "import chores; print(chores.sweep.kind)") == "chores.sweep"
    assert kind("-c", script.read_text()) == "__main__.sweep"


def test_one_kind_for_two_functions_is_refused_naming_both_places(app: Recorder) -> None:
    @app.task(name="twice")
    def one() -> None: ...

    with pytest.raises(
        ConfigError, match=r"kind 'twice' is registered twice: .*test_tasks.py:\d+ and .*test_tasks.py:\d+"
    ):

        @app.handler("twice")
        def two(ctx: Any, payload: Any) -> None: ...

    assert app.tasks["twice"].fn is one.fn


def test_a_task_made_twice_by_one_function_is_refused(app: Recorder) -> None:
    def make(factor: int) -> None:
        @app.task(name="times")
        def times(n: int) -> int:
            return n * factor

    make(2)
    with pytest.raises(ConfigError, match="registered twice"):
        make(3)


def test_a_module_that_is_loaded_again_registers_again(app: Recorder, tmp_path: Path) -> None:
    source = compile("@app.task\ndef tidy(): return 1\n", "tidy.py", "exec")
    first: dict[str, Any] = {"app": app, "__name__": "tidy"}
    again = dict(first)
    exec(source, first)
    exec(source, again)
    assert app.tasks["tidy.tidy"].fn is again["tidy"].fn


def test_the_registry_knows_how_each_kind_is_run(app: Recorder) -> None:
    def curve(attempt: int) -> float:
        return attempt * 2.0

    @app.task(
        queue="q", priority=4, max_attempts=9, timeout=timedelta(minutes=1), backoff=curve, keep_result=60, name="t"
    )
    async def t() -> None: ...

    @app.handler("h", backoff="fixed")
    def h(ctx: Any, payload: Any) -> None: ...

    known = app.tasks["t"]
    assert (known.kind, known.fn, known.is_async, known.takes_ctx) == ("t", t.fn, True, False)
    assert (known.queue, known.priority, known.max_attempts, known.timeout) == ("q", 4, 9, 60)
    assert (known.backoff, known.keep_result) == (curve, 60)
    plain = app.tasks["h"]
    assert (plain.fn, plain.is_async, plain.takes_ctx, plain.queue) == (h, False, True, None)
    assert (plain.priority, plain.max_attempts, plain.timeout, plain.keep_result) == (0, 5, 600, None)
    assert plain.backoff == Backoff("fixed")
    assert list(app.tasks) == ["t", "h"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"queue": "a,b"}, InvalidJob, "queue 'a,b' has a comma"),
        ({"max_attempts": 0}, InvalidJob, "max_attempts must be 1 to 32767"),
        ({"backoff": "linear"}, InvalidJob, "no curve 'linear'"),
        ({"retries": 3}, UsageError, "no option retries"),
        ({"dedupe": "user:{user_id}"}, ConfigError, r"dedupe names \{user_id\}, which is no parameter"),
        ({"dedupe": 7}, ConfigError, "dedupe must be True, a pattern or a function, not 7"),
    ],
)
def test_a_mistake_in_a_tasks_options_shows_where_it_is_made(
    app: Recorder, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):

        @app.task(**options)
        def task(a: int) -> None: ...

    assert len(app.tasks) == 0


def test_using_overrides_what_the_task_says(app: Recorder) -> None:
    @app.task(queue="slow", priority=3, max_attempts=2, timeout=30, keep_result=False)
    def f(a: int) -> None: ...

    f.enqueue(1)
    f.using(queue="fast", priority=0, max_attempts=4, timeout=60, keep_result=True, delay=2.5, tags=["x"]).enqueue(2)
    f.using().enqueue(3)
    plain, changed, same = app.stored
    assert plain[3:] == ("slow", 3, None, 0.0, 2, 30, None, None, "keep", (), None, None)
    assert changed[3:] == ("fast", 0, None, 2.5, 4, 60, None, None, "keep", ("x",), 604_800, None)
    assert same[3:] == plain[3:]


def test_a_bad_option_is_refused_before_the_enqueue(app: Recorder) -> None:
    @app.task
    def f(a: int) -> None: ...

    with pytest.raises(InvalidJob, match="delay must be 0"):
        f.using(delay=-1)
    with pytest.raises(UsageError, match="no option prioritty; did you mean priority"):
        f.using(prioritty=1)  # type: ignore[call-arg]


def test_results_of_tasks_are_kept_for_a_week_unless_the_task_says_otherwise(app: Recorder) -> None:
    @app.task(name="a")
    def kept() -> None: ...

    @app.task(name="b", keep_result=None)
    def dropped() -> None: ...

    kept.enqueue()
    dropped.enqueue()
    kept.using(keep_result=False).enqueue()
    assert [job.keep_result for job in app.stored] == [604_800, None, None]


def test_a_queue_is_the_enqueues_else_the_tasks_else_the_routers(app: Recorder) -> None:
    routed = Recorder(router={"gh_": "gh", "gh_slow_": "slow"})

    @routed.task(name="gh_sync", queue="own")
    def f() -> None: ...

    @routed.task(name="gh_slow_sync")
    def g() -> None: ...

    f.enqueue()
    f.using(queue="said").enqueue()
    g.enqueue()
    for kind in ("gh_x", "gh_slow_x", "other"):
        routed.enqueue(kind, None)
    assert [job.queue for job in routed.stored] == ["own", "said", "slow", "gh", "slow", "default"]
    by_function = Recorder(router=lambda kind: kind[:2] if kind.startswith("gh") else None)
    assert [by_function.job(kind, None).queue for kind in ("gh_x", "mail")] == ["gh", "default"]


def test_a_router_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="router must be a mapping"):
        Forge(router="gh")  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="queue 'a,b' has a comma"):
        Forge(router={"gh_": "a,b"})
    with pytest.raises(InvalidJob, match="queue 'a,b' has a comma"):
        Forge(router=lambda kind: "a,b").job("mail", None)


def test_a_low_level_enqueue_takes_the_handlers_defaults(app: Recorder) -> None:
    @app.handler("mail", queue="letters", timeout=30, max_attempts=2, priority=5, keep_result=True)
    def mail(ctx: Any, payload: Any) -> None: ...

    app.enqueue("mail", {})
    app.enqueue("mail", {}, timeout=60, keep_result=False)
    assert app.stored[0][3:] == ("letters", 5, None, 0.0, 2, 30, None, None, "keep", (), 604_800, None)
    assert app.stored[1][3:] == ("letters", 5, None, 0.0, 2, 60, None, None, "keep", (), None, None)


def test_a_task_runs_end_to_end_on_both_databases(url: str) -> None:
    with Forge(url) as app:

        @app.task
        def add(a: int, b: int) -> int:
            return a + b

        @app.task
        async def shout(text: str) -> str:
            return text.upper()

        sums = add.enqueue_many([(n, n) for n in range(100)])
        word = shout.enqueue("hello")
        assert work_off(app) == 101
        assert [handle.result(timeout=0) for handle in sums] == [2 * n for n in range(100)]
        assert word.result(timeout=0) == "HELLO"


def test_a_task_annotation_accepts_both_sorts(app: Recorder) -> None:
    def twice(task: Task[[int], str]) -> None:
        task.enqueue(1)
        task.enqueue(2)

    @app.task
    def a(n: int) -> str:
        return str(n)

    @app.task
    async def b(n: int) -> str:
        return str(n)

    twice(a)
    twice(b)
    assert len(app.stored) == 4
