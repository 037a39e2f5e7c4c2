"""What a pod asks of its queues every second must not grow with the square of their number."""

from __future__ import annotations

import apsw
import psycopg
import pytest

from forge.storage import Storage
from forge.storage.contract import Incarnation
from forge.storage.shared.statements import load_queries
from forge.storage.sqlite import SqliteStorage

from .helpers import is_sqlite, sql

pytestmark = pytest.mark.impl_free


def declare(storage: Storage, url: str, who: Incarnation, queues: int) -> dict[str, int]:
    """So many queues of this pod, none of which it has workers of; as `running` is told."""
    names = [f"q{i}" for i in range(queues)]
    values = ", ".join(f"('{name}', 0)" for name in names)
    sql(url, f"insert into {{queue}} (name, max_workers) values {values} on conflict do nothing")
    storage.serve(who, names)
    running = dict.fromkeys(names, 0)
    assert storage.shares.look(who, running) == running
    return running


def steps_of_looks(storage: Storage, url: str, queues: int) -> tuple[int, int]:
    """Virtual machine steps that SQLite takes for a look that finds something new, and for one that does not."""
    assert isinstance(storage, SqliteStorage)
    who = storage.register("ada", [], "north", 1)
    running = declare(storage, url, who, queues)
    steps: list[int] = []
    with storage._reader.use() as wrapped:
        conn: apsw.Connection = wrapped.raw
    conn.trace_v2(
        apsw.SQLITE_TRACE_PROFILE, lambda seen: steps.append(seen["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"])
    )
    storage.shares._last = None  # type: ignore[attr-defined]
    taken = []
    for _ in range(2):
        assert storage.shares.look(who, running) == running
        taken.append(sum(steps))
        steps.clear()
    conn.trace_v2(0, None)
    storage.deregister(who)
    return taken[0], taken[1]


def test_on_sqlite_ten_times_the_queues_take_ten_times_the_steps_and_few_when_nothing_is_new(
    sqlite_url: str,
) -> None:
    with SqliteStorage(sqlite_url) as storage:
        few, few_known = steps_of_looks(storage, sqlite_url, 100)
        many, many_known = steps_of_looks(storage, sqlite_url, 1000)
    assert many < 12 * few
    assert many_known < 12 * few_known
    assert many_known < many / 2


def test_on_postgres_names_are_looked_up_in_hashed_lists(pg_url: str) -> None:
    queries = load_queries("postgres")
    with psycopg.connect(pg_url) as conn:
        conn.execute(queries.plan_by_index.text("format"), [False])
        look = f"explain (verbose, generic_plan) {queries.look_at_shares.text('dollar')}"
        plan = "\n".join(line for (line,) in conn.execute(look.encode()))
    named = [line.strip() for line in plan.splitlines() if "Output" in line or "Filter" in line]
    assert sum("= (hashed SubPlan" in line for line in named) >= 2, plan
    assert "ANY (me.queues)" not in plan


def test_what_was_found_before_is_not_answered_once_anything_has_changed(
    storage: Storage, url: str, who: Incarnation, other: Incarnation
) -> None:
    running = declare(storage, url, who, 20)
    may = dict(running)

    def check(**changed: int) -> None:
        may.update(changed)
        for _ in range(2):
            assert storage.shares.look(who, running) == may

    storage.set_queue("q0", max_workers=5)
    check(q0=5)
    storage.set_queue("q1", max_workers=4)
    storage.serve(other, ["q1"])
    check(q1=2)
    storage.set_queue("q2", max_workers=3, paused=True)
    check()
    storage.set_queue("q2", paused=False)
    check(q2=3)
    assert storage.shares.look(who, {**running, "q2": 1}) == may
    assert [share.running for share in storage.shares.cluster().shares if share.queue == "q2"] == [1]
    storage.serve(who, ["q2"])
    assert storage.shares.look(who, running) == {"q2": 3}
    if is_sqlite(url):
        sql(url, "insert into {line_queue} values ('q2')")
        storage.shares.look(who, running)
        assert storage.shares.lined == {"q2"}
