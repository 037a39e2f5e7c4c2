"""A file that is the user's own: whatever tables there are in it, forge's stand beside them."""

from __future__ import annotations

from pathlib import Path

from forge.job import Done, Ending, Status
from forge.storage.sqlite import SqliteStorage
from forge.storage.sqlite.drivers import DRIVERS, DriverName, SqliteConnection
from tests.storage.helpers import TABLES, plain_job

INDEXES = "job_claim", "job_line", "schedule_due", "share_queue"


def test_tables_of_the_users_named_job_or_queue_are_left_alone(path: Path, driver: DriverName) -> None:
    mine: SqliteConnection = DRIVERS[driver](str(path), create=True)
    for name in (*TABLES, *INDEXES):
        mine.rows(f"create table {name} (title text)")
        mine.rows(f"insert into {name} values ('mine')")
    mine.close()
    with SqliteStorage(f"sqlite:///{path}?driver={driver}") as storage:
        storage.migrate()
        who = storage.register("ada", ["letters"], "north", 1)
        new = plain_job(queue="letters")
        storage.enqueue([new])
        (claim,) = storage.claim(who, "letters", 10)
        assert storage.finalize([Ending(claim, Done())]) == []
        assert storage.get([new.id])[new.id].status is Status.DONE
        with storage._reader.use() as conn:
            for name in (*TABLES, *INDEXES):
                assert conn.rows(f"select * from {name}") == [("mine",)]
