"""Schedules and a real master: what the zygote tells of them, and jobs that are enqueued by the clock and run."""

from __future__ import annotations

import pytest

from forge.job import JobFilter, Status

from .conftest import Project, eventually

pytestmark = pytest.mark.impl_free

SETTINGS = """
[queues.default]
max_workers = 2
[cron.tick]
task = "tasks.add"
args = [2, 3]
schedule = "* * * * * *"
[cron.raw]
kind = "raw.kind"
payload = { n = 1 }
schedule = "*/2 * * * * *"
timezone = "Europe/Berlin"
"""


def done(project: Project) -> dict[str, list[object]]:
    """Results of the jobs that are done, by kind."""
    found = project.app.storage.find(JobFilter(frozenset({Status.DONE})), limit=1000).jobs
    return {kind: [job.result for job in found if job.kind == kind] for kind in {job.kind for job in found}}


def test_jobs_that_come_by_the_clock_are_run(project: Project) -> None:
    project.settings(SETTINGS)
    with (project.folder / "tasks.py").open("a") as file:
        file.write('\n\n@app.task(cron="*/3 * * * * *")\ndef from_code() -> str:\n    return "code"\n')
    pod = project.start()
    wanted = {"tasks.add": 3, "raw.kind": 1, "tasks.from_code": 1}
    eventually(lambda: all(len(done(project).get(kind, ())) >= count for kind, count in wanted.items()))
    assert pod.stop() == 0  # it fires no more
    results = done(project)
    assert set(results["tasks.add"]) == {5}
    assert set(results["tasks.from_code"]) == {"code"}
    stored = {schedule.name: schedule for schedule in project.app.schedules.list()}
    assert {name: each.source for name, each in stored.items()} == {
        "tick": "config",
        "raw": "config",
        "tasks.from_code": "code",
    }
    fired = project.app.storage.schedules.fire_times("tick", 1000)
    ticks = project.app.storage.find(JobFilter(kinds=["tasks.add"]), limit=1000).jobs
    assert {each.job for each in fired} == {job.id for job in ticks}
    assert all(job.claimed_at is None or job.claimed_at >= job.run_at for job in ticks)  # none ran early
    assert all(each.at <= each.fired_at for each in fired)
