"""Through PgBouncer in transaction mode, where two statements of one client may meet two servers (PostgreSQL)."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from forge.errors import DatabaseError, LostLease
from forge.job import Claim, Deduped, Done, Ending, Enqueued, JobFilter, NewJob, Receipt, Status
from forge.storage import Storage, open_storage
from forge.storage.contract import LowWater, Pruned, RowsLocked, Want
from forge.storage.contract.leases import Holder

from .helpers import check_whole, full_job, ids, plain_job, plain_jobs, told

pytestmark = pytest.mark.impl_free

THREADS = 8
SETTINGS = """
[databases]
* = host={server}
[pgbouncer]
unix_socket_dir = {folder}
listen_port = 6432
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 2
logfile = {folder}/log
pidfile = {folder}/pid
"""


def find_binary() -> str:
    binary = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if binary is None and os.environ.get("CI") == "true":
        pytest.fail("pgbouncer is not installed; CI must have it: apt-get install pgbouncer")
    if binary is None:
        pytest.skip("pgbouncer is not installed; to run this: apt-get install pgbouncer")
    return binary


def answers(path: Path) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))
        return True
    return False


@pytest.fixture(scope="module")
def through(pg_server: str) -> Iterator[Callable[[str], str]]:
    """Makes the URL that leads to a database through a pooler with two connections."""
    binary = find_binary()
    server = str(conninfo_to_dict(pg_server)["host"])
    owner = pwd.getpwuid(os.stat(server).st_uid)  # the only one who may enter the folder of the server's socket
    folder = Path(tempfile.mkdtemp(prefix="forge-pb-"))
    (folder / "ini").write_text(SETTINGS.format(server=server, folder=folder))
    (folder / "users").write_text('"postgres" ""\n')
    root = os.geteuid() == 0  # as which pgbouncer refuses to run
    if root:
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    command = [binary, *(["-u", owner.pw_name] if root else []), str(folder / "ini")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not answers(folder / ".s.PGSQL.6432"):  # the file is there before anybody listens
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.01)
        yield (
            lambda url: f"postgresql://postgres@/{conninfo_to_dict(url)['dbname']}?host={quote(str(folder))}&port=6432"
        )
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder)


@pytest.fixture
def storage(through: Callable[[str], str], pg_url: str) -> Iterator[Storage]:
    """A storage of eight connections behind a pooler of two."""
    with open_storage(through(pg_url), pool_size=THREADS) as storage:
        yield storage


def test_the_pooler_is_in_between_and_swaps_servers(through: Callable[[str], str], pg_url: str) -> None:
    with psycopg.connect(through(pg_url), autocommit=True) as first, psycopg.connect(through(pg_url)) as second:
        second.execute("select 1")
        busy = first.execute("select pg_backend_pid()").fetchone()
        assert busy is not None
        assert busy[0] != first.info.backend_pid


def test_migrations_run_through_the_pooler(through: Callable[[str], str], empty_pg_url: str) -> None:
    with open_storage(through(empty_pg_url)) as storage:
        assert storage.schema_state().current == 0
        assert storage.migrate() != []
        assert storage.migrate() == []
        storage.check_schema()
        new = full_job()
        assert told(storage.enqueue([new])) == told([Enqueued(new.id)])


def test_eight_threads_do_everything_through_two_connections(storage: Storage, pg_url: str) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        lots = list(pool.map(lambda number: live(storage, number), range(THREADS)))
    jobs = [job for lot in lots for job in lot]
    assert {job.status for job in storage.get(ids(jobs)).values()} == {Status.DONE}
    assert storage.ended_counts() == {f"q{n}": {Status.DONE: len(lots[n])} for n in range(THREADS)}
    assert storage.counts() == {}
    check_whole(pg_url)


def live(storage: Storage, number: int) -> list[NewJob]:
    """One thread's work in a queue of its own: all verbs of the hot path, several times; the jobs it ran."""
    queue, water = f"q{number}", LowWater()
    who = storage.register(f"pod-{number}", [queue], "here", number)
    made: list[NewJob] = []
    claims: list[Claim] = []
    for turn in range(8):
        jobs = [plain_job(queue), full_job(queue=queue, dedupe_key=f"{number}-{turn}"), *plain_jobs(30, queue)]
        storage.enqueue(jobs[:2])
        storage.enqueue(jobs[2:])
        made += jobs
        again = full_job(queue=queue, dedupe_key=f"{number}-{turn}", on_conflict="replace")
        assert told(storage.enqueue([again])) == told([Deduped(jobs[1].id)])
        stale, claims = storage.exchange(who, [Ending(c, Done()) for c in claims], [Want(queue, 20, water)])
        assert stale == []
        more = storage.claim(who, queue, 20, water)
        assert storage.finalize([Ending(claim, Done()) for claim in more]) == []
        assert storage.beat(who)
        assert storage.find(JobFilter(queues=[queue]), 5).jobs[0].queue == queue
    while claims:
        stale, claims = storage.exchange(who, [Ending(c, Done()) for c in claims], [Want(queue, 50, LowWater())])
        assert stale == []
    return made


def test_a_key_raced_for_through_the_pooler_is_won_once(storage: Storage) -> None:
    def produce(_: int) -> Receipt:
        return storage.enqueue([full_job(dedupe_key="the key")])[0]

    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(produce, range(4 * THREADS)))
    (winner,) = [answer for answer in answers if isinstance(answer, Enqueued)]
    assert [answer.id for answer in answers if isinstance(answer, Deduped)] == [winner.id] * (4 * THREADS - 1)


def test_operators_verbs_work_through_the_pooler(storage: Storage) -> None:
    who = storage.register("ada", ["letters"], "north", 4711)
    jobs = plain_jobs(40)
    for _ in range(8):  # often enough that a driver would have prepared its statements
        storage.enqueue(jobs)
        assert set(storage.cancel(ids(jobs)).values()) == {"cancelled"}
        assert storage.retry(ids(jobs)) == set(ids(jobs))
        assert len(storage.claim(who, "letters", 40)) == 40
        assert storage.release(who.pod.id) == 40
        assert storage.set_queue("letters", max_workers=3).max_workers == 3
        assert storage.delete(ids(jobs)) == dict.fromkeys(ids(jobs), "deleted")
    storage.prune()
    storage.reap()
    assert storage.deregister(who) == 0


def test_wake_ups_come_past_the_pooler(through: Callable[[str], str], pg_url: str) -> None:
    with open_storage(through(pg_url), listen_url=pg_url) as storage:
        listener = storage.listen()
        assert listener.wait(0) == {"*"}
        storage.enqueue([plain_job()])
        assert listener.wait(10) == {"letters"}
        listener.close()


def test_the_new_verbs_work_through_the_pooler(storage: Storage) -> None:
    who = storage.register("ada", ["letters"], "north", 4711)
    for _ in range(8):
        storage.enqueue(plain_jobs(2))
        first, second = storage.claim(who, "letters", 2)
        storage.progress([(first.id, first.token, 50.0, "half")])
        assert (storage.get([first.id])[first.id].progress or {})["percent"] == 50
        storage.cancel([second.id])
        assert storage.pulse(who) == (True, [(second.id, second.token)])
        assert storage.next_due(["letters"]) is None
        child = full_job(queue="parcels")
        assert storage.finalize([Ending(first, Done(), children=(child,))]) == []
        with storage.connect() as conn:
            assert storage.complete_in(conn, Ending(second, Done(), children=(plain_job("parcels"),)))
    assert storage.counts()["parcels"].pending == 16


def test_timeouts_hold_through_the_pooler_and_stay_with_those_who_asked(
    through: Callable[[str], str], pg_url: str, storage: Storage
) -> None:
    with open_storage(through(pg_url), timeout=0.3) as hasty, psycopg.connect(pg_url) as other:
        term = hasty.leases.acquire(Holder("a", None, "here", 1), 60.0).term
        assert term is not None and hasty.leases.renew(term, Holder("a", None, "here", 1), 60.0)
        who = hasty.register("ada", ["letters"], "north", 4711)
        hasty.enqueue([full_job(), full_job()])
        assert len(hasty.claim(who, "letters", 2)) == 2
        assert hasty.release(who.pod.id) == 2
        assert hasty.prune(term=term) == Pruned(0, 0, None)
        hasty.leases.release(term)
        with pytest.raises(LostLease):
            hasty.prune(term=term)
        other.execute("lock table forge.queue in access exclusive mode")
        with pytest.raises(DatabaseError, match=r"took more than 0\.3 s"):
            hasty.set_queue("letters")
    with psycopg.connect(through(pg_url)) as next_one:
        for _ in range(4):
            assert next_one.execute("show statement_timeout").fetchone() == ("0",)
            next_one.commit()


def test_a_locked_row_is_not_waited_for_for_long(storage: Storage, pg_url: str) -> None:
    who = storage.register("ada", ["letters"], "north", 4711)
    storage.enqueue(plain_jobs(2))
    endings = [Ending(claim, Done()) for claim in storage.claim(who, "letters", 2)]
    with psycopg.connect(pg_url) as somebody:
        somebody.execute("select from forge.job where id = %s for update", (endings[0].claim.id,))
        with pytest.raises(RowsLocked):
            storage.finalize(endings, lock_wait=0.05)
        assert storage.locked(endings) == [endings[0]]
        assert storage.finalize(endings[1:], lock_wait=0.05) == []
        storage.try_writing(1000)
        somebody.rollback()
    assert storage.finalize(endings[:1], lock_wait=0.05) == []
