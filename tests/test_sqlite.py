"""What is particular to SQLite: the file, its two libraries, its one writer, forks, kills and plans.

What it has in common with PostgreSQL is tested in tests/storage.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import apsw
import pytest

from forge import fastpath
from forge.errors import ConfigError, DatabaseError, SchemaError, UsageError
from forge.job import Counts, Dead, Deduped, Done, Ending, Enqueued, Failed, JobFilter, NewJob, Receipt, Status
from forge.storage.contract import Plan, run_plan
from forge.storage.sqlite import SqliteStorage, database, rows
from forge.storage.sqlite.database import parse_url
from forge.storage.sqlite.drivers import DRIVERS, Connection, DriverName
from forge.storage.statements import Style, load_queries, migrations

DRIVER_NAMES: tuple[DriverName, ...] = ("apsw", "sqlite3")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "forge.db"


@pytest.fixture(params=DRIVER_NAMES)
def driver(request: pytest.FixtureRequest) -> DriverName:
    name: DriverName = request.param
    return name


@pytest.fixture
def storage(path: Path, driver: DriverName) -> Iterator[SqliteStorage]:
    """An empty, migrated file, opened with each library in turn."""
    with SqliteStorage(f"sqlite:///{path}?driver={driver}") as opened:
        opened.migrate()
        yield opened


@pytest.fixture
def apsw_storage(path: Path) -> Iterator[SqliteStorage]:
    with SqliteStorage(f"sqlite:///{path}") as opened:
        opened.migrate()
        yield opened


def some_jobs(n: int, **changes: Any) -> list[NewJob]:
    return [NewJob(id_, "noop", b'{"n":1}')._replace(**changes) for id_ in fastpath.uuid7_many(n)]


def ids(jobs: Sequence[Any]) -> list[UUID]:
    return [job.id for job in jobs]


def in_child(work: Callable[[], object]) -> int:
    """Fork, do `work` in the child, and answer its wait status: 0 when it returned."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def elsewhere(path: Path, code: str, *args: str) -> str:
    """Run Python in a process of its own, where `conn` is an apsw connection to the file; its output."""
    head = f"import apsw, sys\nconn = apsw.Connection({str(path)!r})\nconn.set_busy_timeout(10_000)\n"
    done = subprocess.run([sys.executable, "-c", head + code, *args], check=True, capture_output=True, text=True)
    return done.stdout.strip()


# The URL


def test_three_slashes_are_relative_and_four_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_url("sqlite:///some/forge.db") == (f"{tmp_path}/some/forge.db", "apsw")
    assert parse_url("sqlite:////var/lib/forge.db") == ("/var/lib/forge.db", "apsw")
    assert parse_url("sqlite:////var/lib/forge.db?driver=sqlite3") == ("/var/lib/forge.db", "sqlite3")
    assert parse_url("sqlite:///100%.db")[0] == f"{tmp_path}/100%.db"


@pytest.mark.parametrize("name", ["with space", "100%25", "a#b", "ü"])
def test_a_path_is_taken_as_it_stands(tmp_path: Path, driver: DriverName, name: str) -> None:
    with SqliteStorage(f"sqlite:///{tmp_path}/{name}.db?driver={driver}") as storage:
        storage.migrate()
    assert (tmp_path / f"{name}.db").exists()


@pytest.mark.parametrize(
    "url",
    ["sqlite://", "sqlite:///", "sqlite:forge.db", "sqlite:///:memory:", "sqlite:///f.db?driver=x", "sqlite:///f.db?mode=ro"],
)
def test_a_url_that_names_no_file_or_an_unknown_option_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="use|the only one"):
        SqliteStorage(url)


# The file


def test_only_its_owner_can_read_the_file_from_its_first_moment(
    path: Path, driver: DriverName, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def spy(where: str, **options: Any) -> Connection:
        seen.append(os.stat(where).st_mode & 0o777)
        return real(where, **options)

    real = DRIVERS[driver]
    monkeypatch.setattr(database, "DRIVERS", {driver: spy})
    before = os.umask(0)
    try:
        with SqliteStorage(f"sqlite:///{path}?driver={driver}") as storage:
            storage.migrate()
            storage.enqueue(some_jobs(1))
            storage.counts()
            modes = {name.name: name.stat().st_mode & 0o777 for name in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert seen == [0o600, 0o600]
    assert modes == {"forge.db": 0o600, "forge.db-wal": 0o600, "forge.db-shm": 0o600}


def test_a_file_that_is_there_keeps_its_mode(path: Path) -> None:
    path.touch(0o640)
    path.chmod(0o640)
    with SqliteStorage(f"sqlite:///{path}") as storage:
        storage.migrate()
    assert path.stat().st_mode & 0o777 == 0o640


def test_every_commit_reaches_the_disk_through_the_log(storage: SqliteStorage) -> None:
    for handle in (storage._writer, storage._reader):
        with handle.use() as conn:
            assert conn.rows("pragma journal_mode") == [("wal",)]
            assert conn.rows("pragma synchronous") == [(2,)]


@pytest.mark.parametrize(
    "verb",
    [
        lambda storage: storage.check_schema(),
        lambda storage: storage.enqueue(some_jobs(1)),
        lambda storage: storage.counts(),
        lambda storage: storage.listen().wait(0),
    ],
    ids=["check_schema", "enqueue", "counts", "listen"],
)
def test_a_missing_file_is_not_made_but_said(path: Path, driver: DriverName, verb: Callable[[Any], object]) -> None:
    storage = SqliteStorage(f"sqlite:///{path}?driver={driver}")
    with pytest.raises(SchemaError, match="forge db migrate"):
        verb(storage)
    assert storage.schema_state().current == 0
    assert not path.exists()


def test_an_empty_file_has_no_schema(path: Path, driver: DriverName) -> None:
    path.touch()
    with SqliteStorage(f"sqlite:///{path}?driver={driver}") as storage:
        for verb in (storage.check_schema, storage.counts, lambda: storage.enqueue(some_jobs(1))):
            with pytest.raises(SchemaError, match="run: forge db migrate"):
                verb()


def test_a_schema_from_the_future_says_to_upgrade(apsw_storage: SqliteStorage, path: Path) -> None:
    elsewhere(path, "conn.execute(\"insert into migration values (7, 'later', 0)\")")
    with pytest.raises(SchemaError, match="this release knows schema 1, the database has 7: upgrade forge"):
        apsw_storage.check_schema()


def test_a_file_that_is_no_database_is_one_line(path: Path, driver: DriverName) -> None:
    path.write_text("to be or not to be, that is the question\n" * 50)
    with SqliteStorage(f"sqlite:///{path}?driver={driver}") as storage:
        with pytest.raises(DatabaseError, match="not a database") as caught:
            storage.migrate()
        assert "\n" not in str(caught.value)


def test_a_path_in_no_folder_is_one_line(tmp_path: Path) -> None:
    with SqliteStorage(f"sqlite:///{tmp_path}/no/where.db") as storage, pytest.raises(DatabaseError, match="cannot create"):
        storage.migrate()


def test_a_full_disk_is_an_error_and_nothing_happened(apsw_storage: SqliteStorage) -> None:
    with apsw_storage._writer.use() as conn:
        conn.rows("pragma max_page_count = 30")
    with pytest.raises(DatabaseError, match="full; free some space"):
        apsw_storage.enqueue(some_jobs(5000))
    (job,) = some_jobs(1)
    assert apsw_storage.enqueue([job]) == [Enqueued(job.id)]
    assert apsw_storage.counts() == {"default": Counts(pending=1, oldest_pending_age=pytest.approx(0, abs=60))}


# The schema


def test_ten_processes_may_migrate_at_once(path: Path, driver: DriverName) -> None:
    ready, go = os.pipe(), os.pipe()

    def migrate() -> None:
        os.write(ready[1], b".")
        os.read(go[0], 1)
        with SqliteStorage(f"sqlite:///{path}?driver={driver}") as storage:
            os.write(ready[1], b"!" if storage.migrate() else b"-")
            storage.enqueue(some_jobs(3))

    children = []
    for _ in range(10):
        if (pid := os.fork()) == 0:
            try:
                migrate()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(pid)
    for _ in children:
        os.read(ready[0], 1)
    os.write(go[1], b"." * 10)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 10
    assert sorted(os.read(ready[0], 100)) == sorted(b"!---------")
    with SqliteStorage(f"sqlite:///{path}?driver={driver}") as storage:
        storage.check_schema()
        assert storage.counts()["default"].pending == 30
    for fd in (*ready, *go):
        os.close(fd)


def test_a_migration_that_fails_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ((1, "jobs", "create table job (id);\ncreate table job (id);"),)
    monkeypatch.setattr("forge.storage.sqlite.schema.migrations", lambda _: broken)
    with SqliteStorage(f"sqlite:///{path}") as storage:
        with pytest.raises(DatabaseError):
            storage.migrate()
        with storage._reader.use() as conn:
            assert conn.rows("select name from sqlite_master") == []


def test_migrations_are_cut_into_whole_statements() -> None:
    from forge.storage.sqlite.schema import _statements

    for _, _, sql in migrations("sqlite"):
        cut = list(_statements(sql))
        assert "\n".join(cut).strip() == sql.strip()
        assert all(sqlite3.complete_statement(statement) for statement in cut)


# Two libraries


def test_a_job_lives_and_ends_the_same_with_either_library(storage: SqliteStorage) -> None:
    who = storage.register("ada", ["default"], "north", 1)
    plain, keyed, bad = some_jobs(1) + some_jobs(1, dedupe_key="k", keep_result=60) + some_jobs(1, max_attempts=1)
    again = keyed._replace(id=fastpath.uuid7())
    assert storage.enqueue([plain]) == [Enqueued(plain.id)]
    assert storage.enqueue([keyed, again, bad, plain]) == [
        Enqueued(keyed.id), Deduped(keyed.id), Enqueued(bad.id), Enqueued(plain.id)
    ]  # fmt: skip
    claims = storage.claim(who, "default", 5)
    assert ids(claims) == ids([plain, keyed, bad])
    outcomes = [(Done(), None), (Done(), b"[1,2]"), (Failed("no"), None)]
    endings = [Ending(claim, outcome, result=result) for claim, (outcome, result) in zip(claims, outcomes, strict=True)]
    assert storage.finalize(endings) == []
    assert storage.finalize(endings) == endings
    found = storage.get(ids([plain, keyed, bad]))
    assert [found[job.id].status for job in (plain, keyed, bad)] == [Status.DONE, Status.DONE, Status.DEAD]
    assert found[keyed.id].result == [1, 2]
    assert found[bad.id].last_error == "no"
    assert storage.retry([bad.id]) == {bad.id}
    assert storage.cancel([bad.id, plain.id]) == {bad.id: "cancelled", plain.id: "ended"}
    assert len(storage.find(JobFilter(statuses=frozenset({Status.CANCELLED}))).jobs) == 1
    assert storage.delete([bad.id]) == {bad.id: "deleted"}


def test_a_storage_that_is_not_open_yet_adopts_the_callers_library(path: Path, apsw_storage: SqliteStorage) -> None:
    apsw_storage.close()
    storage = SqliteStorage(f"sqlite:///{path}")
    storage.adopt_driver("sqlite3")
    storage.enqueue(some_jobs(1))
    with storage._writer.use() as conn:
        assert isinstance(conn, DRIVERS["sqlite3"])
    storage.adopt_driver("sqlite3")
    storage.close()


def test_an_open_storage_refuses_the_other_library_and_says_what_to_do(storage: SqliteStorage, driver: DriverName) -> None:
    other: DriverName = "sqlite3" if driver == "apsw" else "apsw"
    storage.adopt_driver(driver)
    with pytest.raises(UsageError, match="two SQLite libraries in one process cancel each other's file locks; pass a") as caught:
        storage.adopt_driver(other)
    assert "\n" not in str(caught.value)
    storage.enqueue(some_jobs(1))
    storage.close()
    storage.adopt_driver(other)
    assert storage.counts()["default"].pending == 1


def test_two_storages_of_one_process_cannot_use_two_libraries_on_one_file(storage: SqliteStorage, path: Path) -> None:
    with storage._writer.use() as conn:
        other = "sqlite3" if isinstance(conn, DRIVERS["apsw"]) else "apsw"
    with SqliteStorage(f"sqlite:///{path}?driver={other}") as second:
        with pytest.raises(UsageError, match="two SQLite libraries"):
            second.counts()
        storage.close()
        assert second.counts() == {}


# The plan on a connection of the caller's


def drive(conn: sqlite3.Connection, plan: Plan, style: Literal["named", "qmark", "format"]) -> list[Receipt]:
    def execute(step: Any) -> list[Any]:
        text: str = step.query.text(style)
        if style == "named":
            return conn.execute(text, step.params).fetchall()
        args = step.query.args(style, step.params)
        return conn.execute(text.replace("%s", "?").replace("%%", "%"), args).fetchall()  # as Django does

    return run_plan(plan, execute)


@pytest.mark.parametrize("style", ["named", "qmark", "format"])
@pytest.mark.parametrize("commit", [True, False])
def test_a_plan_runs_in_the_transaction_that_sqlite3_begins_by_itself(
    path: Path, apsw_storage: SqliteStorage, style: Literal["named", "qmark", "format"], commit: bool
) -> None:
    apsw_storage.close()
    storage = SqliteStorage(f"sqlite:///{path}")
    storage.adopt_driver("sqlite3")
    plain, first = some_jobs(1) + some_jobs(1, dedupe_key="k")
    second, third, fourth = (
        some_jobs(1, dedupe_key="k", on_conflict=word, delay=500.0, payload=b"[2]")[0] for word in ("keep", "replace", "push")
    )
    conn = sqlite3.connect(path)
    receipts = drive(conn, storage.enqueue_plan([first, plain, second, third, fourth, plain, first]), style)
    assert conn.in_transaction
    assert receipts == [Enqueued(first.id), Enqueued(plain.id), *[Deduped(first.id)] * 3, Enqueued(plain.id), Enqueued(first.id)]
    assert storage.get(ids([first, plain])) == {}
    if commit:
        conn.commit()
    else:
        conn.rollback()
    conn.close()
    found = storage.get(ids([first, plain]))
    if commit:
        assert found[first.id].payload == [2]
        assert (found[first.id].run_at - found[plain.id].run_at).total_seconds() == 500
        assert len(found) == 2
    else:
        assert found == {}
        assert storage.enqueue([second]) == [Enqueued(second.id)]
    storage.close()


@pytest.mark.parametrize("keyed", [True, False])
def test_a_plan_starts_by_writing_so_that_it_waits_instead_of_being_refused(
    apsw_storage: SqliteStorage, keyed: bool
) -> None:
    plan = apsw_storage.enqueue_plan(some_jobs(1, dedupe_key="k" if keyed else None))
    assert next(plan).query.sql.startswith("insert ")


def test_bulk_parameters_stand_in_the_order_of_their_question_marks() -> None:
    query = load_queries("sqlite").insert_job
    (job,) = some_jobs(1, tags=("a", "b"), delay=3.0, queue="q", priority=4, dedupe_key="k", unique_for=5, keep_result=6)
    values = rows.job_params(job, 1_000_000)
    named = dict(zip(rows.JOB_PARAMS, values, strict=False))
    style: Style = "qmark"
    assert query.args(style, named) == values
    assert (named["id"], named["run_at"], named["now"], named["tags"]) == (job.id.bytes, 4_000_000, 1_000_000, '["a","b"]')


# One writer at a time


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


def test_patience_has_an_end_with_a_sentence(
    storage: SqliteStorage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PATIENCE", 0.01)
    with SqliteStorage(storage.url) as other, other._writer.writing():
        with pytest.raises(DatabaseError, match="another program has kept it locked"):
            storage.enqueue(some_jobs(1))
    assert storage.enqueue(some_jobs(1))


def test_threads_and_processes_write_together_and_nothing_says_locked(storage: SqliteStorage) -> None:
    def produce() -> None:
        for _ in range(15):
            storage.enqueue(some_jobs(2))

    def produce_in_child() -> None:
        assert in_child(produce) == 0

    failed: list[BaseException] = []
    threading.excepthook, before = lambda args: failed.append(args.exc_value), threading.excepthook  # type: ignore[arg-type, return-value]
    try:
        threads = [threading.Thread(target=work) for work in [produce] * 4 + [produce_in_child] * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.excepthook = before
    assert failed == []
    assert storage.counts()["default"].pending == 8 * 15 * 2


def test_an_interrupted_transaction_leaves_the_connection_usable(storage: SqliteStorage) -> None:
    with pytest.raises(KeyboardInterrupt), storage._writer.writing() as conn:
        conn.rows("insert into queue (name) values ('half')")
        raise KeyboardInterrupt
    assert storage.queues() == {}
    assert storage.set_queue("whole").name == "whole"


# Forks


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

    pid = os.fork()
    if pid == 0:
        work()
        os._exit(1)
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


def test_a_connection_inherited_in_spite_of_all_is_left_alone(storage: SqliteStorage) -> None:
    """A fork made by C code runs no hooks: then only the process number tells."""
    storage.enqueue(some_jobs(1))
    with storage._writer.use() as inherited:
        pass
    storage._writer._pid -= 1
    storage.enqueue(some_jobs(1))
    with storage._writer.use() as conn:
        assert conn is not inherited
    inherited.close()
    assert storage.counts()["default"].pending == 2


def test_a_fork_does_not_wait_forever_for_a_thread_that_does_not_come_out(
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
    status = in_child(lambda: storage.enqueue(some_jobs(1)) and storage.counts())
    leave.set()
    thread.join()
    assert status == 0
    assert storage.counts()["default"].pending == 1


def test_a_closed_storage_that_is_gone_is_forgotten(path: Path) -> None:
    storage = SqliteStorage(f"sqlite:///{path}")
    key = id(storage._writer)
    assert key in database._handles
    del storage
    assert key not in database._handles


# kill -9


class Killed:
    """A connection whose process dies right after its `at`-th statement."""

    def __init__(self, conn: Connection, at: int) -> None:
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
            storage._writer._conn = Killed(conn, at)  # type: ignore[assignment]
        verb()

    status = in_child(work)
    assert status in (0, signal.SIGKILL)
    return status == signal.SIGKILL


def check_whole(path: Path) -> None:
    """No job in two places, each key with the job that has it, and a sound file."""
    found = elsewhere(
        path,
        "print(*conn.execute('pragma integrity_check').fetchone(),"
        "conn.execute('select count(*) from job where id in (select id from job_history)').get,"
        "conn.execute(\"select count(*) from job where (status = 'in_progress') <> (claim is not null)\").get,"
        "conn.execute('select count(*) from job_key k full join (select * from job where dedupe_key is not null) j"
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
    assert at > 6
    check_whole(path)


def test_kill_within_a_finalize_ends_all_or_nothing(storage: SqliteStorage, path: Path) -> None:
    who = storage.register("ada", ["default"], "north", 1)
    for at in range(1, 100):
        jobs = [*some_jobs(4, keep_result=9), *some_jobs(1, dedupe_key=f"d{at}"), *some_jobs(1, dedupe_key=f"e{at}")]
        storage.enqueue(jobs)
        claims = storage.claim(who, "default", 6)
        outcomes = [Done(), Done(), Failed("later"), Dead("no"), Done(), Dead("no")]
        endings = [Ending(c, o, 500.0, result=b"1" if i else None) for i, (c, o) in enumerate(zip(claims, outcomes, strict=True))]
        killed = die_within(storage, at, lambda endings=endings: storage.finalize(endings))  # type: ignore[misc]
        found = storage.get(ids(jobs))
        ended = [found[job.id].status for job in jobs]
        before = [Status.IN_PROGRESS] * 6
        after = [Status.DONE, Status.DONE, Status.FAILED, Status.DEAD, Status.DONE, Status.DEAD]
        assert ended in ([before, after] if killed else [after])
        assert storage.finalize(endings) == (endings if ended == after else [])
        if not killed:
            break
    assert at > 12
    check_whole(path)


def test_what_was_acknowledged_before_a_kill_is_kept(storage: SqliteStorage, path: Path) -> None:
    """A worker is killed wherever it is when its tenth acknowledgement arrives, four times over."""
    who = storage.register("ada", ["default"], "north", 1)
    for _ in range(4):
        end, acknowledge = os.pipe()
        pid = os.fork()
        if pid == 0:
            while True:
                (job,) = some_jobs(1)
                storage.enqueue([job])
                claims = storage.claim(who, "default", 5)
                storage.finalize([Ending(claim, Done()) for claim in claims])
                os.write(acknowledge, b"".join(claim.id.bytes for claim in claims))
        os.close(acknowledge)
        heard = b""
        while len(heard) < 160:
            heard += os.read(end, 16)
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


# Plans


MISLEADING = [  # as if every index but the wrong one found the whole table
    ("job", "job_claim", "1000000 1000000 1000000 1000000 1000000"),
    ("job", "job_claimed", "1000000 1"),
    ("job", "job_cancel", "1000000 1"),
    ("job", "sqlite_autoindex_job_1", "1000000 1"),
    ("job_history", "job_history_finished", "1000000 1000000"),
    ("job_history", "job_history_unhappy", "1000000 1000000"),
]
PLANS = {
    "next_priority": ["SEARCH job USING COVERING INDEX job_claim (queue=? AND priority>?)"],
    "claim": [
        "SEARCH job USING INTEGER PRIMARY KEY (rowid=?)",
        "SEARCH job USING COVERING INDEX job_claim (queue=? AND priority=? AND run_at<?)",
    ],
    "finalize_done": ["SCAN t VIRTUAL TABLE INDEX 1:", "SEARCH j USING INDEX sqlite_autoindex_job_1 (id=?)"],
    "finalize_done_result": ["SEARCH job USING INDEX sqlite_autoindex_job_1 (id=?)"],
    "remove_batch": [
        "SEARCH job USING INTEGER PRIMARY KEY (rowid=?)",
        "SCAN t VIRTUAL TABLE INDEX 1:",
        "SEARCH j USING INDEX sqlite_autoindex_job_1 (id=?)",
    ],
    "claimed_job": ["SEARCH job USING INDEX sqlite_autoindex_job_1 (id=?)"],
    "give_back": ["SEARCH job USING INDEX sqlite_autoindex_job_1 (id=?)"],
    "claims_of_pod": ["SEARCH job USING INDEX job_claimed (claim>? AND claim<?)"],
    "cancel_requests": ["SEARCH job USING INDEX job_cancel (claim>? AND claim<?)"],
    "list_live": ["SEARCH job USING INDEX sqlite_autoindex_job_1 (id<?)"],
    "list_ended": ["SEARCH job_history USING INDEX sqlite_autoindex_job_history_1 (id<?)"],
    "list_unhappy": ["SEARCH job_history USING INDEX job_history_unhappy (id<?)"],
    "prune_walk": ["SEARCH h USING INDEX job_history_finished (finished_at>? AND finished_at<?)"],
}


@pytest.mark.parametrize("statistics", ["none", "of an empty table", "misleading"])
def test_hot_statements_go_by_their_index_whatever_the_statistics_say(
    apsw_storage: SqliteStorage, path: Path, statistics: str
) -> None:
    apsw_storage.close()
    conn = apsw.Connection(str(path))
    if statistics != "none":
        conn.execute("analyze")
    if statistics == "misleading":
        conn.executemany("insert into sqlite_stat1 values (?, ?, ?)", MISLEADING)
    conn.close()
    conn = apsw.Connection(str(path))
    queries = load_queries("sqlite")
    for name, expected in PLANS.items():
        query = getattr(queries, name)
        found = conn.execute(f"explain query plan {query.sql}", dict.fromkeys(query.names, 1)).fetchall()
        steps = [str(row[3]) for row in found]
        assert not [step for step in steps if step.startswith("SCAN job") or "TEMP B-TREE" in step], (name, steps)
        assert [step for step in steps if "job" in step or " j " in step or " t " in step or " h " in step][: len(expected)] == (
            expected
        ), name
    conn.close()


def test_every_statement_can_be_prepared_by_both_libraries(storage: SqliteStorage) -> None:
    with storage._reader.use() as conn:
        for query in load_queries("sqlite"):
            conn.rows(f"explain {query.sql}", dict.fromkeys(query.names, 1))


def test_a_claim_reads_only_what_is_due(apsw_storage: SqliteStorage) -> None:
    """Scheduled jobs of a better priority and jobs of other queues are hopped over, not read."""
    apsw_storage.enqueue(some_jobs(3000, delay=1e6) + some_jobs(3000, queue="other") + some_jobs(20, priority=5))
    who = apsw_storage.register("ada", ["default"], "north", 1)
    with apsw_storage._writer.use() as conn:
        inner = conn._conn  # type: ignore[attr-defined]
        steps = 0

        def count() -> bool:
            nonlocal steps
            steps += 1
            return False

        inner.set_progress_handler(count, 1)
    claims = apsw_storage.claim(who, "default", 20)
    assert len(claims) == 20
    assert steps < 5000, "virtual machine steps"


# The clock and the listener


def test_time_is_what_the_clock_says(path: Path) -> None:
    now = 1_000_000.25
    with SqliteStorage(f"sqlite:///{path}", clock=lambda: now) as storage:
        storage.migrate()
        who = storage.register("ada", ["default"], "north", 1)
        storage.enqueue(some_jobs(1, delay=60.0))
        assert storage.claim(who, "default", 1) == []
        assert storage.now() == now
        now += 60
        (claim,) = storage.claim(who, "default", 1)
        assert claim.run_at == 1_000_060_250_000
        assert storage.reap(stale=60.0).pods == []
        now += 1
        assert storage.reap(stale=60.0).pods == [who.pod.id]


def test_a_listener_wakes_up_at_any_commit_and_at_nothing_else(storage: SqliteStorage) -> None:
    who = storage.register("ada", ["default"], "north", 1)
    listener = storage.listen()
    assert listener.wait(0) == {"*"}, "something may have been missed before"
    storage.claim(who, "default", 1)
    assert listener.wait(0) == set(), "an empty claim commits nothing"
    assert in_child(lambda: storage.enqueue(some_jobs(1))) == 0
    assert listener.wait(10) == {"*"}
    thread = threading.Thread(target=storage.enqueue, args=(some_jobs(1),))
    thread.start()
    assert listener.wait(10) == {"*"}
    thread.join()
    listener.close()
    assert listener.wait(10) == set()


def test_closing_a_listener_ends_its_wait(storage: SqliteStorage) -> None:
    listener = storage.listen()
    listener.wait(0)
    answers: list[set[str]] = []
    thread = threading.Thread(target=lambda: answers.append(listener.wait(60)))
    thread.start()
    listener.close()
    thread.join()
    assert answers == [set()]
