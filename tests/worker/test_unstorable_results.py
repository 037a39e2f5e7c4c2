"""A result that cannot be stored: the work was done, so it is never done again."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from forge import Context, Done, Forge, InvalidJob, JobIsDead, Status
from forge.app.running import results
from forge.errors import DatabaseError
from forge.inline import drain
from forge.job import Claim, Ending
from forge.master.ending_batch import EndingBatch
from forge.storage import Storage
from tests.storage.helpers import plain_job
from tests.worker.conftest import Drive


class Touchy(str):
    """Raises when it is looked at."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, _: object) -> bool:
        raise RuntimeError("do not touch")


endless: list[Any] = []
endless.append(endless)

BAD: dict[str, tuple[Any, str]] = {
    "a set": ({"ids": {1, 2}}, "result.ids is of type set; pass sorted() or list() of it"),
    "too long": ("x" * 1_048_600, "result is too long as JSON; the limit is 1,048,576 bytes"),
    "NaN": ([math.nan], "result[0] is NaN"),
    "endless": (endless, "is nested deeper than 64 levels"),
    "no text": ("\ud800", "result has a lone surrogate (U+D800) in it"),
    "NUL": ("a\0b", "result has a NUL character (U+0000) in it"),
    "a huge number": (2**70, "result is an integer of more than 64 bits"),
    "an object": (object(), "result is of type object"),
    "touchy": ([Touchy("x")], "RuntimeError: do not touch"),
}


@pytest.fixture
def app(url: str) -> Iterator[Forge]:
    with Forge(url) as opened:
        yield opened


@pytest.fixture
def ran() -> list[str]:
    return []


def register(app: Forge, ran: list[str], name: str = "count", **options: Any) -> Any:
    """A task that returns the value of that name, and each call of which is seen."""

    @app.task(name=name, **options)
    def count(which: str) -> Any:
        ran.append(which)
        return BAD[which][0] if which in BAD else which

    return count


@pytest.mark.parametrize("which", BAD)
def test_the_job_is_dead_at_once_and_says_why(app: Forge, ran: list[str], which: str) -> None:
    job = register(app, ran, max_attempts=5, backoff="none").enqueue(which)
    drain(app)
    drain(app)
    record = job.job()
    assert (record.status, record.attempts, ran) == (Status.DEAD, 1, [which])
    said = record.last_error or ""
    assert said.startswith("its work was done, but its result cannot be stored: ") and BAD[which][1] in said
    assert '; it is not run again (with keep_result="if_possible" on its task' in said and "\n" not in said
    with pytest.raises(JobIsDead, match="its work was done"):
        job.result(timeout=0)


@pytest.mark.parametrize("which", BAD)
def test_it_is_done_without_its_result_where_the_task_says_so(
    app: Forge, ran: list[str], which: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "_told", set())
    count = register(app, ran, keep_result="if_possible")
    jobs = [count.enqueue(which), count.using(keep_result=60).enqueue(which), count.enqueue("fine")]
    with caplog.at_level(logging.WARNING, "forge.worker"):
        drain(app)
    assert [job.status for job in jobs] == [Status.DONE] * 3 and sorted(ran) == sorted([which, which, "fine"])
    assert [job.result(timeout=0) for job in jobs] == [None, None, "fine"]
    assert [job.job().keep_result for job in jobs] == [7 * 86_400, 60, 7 * 86_400]
    said = [record.message for record in caplog.records if "done without its result" in record.message]
    assert len(said) == 1 and said[0].startswith("a job of count is ") and BAD[which][1] in said[0]


def test_only_a_task_can_say_so(app: Forge, ran: list[str]) -> None:
    count = register(app, ran)
    for enqueue in (count.using, lambda **options: app.enqueue("count", {}, **options)):
        with pytest.raises(InvalidJob, match=r'^keep_result="if_possible" is said by the task; '):
            enqueue(keep_result="if_possible")
    with pytest.raises(InvalidJob, match=r"^keep_result must be whole seconds or a timedelta, not 'maybe'"):
        register(app, ran, "other", keep_result="maybe")
    assert register(app, ran, "third", keep_result=timedelta(hours=1))._handler.result_optional is False


@pytest.mark.parametrize("keep", [True, "if_possible"])
def test_in_a_transaction_it_is_final_too(app: Forge, keep: Any) -> None:
    ran = []

    @app.task(name="pay", keep_result=keep, backoff="none")
    def pay(ctx: Context) -> None:
        ran.append(1)
        with ctx.transaction() as tx:
            tx.result = {1, 2}

    job = pay.enqueue()
    drain(app)
    record = job.job()
    if keep is True:
        assert (record.status, len(ran)) == (Status.DEAD, 1)
        assert str(record.last_error).startswith(
            "its transaction was rolled back, because its result cannot be stored: "
        )
    else:
        assert (record.status, record.result, len(ran)) == (Status.DONE, None, 1)


@pytest.mark.parametrize("way", [{"worker": "process"}, {"worker": "threads", "concurrency": 2}, {"worker": "async"}])
def test_a_worker_replies_so(drive: Drive, way: dict[str, Any]) -> None:
    app = Forge("sqlite:///unused.db")
    register(app, [], "strict")
    register(app, [], "lenient", keep_result="if_possible")

    @app.handler("raised")
    def raised(ctx: Context, payload: Any) -> None:
        raise Done({1, 2})

    worker = drive(app, **way)
    for _ in range(2):
        ids = [worker.job(kind, args=("a set",)) for kind in ("strict", "lenient", "raised")]
        replies = [worker.reply(id) for id in ids]
        assert [reply["status"] for reply in replies] == ["dead", "ok", "dead"]
        assert all(replies[n]["message"].startswith("its work was done, but its result") for n in (0, 2))
        assert "result" not in replies[1] and "delay" not in replies[0]
        kept = [worker.reply(worker.job(kind, args=("fine",))) for kind in ("strict", "lenient")]
        assert [(reply["result"], reply.get("spare_result")) for reply in kept] == [("fine", None), ("fine", True)]


def test_a_result_that_the_database_refuses_is_final_too(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the ends of other jobs are written."""
    who = storage.register("ada", ["letters"], "north", 4711)
    storage.enqueue([plain_job("letters")._replace(keep_result=600) for _ in range(4)])
    claims: list[Claim] = storage.claim(who, "letters", 4)
    finalize = storage.finalize

    def refusing(endings: Any, **more: Any) -> list[Ending]:
        if any(ending.result == b'"refused"' for ending in endings):
            raise DatabaseError("no room for it")
        return finalize(endings, **more)

    monkeypatch.setattr(storage, "finalize", refusing)
    lenient = Done()
    lenient.spare_result = True
    outcomes = [(Done(), b'"refused"'), (lenient, b'"refused"'), (lenient, b'"fine"'), (Done(), None)]
    endings = [Ending(claim, outcome, result=result) for claim, (outcome, result) in zip(claims, outcomes, strict=True)]
    batch = EndingBatch(storage, endings, 3)
    batch()
    assert (batch.stale, batch.left, batch.apart, batch.refused) == ([], [], [], [endings[0]])
    found = storage.get([claim.id for claim in claims])
    jobs = [found[claim.id] for claim in claims]
    assert [job.status for job in jobs] == [Status.DEAD, Status.DONE, Status.DONE, Status.DONE]
    assert [job.result for job in jobs] == [None, None, "fine", None]
    assert str(jobs[0].last_error).startswith(
        "its work was done, but the database refuses its result: no room for it; it is not run again"
    )
