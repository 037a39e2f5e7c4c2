"""What the log says of jobs that fail or die: for people in a line, for machines in fields."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from forge.job import Status

from .conftest import TASKS, Pod, Project, eventually

pytestmark = pytest.mark.impl_free

MORE = """

class CardDeclined(Dead):
    pass


@app.task
def pay() -> None:
    raise CardDeclined("no funds")
"""


def records(pod: Pod, job: Any) -> list[dict[str, Any]]:
    found = [orjson.loads(line) for line in list(pod.lines) if line.startswith("{")]
    return [record for record in found if record.get("job_id") == str(job.id)]


def test_records_of_failures_carry_the_job_and_the_error(project: Project) -> None:
    (project.folder / "tasks.py").write_text(TASKS + MORE)
    project.settings('[logging]\nformat = "json"\n[queues.default]\nmax_workers = 2\n')
    pod = project.launch()
    failed: Any = project.enqueue("fail", "no luck", max_attempts=2)
    dead: Any = project.enqueue("pay")
    crashed: Any = project.enqueue("die", "segfault")
    eventually(lambda: {job.status for job in (failed, dead, crashed)} == {Status.DEAD}, within=60)
    eventually(lambda: records(pod, crashed))
    first, second = records(pod, failed)
    assert (first["kind"], first["queue"], first["attempt"]) == ("tasks.fail", "default", 1)
    assert (first["error_type"], first["level"]) == ("ValueError", "warning")
    assert "raise ValueError(text)" in first["traceback"]
    assert (second["attempt"], second["message"]) == (2, f"tasks.fail {failed.id} failed, dead: ValueError: no luck")
    (declined,) = records(pod, dead)
    assert declined["message"] == f"tasks.pay {dead.id} is dead: no funds"
    assert declined["error_type"] == "CardDeclined"
    (gone,) = records(pod, crashed)
    assert gone["message"].startswith(f"tasks.die {crashed.id} is dead, its worker died with it too often: worker ")
    assert "SIGSEGV" in gone["message"]
    assert (gone["kind"], gone["queue"], gone["attempt"], gone["traceback"]) == ("tasks.die", "default", 1, None)
    assert pod.stop() == 0
