"""kill -9 at every statement of every write: all of it happened, or nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from forge.job import Dead, Done, Ending, Failed, Status
from forge.storage.sqlite import SqliteStorage
from forge.storage.sqlite.drivers import SqliteConnection

from .helpers import elsewhere, ids, in_child, some_jobs, start_child

pytestmark = pytest.mark.impl_free


class Killed:
    """A connection whose process dies right after its `at`-th statement."""

    def __init__(self, conn: SqliteConnection, at: int) -> None:
        self._conn = conn
        self._left = at

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._conn, name)
        if name not in ("rows", "change", "many"):
            return method

        def run(*args: Any) -> Any:
            answer = method(*args)
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return run


def die_within(storage: SqliteStorage, at: int, verb: Callable[[], object]) -> bool:
    """Do `verb` in a child that is killed after the `at`-th statement; False if the verb was over before that."""

    def work() -> None:
        with storage._writer.use() as conn:
            storage._writer._conn = Killed(conn, at)
        verb()

    status = in_child(work)
    assert status in (0, signal.SIGKILL)
    return status == signal.SIGKILL


def check_whole(path: Path) -> None:
    """No job in two places, each key with the job that has it, and a sound file."""
    found = elsewhere(
        path,
        "print(*conn.execute('pragma integrity_check').fetchone(),"
        "conn.execute('select count(*) from forge_job where id in (select id from forge_job_history)').get,"
        "conn.execute(\"select count(*) from forge_job where (status = 'in_progress') <> (claim is not null)\").get,"
        "conn.execute('select count(*) from forge_job_key k"
        " full join (select * from forge_job where dedupe_key is not null) j"
        " on k.key = j.dedupe_key and k.job_id = j.id where k.key is null or j.id is null').get)",
    )
    assert found == "ok 0 0 0"


def test_kill_within_an_enqueue_stores_all_or_nothing(storage: SqliteStorage, path: Path) -> None:
    for at in range(1, 100):
        jobs = some_jobs(3) + some_jobs(1, dedupe_key=f"k{at}") + some_jobs(1, dedupe_key=f"k{at}")
        killed = die_within(storage, at, lambda jobs=jobs: storage.enqueue(jobs))  # type: ignore[misc]
        assert len(storage.get(ids(jobs))) in ((0, 4) if killed else (4,))
        if not killed:
            break
    assert at > 6
    check_whole(path)


def test_kill_within_a_claim_claims_all_or_nothing(storage: SqliteStorage, path: Path) -> None:
    who = storage.register("ada", ["default"], "north", 1)
    storage.enqueue(some_jobs(4) + some_jobs(4, priority=2))
    for at in range(1, 100):
        killed = die_within(storage, at, lambda: storage.claim(who, "default", 6))
        running = storage.counts()["default"].in_progress
        assert running in ((0, 6) if killed else (6,))
        storage.release(who.pod.id)
        if not killed:
            break
    assert at > 5
    check_whole(path)


def test_kill_within_a_finalize_ends_all_or_nothing(storage: SqliteStorage, path: Path) -> None:
    who = storage.register("ada", ["default"], "north", 1)
    for at in range(1, 100):
        jobs = [*some_jobs(4, keep_result=9), *some_jobs(1, dedupe_key=f"d{at}"), *some_jobs(1, dedupe_key=f"e{at}")]
        storage.enqueue(jobs)
        claims = storage.claim(who, "default", 6)
        outcomes = [Done(), Done(), Failed("later"), Dead("no"), Done(), Dead("no")]
        results = [None, b"1", None, None, None, None]
        endings = [Ending(c, o, 500.0, None, r) for c, o, r in zip(claims, outcomes, results, strict=True)]
        killed = die_within(storage, at, lambda endings=endings: storage.finalize(endings))  # type: ignore[misc]
        found = storage.get(ids(jobs))
        ended = [found[job.id].status for job in jobs]
        before = [Status.IN_PROGRESS] * 6
        after = [Status.DONE, Status.DONE, Status.FAILED, Status.DEAD, Status.DONE, Status.DEAD]
        assert ended in ([before, after] if killed else [after])
        assert len(storage.finalize(endings)) == (len(endings) if ended == after else 0)
        if not killed:
            break
    assert at > 12
    check_whole(path)


def test_what_was_acknowledged_before_a_kill_is_kept(storage: SqliteStorage, path: Path) -> None:
    """A worker is killed wherever it is when its tenth acknowledgement arrives, four times over."""
    who = storage.register("ada", ["default"], "north", 1)
    for _ in range(4):
        end, acknowledge = os.pipe()

        def work(acknowledge: int = acknowledge) -> None:
            while True:
                storage.enqueue(some_jobs(1))
                claims = storage.claim(who, "default", 5)
                storage.finalize([Ending(claim, Done()) for claim in claims])
                os.write(acknowledge, b"".join(claim.id.bytes for claim in claims))

        pid = start_child(work)
        os.close(acknowledge)
        heard = b""
        while len(heard) < 160:
            heard += (more := os.read(end, 16))
            assert more, "the child has failed"
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while more := os.read(end, 4096):
            heard += more
        os.close(end)
        told = [UUID(bytes=heard[i : i + 16]) for i in range(0, len(heard) // 16 * 16, 16)]
        found = storage.get(told)
        assert {found[id_].status for id_ in told} == {Status.DONE}
        storage.release(who.pod.id)
        check_whole(path)
