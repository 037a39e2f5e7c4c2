"""Who says how long a failed job waits: the task, else its queue, whatever ran the job and however it ended."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from forge import Job, Status

from .conftest import TASKS, Project, eventually

HANDLERS = """

from forge import Backoff

@app.task(max_attempts=2, timeout=1)
def stuck() -> None:
    note("START", "stuck", os.getpid())
    while True:  # whoever asks
        try:
            time.sleep(600)
        except BaseException:
            pass

@app.task(max_attempts=2, timeout=1, backoff=lambda attempt: 5000.0 + attempt)
def stuck_with_its_own() -> None:
    stuck.fn()

@app.task(max_attempts=2, timeout=1, backoff=Backoff("fixed", 77))
def stuck_with_a_curve() -> None:
    stuck.fn()

@app.task(max_attempts=2, timeout=1, backoff=lambda attempt: time.sleep(600))
def stuck_with_a_backoff_that_is_stuck() -> None:
    stuck.fn()

@app.task(max_attempts=2, timeout=1, backoff=lambda attempt: 1 / 0)
def stuck_with_a_broken_one() -> None:
    stuck.fn()

@app.task(max_attempts=2)
def unlucky() -> None:
    raise ValueError("no luck")
"""

QUEUE = "[queues.default]\nmax_workers = 1\n"
CURVE = f"{QUEUE}backoff_enabled = true\nbackoff_base_seconds = 1000\nbackoff_max_seconds = 86400\n"
PROGRAMS = """
[pools.shell]
kind = "shell"
argv = ["sh", "-c", "while read line; do echo '{\\"status\\": \\"error\\"}'; done"]
[commands.no]
argv = ["false"]
"""


@pytest.fixture
def pod_of(project: Project) -> Any:
    (project.folder / "tasks.py").write_text(TASKS + HANDLERS)

    def start(toml: str) -> Any:
        project.settings(toml)
        return project.start()

    return start


def waits(job: Any) -> float:
    """Seconds from a failure to the next try."""
    seen: list[Job] = []

    def has_failed() -> bool:
        seen.append(job.job())
        return seen[-1].status == Status.FAILED

    eventually(has_failed)
    failed_at = datetime.fromisoformat(seen[-1].errors[-1]["at"])
    return (seen[-1].run_at - failed_at).total_seconds()


@pytest.mark.parametrize(
    ("task", "seconds"),
    [
        ("unlucky", 2000.0),
        ("stuck", 2000.0),
        ("stuck_with_its_own", 5001.0),
        ("stuck_with_a_curve", 77.0),
        ("stuck_with_a_backoff_that_is_stuck", 2000.0),
        ("stuck_with_a_broken_one", 2000.0),
    ],
)
def test_a_task_waits_by_its_own_curve_or_by_its_queues(
    project: Project, pod_of: Any, task: str, seconds: float
) -> None:
    pod = pod_of(CURVE)
    job: Any = project.app.enqueue(f"tasks.{task}", {"args": [], "kwargs": {}}, max_attempts=2, timeout=1)
    assert waits(job) == pytest.approx(seconds, abs=0.01)
    if task != "unlucky":
        assert job.job().last_error == "timeout after 1 s"
    assert pod.stop() == 0


@pytest.mark.parametrize(("kind", "payload"), [("shell", {}), ("cmd_exec", {"command": "no"})])
@pytest.mark.parametrize(
    ("toml", "low", "high"), [(CURVE, 2000.0, 2000.0), (QUEUE, 1.0, 1000.0)], ids=["curve", "none"]
)
def test_so_do_pools_and_commands(
    project: Project, pod_of: Any, kind: str, payload: Any, toml: str, low: float, high: float
) -> None:
    pod_of(toml + PROGRAMS)
    job: Any = project.app.enqueue(kind, payload, max_attempts=6)
    assert low - 0.01 <= waits(job) <= high + 0.01


def test_an_operators_word_counts_for_the_next_failure(project: Project, pod_of: Any) -> None:
    pod_of(QUEUE)
    project.app.storage.set_queue("default", backoff_enabled=True, backoff_base_seconds=3000, backoff_max_seconds=86400)
    job: Any = project.enqueue("unlucky", max_attempts=2)
    assert waits(job) == pytest.approx(6000.0, abs=0.01)
