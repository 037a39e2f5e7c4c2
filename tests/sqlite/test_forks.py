"""Many writers, and what a fork does to connections."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forge.errors import DatabaseError
from forge.storage.sqlite import SqliteStorage, database

from .helpers import elsewhere, in_child, some_jobs, start_child

pytestmark = pytest.mark.impl_free


def test_a_writer_waits_for_another_process_and_nothing_says_locked(storage: SqliteStorage, path: Path) -> None:
    code = "conn.execute('begin immediate'); print('held', flush=True); sys.stdin.readline(); conn.execute('commit')"
    head = f"import apsw, sys\nconn = apsw.Connection({str(path)!r})\n"
    with subprocess.Popen(
        [sys.executable, "-c", head + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        waiting = [threading.Thread(target=storage.enqueue, args=(some_jobs(1),)) for _ in range(3)]
        for thread in waiting:
            thread.start()
        assert storage.counts() == {}, "a reader does not wait for a writer"
        assert all(thread.is_alive() for thread in waiting)
        holder.stdin.write("go\n")
        holder.stdin.flush()
        for thread in waiting:
            thread.join()
    assert storage.counts()["default"].pending == 3


def test_patience_has_an_end_with_a_sentence(storage: SqliteStorage) -> None:
    refused = pytest.raises(DatabaseError, match="another program has kept it locked")
    with SqliteStorage(storage.url, timeout=0.05) as hasty:
        with storage._writer.writing(), refused:
            hasty.enqueue(some_jobs(1))
        assert hasty.enqueue(some_jobs(1))


def test_threads_and_processes_write_together_and_nothing_says_locked(storage: SqliteStorage) -> None:
    def produce() -> None:
        for _ in range(15):
            storage.enqueue(some_jobs(2))

    def produce_in_child() -> None:
        assert in_child(produce) == 0

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(work) for work in [produce, produce_in_child] * 4]
    assert [future.exception() for future in futures] == [None] * 8
    assert storage.counts()["default"].pending == 8 * 15 * 2


def test_an_interrupted_transaction_leaves_the_connection_usable(storage: SqliteStorage) -> None:
    def interrupted() -> None:
        with storage._writer.writing() as (conn, _):
            conn.rows("insert into forge_queue (name) values ('half')")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert storage.queues() == {}
    assert storage.set_queue("whole").name == "whole"


def test_both_sides_of_a_fork_go_on_working(storage: SqliteStorage) -> None:
    storage.enqueue(some_jobs(1))
    storage.counts()
    assert in_child(lambda: storage.enqueue(some_jobs(2))) == 0
    storage.enqueue(some_jobs(4))
    assert storage.counts()["default"].pending == 7


def test_what_a_child_writes_after_its_parent_has_closed_is_kept(storage: SqliteStorage) -> None:
    """Lost if the child relies on locks that only its parent held: the parent's close then deletes the log."""
    storage.enqueue(some_jobs(1))
    go, done = os.pipe(), os.pipe()

    def work() -> None:
        storage.enqueue(some_jobs(2))
        os.write(done[1], b".")
        os.read(go[0], 1)
        storage.enqueue(some_jobs(4))
        os.kill(os.getpid(), signal.SIGKILL)

    pid = start_child(work)
    os.read(done[0], 1)
    assert storage.counts()["default"].pending == 3
    storage.close()
    os.write(go[1], b".")
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert storage.counts()["default"].pending == 7
    for fd in (*go, *done):
        os.close(fd)


def test_a_fork_in_the_middle_of_another_threads_work_harms_neither(storage: SqliteStorage, path: Path) -> None:
    stop = threading.Event()
    written = 0

    def produce() -> None:
        nonlocal written
        while not stop.is_set():
            storage.enqueue(some_jobs(3))
            written += 3

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        statuses = [in_child(lambda: storage.enqueue(some_jobs(2))) for _ in range(12)]
    finally:
        stop.set()
        thread.join()
    assert statuses == [0] * 12
    assert storage.counts()["default"].pending == written + 24
    storage.close()
    assert elsewhere(path, "print(*conn.execute('pragma integrity_check').fetchone())") == "ok"


def test_a_child_forked_without_hooks_refuses_the_file_and_leaves_the_connection_alone(storage: SqliteStorage) -> None:
    """A fork made by C code runs no hooks: then only the process number tells."""
    storage.enqueue(some_jobs(1))
    with storage._writer.use() as inherited:
        pass
    storage._writer._pid -= 1
    for verb in (lambda: storage.enqueue(some_jobs(1)), storage.counts, lambda: storage.listen().wait(0)):
        with pytest.raises(DatabaseError, match="close the storage before the fork"):
            verb()
    assert inherited.rows("select count(*) from forge_job") == [(1,)]
    inherited.close()


def test_a_child_of_a_fork_that_could_not_wait_any_longer_refuses_the_file(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "FORK_PATIENCE", 0.01)
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with storage._reader.use():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()

    def refused() -> None:
        with pytest.raises(DatabaseError, match="close the storage before the fork"):
            storage.enqueue(some_jobs(1))

    status = in_child(refused)
    leave.set()
    thread.join()
    assert status == 0
    assert storage.enqueue(some_jobs(1))


def test_a_fork_from_within_a_verb_does_not_wait_for_itself(storage: SqliteStorage) -> None:
    """As a signal handler may do."""
    with storage._writer.writing() as (conn, _):
        assert in_child(lambda: None) == 0
        assert conn.change("insert into forge_queue (name) values ('q')") == 1
    assert list(storage.queues()) == ["q"]


def test_a_closed_storage_that_is_gone_is_forgotten(path: Path) -> None:
    storage = SqliteStorage(f"sqlite:///{path}")
    key = id(storage._writer)
    assert key in database._handles
    del storage
    assert key not in database._handles
