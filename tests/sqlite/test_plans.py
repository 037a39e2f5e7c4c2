"""Plans, the clock and the listener."""

from __future__ import annotations

import threading
from pathlib import Path

import apsw
import pytest

from forge.storage.shared.statements import load_queries
from forge.storage.sqlite import SqliteStorage

from .helpers import in_child, some_jobs

pytestmark = pytest.mark.impl_free

MISLEADING = [  # as if every index but the wrong one found the whole table
    ("forge_job", "forge_job_claim", "1000000 1000000 1000000 1000000 1000000"),
    ("forge_job", "forge_job_line", "1000000 1000000 1000000 1000000 1000000 1000000"),
    ("forge_job", "forge_job_line_due", "1000000 1000000 1000000"),
    ("forge_job", "forge_job_place", "1000000 1000000 1000000"),
    ("forge_job", "forge_job_claimed", "1000000 1"),
    ("forge_job", "forge_job_cancel", "1000000 1"),
    ("forge_job", "sqlite_autoindex_forge_job_1", "1000000 1"),
    ("forge_job_history", "forge_job_history_finished", "1000000 1000000"),
    ("forge_job_history", "forge_job_history_unhappy", "1000000 1000000"),
]
PLANS = {
    "next_priority": ["SEARCH forge_job USING INDEX forge_job_claim (queue=? AND priority>?)"],
    "claim": [
        "SEARCH forge_job USING INTEGER PRIMARY KEY (rowid=?)",
        "SEARCH forge_job USING INDEX forge_job_claim (queue=? AND priority=? AND run_at<?)",
    ],
    "rowids": ["SCAN t VIRTUAL TABLE INDEX 1:", "SEARCH j USING INDEX sqlite_autoindex_forge_job_1 (id=?)"],
    "finalize_done": ["SEARCH forge_job USING INTEGER PRIMARY KEY (rowid=?)"],
    "remove_batch": ["SEARCH forge_job USING INTEGER PRIMARY KEY (rowid=?)"],
    "keep_result": ["SEARCH forge_job_history USING INDEX sqlite_autoindex_forge_job_history_1 (id=?)"],
    "claimed_job": ["SEARCH forge_job USING INDEX sqlite_autoindex_forge_job_1 (id=?)"],
    "progress": ["SEARCH forge_job USING INDEX sqlite_autoindex_forge_job_1 (id=?)"],
    "first_due": ["SEARCH forge_job USING INDEX forge_job_claim (queue=? AND priority=?)"],
    "give_back": ["SEARCH forge_job USING INDEX sqlite_autoindex_forge_job_1 (id=?)"],
    "claims_of_pod": ["SEARCH forge_job USING INDEX forge_job_claimed (claim>? AND claim<?)"],
    "cancel_requests": ["SEARCH forge_job USING INDEX forge_job_cancel (claim>? AND claim<?)"],
    "list_live": ["SEARCH forge_job USING INDEX sqlite_autoindex_forge_job_1 (id<?)"],
    "list_ended": ["SEARCH forge_job_history USING INDEX sqlite_autoindex_forge_job_history_1 (id<?)"],
    "list_unhappy": ["SEARCH forge_job_history USING INDEX forge_job_history_unhappy (id<?)"],
    "first_lined_due": ["SEARCH forge_job USING INDEX forge_job_line_due (queue=?)"],
    "lines_open": ["SEARCH forge_job EXISTS USING INDEX forge_job_line_due (queue=? AND run_at<?)"],
    "next_head": [
        "SEARCH forge_job USING INDEX forge_job_line (queue=? AND line=? AND priority>?)",
        "SEARCH forge_job USING INDEX forge_job_line (queue=? AND line>?)",
    ],
    "places_taken": ["SEARCH forge_job USING COVERING INDEX forge_job_place (concurrency_key=? AND place>?)"],
    "due_in_line": ["SEARCH forge_job USING INDEX forge_job_line (queue=? AND line=? AND priority=? AND run_at<?)"],
    "claim_in_line": ["SEARCH forge_job USING INTEGER PRIMARY KEY (rowid=?)"],
    "prune_walk": ["SEARCH h USING INDEX forge_job_history_finished (finished_at>? AND finished_at<?)"],
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
        assert not [step for step in steps if step.startswith("SCAN forge_job") or "TEMP B-TREE" in step], (name, steps)
        assert [step for step in steps if step in expected] == expected, (name, steps)
    conn.close()


def test_every_statement_can_be_prepared_by_both_libraries(storage: SqliteStorage) -> None:
    with storage._reader.use() as conn:
        (((version,),),) = (conn.rows("select sqlite_version()"),)
        older = tuple(map(int, version.split("."))) < (3, 43)
        for query in load_queries("sqlite"):
            if not (older and query.name == "weigh"):  # there it has a twin
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
