"""One pod's wall clock is ten minutes off: nobody is taken for dead for that, and nothing runs early."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from forge.job import Job
from tests.master.conftest import Pod, Project, eventually

from .conftest import leader

pytestmark = pytest.mark.impl_free

STALE = 1.5
SETTINGS = f"""
heartbeat = 0.1
stale_after = {STALE}
leader_ttl = 2.0
[queues.right]
[queues.wrong]
"""
TASKS = """

@app.task
def what_time() -> float:
    return time.time()


@app.task
def soon(queue: str) -> str:
    return str(what_time.using(queue=queue, delay=1.5).enqueue().id)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shim") / "wrong_clock.so"
    source = Path(__file__).with_name("wrong_clock.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", made, source], check=True)
    return made


@pytest.fixture
def start(project: Project, shim: Path) -> Callable[[str, int], Pod]:
    with (project.folder / "tasks.py").open("a") as file:
        file.write(TASKS)
    project.settings(SETTINGS)

    def starting(queue: str, off: int) -> Pod:
        env = {**project.env, "FORGE_QUEUES": queue, "LD_PRELOAD": str(shim), "FORGE_TEST_CLOCK": str(off)}
        pod = Pod(project.folder, env)
        project.pods.append(pod)
        return pod.ready()

    return starting


def off_by(pod: Pod) -> float:
    """By how much the clock of a master's own log differs from ours, in seconds."""
    shown = datetime.strptime(pod.lines[0].split()[0], "%H:%M:%S")  # noqa: DTZ007 (a time of the day)
    now = time.localtime()
    seconds = (shown.hour - now.tm_hour) * 3600 + (shown.minute - now.tm_min) * 60 + shown.second - now.tm_sec
    return (seconds + 43_200) % 86_400 - 43_200


def ran_at(job: Job) -> datetime:
    assert job.claimed_at is not None
    return job.claimed_at


@pytest.mark.parametrize("off", [600, -600])
def test_a_pod_whose_clock_is_ten_minutes_off(project: Project, start: Callable[[str, int], Pod], off: int) -> None:
    wrong = start("wrong", off)
    assert abs(off_by(wrong) - off) < 120, "else the clock of that pod is right, and this shows nothing"
    leader([wrong])  # it is the one that fires and reaps
    right = start("right", 0)
    assert abs(off_by(right)) < 120
    storage, pods = project.app.storage, {pod.id for pod in project.app.storage.pods()}
    began = datetime.fromtimestamp(storage.now(), UTC)
    in_five_minutes = began + timedelta(seconds=300)
    expression = f"{in_five_minutes.second} {in_five_minutes.minute} {in_five_minutes.hour} * * *"
    project.app.schedules.set("later", expression, "tasks.what_time", queue="wrong")
    project.app.schedules.set("tick", "* * * * * *", "tasks.what_time", queue="wrong")
    later: list[Any] = [project.enqueue("what_time", queue=queue, delay=300) for queue in ("right", "wrong")]
    found: dict[str, Any] = {queue: project.enqueue("soon", queue, queue=queue) for queue in ("right", "wrong")}
    for queue, job in found.items():  # enqueued by a handler of that pod, to run there
        asked = project.app.get(job.result(timeout=30))
        shown = asked.result(timeout=30)
        assert abs(shown - storage.now() - (off if queue == "wrong" else 0)) < 120
        ended = asked.job()
        assert ended.run_at == ended.enqueued_at + timedelta(seconds=1.5) <= ran_at(ended)
    ticks = storage.schedules.fire_times
    eventually(lambda: len(ticks("tick", 100)) >= 3)
    assert all(began <= each.at <= each.fired_at for each in ticks("tick", 100)), "none fired early, none was made up"
    eventually(lambda: storage.now() > began.timestamp() + 3 * STALE)  # whoever is to be taken for dead has been
    assert {pod.id for pod in storage.pods()} == pods
    assert not any(pod.says("gone silent") or pod.says("taken for dead") for pod in (wrong, right))
    assert ticks("later") == []
    assert [job.status for job in later] == ["pending", "pending"]
    assert [pod.stop() for pod in (right, wrong)] == [0, 0]
