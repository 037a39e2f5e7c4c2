"""Schedules through the app: declared in code, and set at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from forge import ConfigError, Context, Forge, Schedule, UsageError
from forge.errors import InvalidJob
from forge.storage.contract.schedules import NewSchedule

from .helpers import run

pytestmark = pytest.mark.impl_free


@pytest.fixture
def app(url: str) -> Iterator[Forge]:
    with Forge(url, router={"mail.": "mail"}) as made:
        yield made


def report(region: str, deep: bool = False) -> str:
    return region


def tidy() -> None: ...


def test_a_task_can_say_when_it_is_enqueued() -> None:
    app = Forge("sqlite:///unused.db")
    task = app.task(cron="0 3 * * *", timezone="Europe/Berlin", queue="night", max_attempts=2)(tidy)
    assert task() is None
    assert app.schedules._declared == {
        f"{__name__}.tidy": NewSchedule(
            name=f"{__name__}.tidy",
            expression="0 3 * * *",
            kind=f"{__name__}.tidy",
            payload=b'{"args":[],"kwargs":{}}',
            timezone="Europe/Berlin",
            queue="night",
            max_attempts=2,
            keep_result=7 * 86_400,
            source="code",
        )
    }


def test_a_context_is_not_an_argument_of_a_schedule() -> None:
    app = Forge("sqlite:///unused.db")

    @app.task(cron="@daily")
    def told(ctx: Context) -> None: ...

    (new,) = app.schedules._declared.values()
    assert (new.expression, new.payload) == ("@daily", b'{"args":[],"kwargs":{}}')


def test_a_schedule_has_the_tasks_options_unless_it_says_otherwise() -> None:
    app = Forge("sqlite:///unused.db")
    task = app.task(name="report", queue="slow", timeout=60, keep_result=False)(report)
    options: Any = {"timezone": "Asia/Tokyo", "catch_up": "none", "jitter": 5, "skip_if_running": True}
    app.schedule("eu", " 0  3 * * * ", task, args=["eu"], kwargs={"deep": True}, priority=7, tags=["t"], **options)
    assert app.schedules._declared["eu"] == NewSchedule(
        name="eu",
        expression="0 3 * * *",
        kind="report",
        payload=b'{"args":["eu",true],"kwargs":{}}',
        timezone="Asia/Tokyo",
        queue="slow",
        priority=7,
        timeout=60,
        dedupe_key="cron:eu",
        tags=("t",),
        catch_up="none",
        jitter=5.0,
        source="code",
    )


def test_any_kind_can_be_scheduled() -> None:
    app = Forge("sqlite:///unused.db", router={"mail.": "mail"})

    @app.handler("mail.send")
    def send(ctx: Context, payload: Any) -> None: ...

    app.schedule("a", "* * * * *", "mail.send", payload={"to": 1})
    app.schedule("b", "* * * * *", "mail.send")
    app.schedule("c", "* * * * *", "of.others", args=[1])
    found = {name: (new.queue, new.payload) for name, new in app.schedules._declared.items()}
    assert found == {
        "a": ("mail", b'{"to":1}'),
        "b": ("mail", b"null"),
        "c": ("default", b'{"args":[1],"kwargs":{}}'),
    }


def test_a_tasks_own_key_is_the_schedules() -> None:
    app = Forge("sqlite:///unused.db")
    task = app.task(name="report", dedupe=lambda region, deep=False: f"report {region}")(report)
    app.schedule("eu", "0 3 * * *", task, args=["eu"], skip_if_running=True)
    assert app.schedules._declared["eu"].dedupe_key == "report eu"


def declaring(expression: str = "0 3 * * *", **options: Any) -> Callable[[Forge], None]:
    return lambda app: app.schedule("x", expression, app.task(name="report")(report), **{"args": ["eu"], **options})


@pytest.mark.parametrize(
    ("declare", "error", "words"),
    [
        (declaring("0 3 * *"), UsageError, "schedule x: '0 3 * *' must be 5 cron fields"),
        (declaring(timezone="Berlin"), UsageError, "schedule x: timezone 'Berlin' must be"),
        (declaring(catch_up="some"), UsageError, "schedule x: catch_up must be one of one, all, none, not 'some'"),
        (declaring(jitter=float("nan")), UsageError, "schedule x: jitter must be 0 to 86400 seconds, not nan"),
        (declaring(jitter=True), UsageError, "schedule x: jitter must be 0 to 86400 seconds, not True"),
        (declaring(args=[]), InvalidJob, "missing a required argument: 'region'"),
        (declaring(args=(), payload={}), UsageError, "report is a task: give args and kwargs, not a payload"),
        (declaring(run_at=1), UsageError, "schedule x: no option run_at"),
        (declaring(time_zone="UTC"), UsageError, "schedule x: no option time_zone; did you mean timezone?"),
        (declaring(priority="high"), InvalidJob, "priority must be a whole number"),
        (lambda app: app.schedule("a,b", "* * * * *", "k"), InvalidJob, "schedule 'a,b' has a comma in it"),
        (
            lambda app: app.schedule("x", "* * * * *", "k", args=[1], payload=2),
            UsageError,
            "payload and args or kwargs are both given",
        ),
        (lambda app: app.task(timezone="UTC")(tidy), ConfigError, "tidy: timezone is that of cron=…, which is not"),
        (lambda app: app.task(cron="0 3 * * *")(report), InvalidJob, "missing a required argument: 'region'"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_said(
    declare: Callable[[Forge], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        declare(Forge("sqlite:///unused.db"))
    assert words in str(caught.value)


def test_a_name_means_one_schedule() -> None:
    app = Forge("sqlite:///unused.db")
    app.schedule("x", "0 3 * * *", "k")
    app.schedule("x", "0 3 * * *", "k")  # a module that is loaded again says the same
    with pytest.raises(ConfigError, match="schedule x is declared twice, not alike; rename one"):
        app.schedule("x", "0 4 * * *", "k")


def test_schedules_at_run_time(app: Forge) -> None:
    task = app.task(name="report")(report)
    made = app.schedules.set("eu", "0 3 * * *", task, args=["eu"], timezone="Europe/Berlin", skip_if_running=True)
    assert isinstance(made, Schedule)
    assert (made.source, made.state, made.last_fire_time) == ("runtime", "active", None)
    assert app.schedules.list() == [made] == [app.schedules.get("eu")]
    assert (
        app.schedules.set("eu", "0 3 * * *", task, args=["eu"], timezone="Europe/Berlin", skip_if_running=True) == made
    )
    edited = app.schedules.edit("eu", expression="0 4 * * *", jitter=5, catch_up="all", queue="q")
    assert (edited.expression, edited.jitter, edited.catch_up, edited.queue) == ("0 4 * * *", 5.0, "all", "q")
    assert (edited.payload, edited.dedupe_key, edited.timezone) == (made.payload, "cron:eu", "Europe/Berlin")
    assert edited.next_at != made.next_at
    with pytest.raises(UsageError, match="schedule eu: timezone 'Berlin' must be"):
        app.schedules.edit("eu", timezone="Berlin")
    assert app.schedules.pause("eu").state == "paused"
    assert app.schedules.resume("eu") == edited
    job = app.schedules.run_now("eu")
    assert (job.job().kind, job.job().tags, job.deduped) == ("report", ("cron:eu",), False)
    again = app.schedules.run_now("eu")
    assert (again, again.deduped) == (job, True)
    app.schedules.remove("eu")
    assert app.schedules.list() == []
    with pytest.raises(UsageError, match=r"no schedule eu   \(forge schedules lists all\)"):
        app.schedules.get("eu")


def test_the_same_with_asyncio(app: Forge) -> None:
    async def work() -> None:
        await app.schedules.aset("x", "0 3 * * *", "k")
        assert (await app.schedules.aedit("x", queue="q")).queue == "q"
        assert [each.name for each in await app.schedules.alist()] == ["x"]
        assert (await app.schedules.apause("x")).paused
        assert not (await app.schedules.aresume("x")).paused
        assert (await app.schedules.aget("x")).name == "x"
        assert not (await app.schedules.arun_now("x")).deduped
        await app.schedules.aremove("x")

    run(work())
    assert app.schedules.list() == []
