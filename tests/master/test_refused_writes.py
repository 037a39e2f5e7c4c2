"""Endings that cannot be written: one that is itself to blame fails its own job, a database that takes no writes is
waited for, and none is ever dropped."""

from __future__ import annotations

import contextlib
import resource
import threading
from collections.abc import Iterator
from typing import Any, cast

import psycopg
import pytest

from forge.errors import DatabaseError
from forge.job import Claim, Dead, Done, Ending, Failed, Snooze, Status
from forge.master.ending_batch import EndingBatch
from forge.master.finalizer import Finalizer
from forge.master.news import News
from forge.storage import Storage, open_storage
from tests.storage.helpers import plain_job

from .conftest import TASKS, Project, eventually

pytestmark = pytest.mark.impl_free


@contextlib.contextmanager
def no_room(pid: int = 0) -> Iterator[None]:
    """No file of that process can grow: to SQLite as good as a full disk."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1024, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def read_only(server: str) -> Iterator[None]:
    """In all sessions, those that are there too."""

    def set_to(value: str) -> None:
        with psycopg.connect(server, autocommit=True) as conn:
            conn.execute("set default_transaction_read_only = off")
            conn.execute(f"alter system {value}")
            conn.execute("select pg_reload_conf()")

    set_to("set default_transaction_read_only = on")
    try:
        yield
    finally:
        set_to("reset default_transaction_read_only")


@contextlib.contextmanager
def refusing(url: str, server: str, pid: int = 0) -> Iterator[None]:
    """A database that answers, and takes no writes from that process."""
    with no_room(pid) if url.startswith("sqlite") else read_only(server):
        yield


def claims(storage: Storage, n: int) -> list[Claim]:
    who = storage.register("ada", ["letters"], "north", 4711)
    storage.enqueue([plain_job("letters")._replace(keep_result=600) for _ in range(n)])
    return storage.claim(who, "letters", n)


def test_one_ending_that_breaks_the_batch_fails_its_own_job_alone(storage: Storage) -> None:
    found = claims(storage, 40)
    endings = [Ending(claim, Done()) for claim in found]
    endings[7] = Ending(found[7], Failed(404))  # type: ignore[arg-type]
    endings[8] = Ending(found[8], Snooze("abc"))  # type: ignore[arg-type]
    endings[30] = Ending(found[30], Dead(["a"]))  # type: ignore[arg-type]
    batch = EndingBatch(storage, endings, 3)
    batch()
    assert (batch.stale, batch.left, batch.apart) == ([], [], [])
    jobs = storage.get([claim.id for claim in found])
    assert [jobs[claim.id].status for claim in found].count(Status.DONE) == 37
    for n in (7, 8, 30):
        job = jobs[found[n].id]
        assert job.status is Status.FAILED
        assert str(job.last_error).startswith("the result could not be stored: ")


def test_a_database_that_comes_back_between_a_refusal_and_the_check_makes_no_ending_the_culprit(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (claim,) = claims(storage, 1)
    finalize, lost = storage.finalize, [DatabaseError("the server closed the connection")] * 2

    def losing(*args: Any, **more: Any) -> list[Ending]:
        if lost:
            raise lost.pop()
        return finalize(*args, **more)

    monkeypatch.setattr(storage, "finalize", losing)
    batch = EndingBatch(storage, [Ending(claim, Done())], 3)
    batch()
    assert (batch.stale, batch.left, batch.apart, batch.refused) == ([], [], [], [])
    assert storage.get([claim.id])[claim.id].status is Status.DONE


def test_what_can_be_written_can_be_tried_and_leaves_nothing(storage: Storage) -> None:
    storage.try_writing()
    storage.try_writing(100_000)
    assert storage.ended_counts() == {}
    storage.enqueue([plain_job("letters")])
    assert storage.counts()["letters"].pending == 1


def test_a_database_that_takes_no_writes_keeps_every_ending_until_it_does(url: str, pg_server: str) -> None:
    with open_storage(url) as storage:
        found = claims(storage, 5)
        batch = EndingBatch(storage, [Ending(claim, Done(), result=b'"%s"' % (b"x" * 50_000)) for claim in found], 3)
        with refusing(url, pg_server):
            eventually(lambda: refuses(storage))
            for _ in range(5):
                with pytest.raises(DatabaseError, match="the database refuses writes"):
                    batch()
                assert len(batch.left) == 5
        eventually(lambda: not refuses(storage))
        batch()
        assert batch.refused == []
        assert {job.status for job in storage.get([claim.id for claim in found]).values()} == {Status.DONE}


def refuses(storage: Storage) -> bool:
    try:
        storage.try_writing()
    except DatabaseError:
        return True
    return False


class Stubborn:
    """A storage that refuses one job whatever is said about it."""

    def __init__(self, storage: Storage, bad: Claim) -> None:
        self._storage, self.bad, self.refusing = storage, bad, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def finalize(self, endings: Any, **options: Any) -> Any:
        if self.refusing and any(ending.claim is self.bad for ending in endings):
            raise OverflowError("no such number")
        return self._storage.finalize(endings, **options)


class Pod:
    """Stands where the pod does."""

    def is_back(self, *, written: bool = False) -> None:
        pass


def test_an_ending_that_cannot_be_written_at_all_is_kept_and_tried_again(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    found = claims(storage, 3)
    stubborn = Stubborn(storage, found[1])
    news: list[Any] = []
    came = threading.Event()

    def post(each: News) -> None:
        news.append(each)
        came.set()

    finalizer = Finalizer(cast(Any, stubborn), post, cast(Any, Pod()), lambda *_: None, lambda: None)
    finalizer.start()

    def turn() -> bool:
        finalizer.flush(3)
        came.wait(0.05)
        came.clear()
        while news:
            done = news.pop(0)
            done.thread.take_in(done)
        return False

    for claim in found:
        finalizer.end(Ending(claim, Done()))
    eventually(lambda: turn() or finalizer.unwritten == 1)
    assert finalizer.ended == 2
    assert list(finalizer.held()) == [found[1]]
    for _ in range(5):
        turn()
    assert finalizer.unwritten == 1
    assert caplog.text.count("the database refuses it: no such number") == 1
    stubborn.refusing = False
    eventually(lambda: turn() or not finalizer.unwritten)
    assert finalizer.ended == 3
    job = storage.get([found[1].id])[found[1].id]
    assert job.status is Status.FAILED
    assert job.last_error == "the result could not be stored: no such number"


ODD = """
from forge import Failed, Throttled

class CardDeclined(Dead):
    pass

@app.task
def odd(n: int) -> None:
    raise [Failed(404), CardDeclined("no funds"), Throttled("30", job_only=True), Failed(["a"]), Failed(b"x"),
           Failed(ValueError("no luck")), Snooze(float("inf")), Dead(404)][n % 8]
"""


def test_odd_outcomes_among_many_jobs_touch_nobody_else(project: Project) -> None:
    (project.folder / "tasks.py").write_text(TASKS + ODD)
    pod = project.start()
    jobs = [project.app.job("tasks.add", {"args": [n, 1], "kwargs": {}}) for n in range(400)]
    jobs[::20] = [project.app.job("tasks.odd", {"args": [n], "kwargs": {}}, max_attempts=1) for n in range(20)]
    handles: list[Any] = project.app.enqueue_many(jobs)
    eventually(lambda: project.app.storage.counts() == {}, within=60)
    assert project.app.storage.ended_counts() == {"default": {Status.DONE: 380, Status.DEAD: 20}}
    said = [handle.job().last_error for handle in handles[:160:20]]
    assert said[:2] == ["404", "no funds"]
    assert said[2] == 'Throttled("30"): retry_after must be a number of seconds, 0 or more, or None'
    assert said[5] == "ValueError: no luck"
    assert not pod.says("died")
    assert pod.stop() == 0


def test_a_master_waits_for_a_database_that_takes_no_writes(project: Project, pg_server: str) -> None:
    pod = project.start()
    job: Any = project.enqueue("wait_for", "go")
    eventually(lambda: project.events("START"))
    with refusing(project.url, pg_server, pod.process.pid):
        if not project.url.startswith("sqlite"):
            with open_storage(project.url) as storage:
                eventually(lambda: refuses(storage))
        (project.folder / "go").touch()
        eventually(lambda: project.events("END"))
        eventually(lambda: pod.says("the database refuses writes: "))
        assert not pod.says("the database is back")
    assert job.result(timeout=60) == "went"
    eventually(lambda: pod.says("the database is back"))
    assert len(project.events("START")) == 1
    again: Any = project.enqueue("add", 2, 3)
    assert again.result(timeout=30) == 5
    assert pod.stop() == 0
