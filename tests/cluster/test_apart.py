"""Services of one pod do not wait for each other."""

from __future__ import annotations

import psycopg
import pytest

from tests.master.conftest import Project, eventually

from .test_retention import old

pytestmark = pytest.mark.impl_free

# A batch of retention that waits for a lock, and a fire time that fired after that had begun. A moment of the
# database's, so that neither can have changed meanwhile.
FIRED_WHILE_PRUNING = """
select count(*) from pg_stat_activity a, forge.schedule_fire_time s
 where a.datname = current_database() and a.wait_event_type = 'Lock' and a.query like '%delete from forge.job_history%'
   and s.fired_at > a.query_start
"""


def test_a_retention_that_hangs_does_not_delay_a_firing(project: Project) -> None:
    project.settings('[queues.default]\n[cron.tick]\nkind = "raw.kind"\nschedule = "* * * * * *"\n')
    old(project.app.storage, project.url, 5)
    with psycopg.connect(project.url) as holding, psycopg.connect(project.url, autocommit=True) as looking:
        holding.execute("select from forge.job_history for update")  # its owner has gone to lunch
        project.start()

        def fired() -> int:
            row = looking.execute(FIRED_WHILE_PRUNING).fetchone()
            assert row is not None
            return int(row[0])

        eventually(lambda: fired() >= 2, within=60)
        holding.rollback()
    eventually(lambda: "letters" not in project.app.storage.ended_counts(), within=60)
