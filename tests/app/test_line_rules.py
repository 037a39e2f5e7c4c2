"""Lines of jobs: what a task says of them, what an enqueue does, and what is refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from forge import Forge
from forge.errors import InvalidJob
from forge.job import Line, NewJob
from forge.job_messages import new_job_of, record_of
from forge.storage.contract.schedules import NewSchedule

from .recorder import Recorder


@pytest.fixture
def app() -> Recorder:
    return Recorder()


def stored(app: Recorder) -> Line | None:
    """The line of the job that came last."""
    last: NewJob = app.stored[-1]
    return last.line


def test_a_limit_alone_is_the_kinds(app: Recorder) -> None:
    @app.task(name="send", concurrency="2")
    def send(to: str) -> None: ...

    send.enqueue("ann")
    assert stored(app) == Line.of(concurrency_key="send", concurrency=2)

    @app.task(name="post", concurrency=3)
    def post(to: str) -> None: ...

    post.enqueue_many([("ann",), ("bob",)])
    assert [job.line for job in app.stored[-2:]] == [Line.of(concurrency_key="post", concurrency=3)] * 2


def test_patterns_are_filled_in_from_the_arguments_however_they_are_passed(app: Recorder) -> None:
    @app.task(name="bill", concurrency="{customer_id}:2", partition_by="{order[tenant]}/{when}", rate_limit="slack")
    def bill(customer_id: int, order: dict[str, Any], when: str = "now") -> None: ...

    order = {"tenant": "acme"}
    line = Line.of(concurrency_key="bill:7", concurrency=2, partition="acme/now", rate_limit="slack")
    bill.enqueue(7, order)
    assert stored(app) == line
    bill.enqueue(order=order, customer_id=7)
    assert stored(app) == line
    app.enqueue("bill", {"args": [7], "kwargs": {"order": order}})
    assert stored(app) == line
    bill.enqueue_many([(7, order), (7, order), (8, order), bill.call(9, order, "then")])
    keys = [job.line.concurrency_key for job in app.stored[-4:] if job.line]
    assert keys == ["bill:7", "bill:7", "bill:8", "bill:9"]
    assert stored(app) == Line.of(concurrency_key="bill:9", concurrency=2, partition="acme/then", rate_limit="slack")


def test_one_call_can_say_otherwise(app: Recorder) -> None:
    @app.task(name="send", concurrency="2", partition_by="{to}")
    def send(to: str) -> None: ...

    send.using(concurrency="{to}:5").enqueue("ann")
    assert stored(app) == Line.of(concurrency_key="send:ann", concurrency=5, partition="ann")
    send.using(partition_by="all", rate_limit="gh").enqueue("ann")
    assert stored(app) == Line.of(concurrency_key="send", concurrency=2, partition="all", rate_limit="gh")

    @app.task(name="plain")
    def plain(to: str) -> None: ...

    plain.enqueue("ann")
    assert stored(app) is None
    plain.using(partition_by="{to}").enqueue("ann")
    assert stored(app) == Line.of(partition="ann")


def test_a_handler_of_payloads_fills_patterns_from_their_keys(app: Recorder) -> None:
    @app.handler("mail", partition_by="{tenant}", concurrency="1")
    def mail(ctx: Any, payload: Any) -> None: ...

    app.enqueue("mail", {"tenant": "acme"})
    assert stored(app) == Line.of(partition="acme", concurrency_key="mail", concurrency=1)
    app.enqueue("unknown", {"tenant": "acme"}, partition_by="{tenant}")
    assert stored(app) == Line.of(partition="acme")
    for payload in ({"tenants": 1}, ["acme"], None):
        with pytest.raises(InvalidJob, match="cannot be filled in: there is no 'tenant'"):
            app.enqueue("mail", payload)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": "{customer}:2"}, "names {customer}, which is no parameter of the task (it has: to)"),
        ({"partition_by": "{customer}"}, "names {customer}, which is no parameter of the task (it has: to)"),
        ({"partition_by": "{}"}, "names {}, which is no parameter"),
        ({"concurrency": "{to}"}, "'{to}' has no limit"),
        ({"concurrency": "many"}, "'many' has no limit"),
        ({"concurrency": "{to}:"}, "'{to}:' has no limit"),
        ({"concurrency": "0"}, "must be 1 to 1000, not 0"),
        ({"concurrency": "{to}:-1"}, "must be 1 to 1000, not -1"),
        ({"concurrency": 1001}, "must be 1 to 1000, not 1001"),
        ({"concurrency": True}, "must be a limit such as"),
        ({"partition_by": ""}, "must be a pattern such as"),
        ({"partition_by": 7}, "must be a pattern such as"),
        ({"partition_by": "{to"}, "cannot be read"),
        ({"rate_limit": "{to}"}, "names a budget, it is no pattern"),
        ({"rate_limit": ""}, "rate_limit is empty"),
    ],
)
def test_what_cannot_be_is_refused_when_the_task_is_declared(app: Recorder, options: Any, said: str) -> None:
    def send(to: str) -> None: ...

    with pytest.raises(InvalidJob) as caught:
        app.task(**options)(send)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert dict(app.tasks) == {}


@pytest.mark.parametrize("value", ["x" * 1300, "a\0b", "\ud800"])
def test_a_value_that_no_line_can_have_is_refused_at_the_enqueue(app: Recorder, value: str) -> None:
    @app.task(partition_by="{to}")
    def send(to: str) -> None: ...

    with pytest.raises(InvalidJob):
        send.enqueue(value)
    assert app.stored == []


def test_a_line_goes_with_a_job_through_a_worker_and_with_a_schedule_through_a_message() -> None:
    app = Forge()
    line = Line.of(rate_limit="gh", concurrency_key="mail", concurrency=4, partition="a|b")
    job = app.job("mail", {"tenant": "a|b"}, rate_limit="gh", concurrency=4, partition_by="{tenant}")
    assert job.line == line
    assert new_job_of(orjson.loads(orjson.dumps(record_of(job)))) == job
    schedule = NewSchedule(name="n", expression="* * * * *", kind="mail", line=line)
    assert NewSchedule.of_message(orjson.loads(orjson.dumps(schedule.as_message()))) == schedule


def test_a_schedule_has_the_line_that_its_job_would_have(app: Recorder) -> None:
    @app.task(name="tidy", concurrency="{tenant}:1")
    def tidy(tenant: str) -> None: ...

    app.schedule("eu", "* * * * *", tidy, args=["acme"], partition_by="all")
    assert app.schedules._declared["eu"].line == Line.of(concurrency_key="tidy:acme", concurrency=1, partition="all")
