"""What pods count, of real masters: every job once, every pod's own figures, and nothing twice when it is rolled up."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge.cluster.metrics import Histogram, merged
from forge.cluster.rollup import RollUp
from forge.storage import Storage
from forge.storage.contract.leases import Holder
from forge.storage.contract.metrics import Point
from tests.master.conftest import Project, eventually, making
from tests.storage.helpers import age

pytestmark = pytest.mark.impl_free

NEVER, EVER, ALL = 0.0, 4e9, 400_000 * 60 * 60


def total(storage: Storage) -> Point:
    """All that was ever counted."""
    (found,) = merged(storage.metrics.read(NEVER, EVER, step=ALL))
    return found


def counts(storage: Storage) -> dict[str, int]:
    return {name: n for name, n in total(storage).counts.items() if n}


def load(project: Project, done: int, failing: int, hopeless: int) -> None:
    """`fail` fails twice and is dead then; `hopeless` is dead at once."""
    jobs = [project.app.job("tasks.add", {"args": [n, 1], "kwargs": {}}) for n in range(done)]
    jobs += [project.app.job("tasks.fail", {"args": ["no"], "kwargs": {}}, max_attempts=2) for _ in range(failing)]
    jobs += [project.app.job("tasks.hopeless", {"args": [], "kwargs": {}}) for _ in range(hopeless)]
    project.app.enqueue_many(jobs)


def all_ended(project: Project) -> None:
    eventually(lambda: project.app.storage.counts() == {}, within=60)


def told_of(project: Project) -> set[int]:
    """Pods, by pid, that have said what their workers use and how long their hearts take."""
    points = project.app.storage.metrics.read_pods(NEVER, EVER, step=ALL)
    return {p.pid for p in points if p.workers and p.memory.get("workers_pss") and p.timings.get("beats")}


def test_the_counts_of_three_pods_are_exact_after_a_clean_stop(project: Project, pg_url: str) -> None:
    pods = [project.launch() for _ in range(3)]
    for pod in pods:
        pod.ready()
    load(project, 900, 20, 10)
    kept: Any = project.enqueue("add", 2, 3)
    assert kept.result(timeout=60) == 5
    all_ended(project)
    eventually(lambda: told_of(project) == {pod.process.pid for pod in pods})
    for pod in pods:
        assert pod.stop() == 0, pod.lines
    storage = project.app.storage
    expected = {"completed": 901, "failed": 2 * 20 + 10, "dead": 20 + 10}
    assert counts(storage) == expected
    found = total(storage)
    assert sum(found.run_time.values()) == sum(found.latency.values()) == 901 + 50
    assert found.latency.keys() != {0}, "they waited for a moment at least"

    points = storage.metrics.read_pods(NEVER, EVER, step=ALL)
    assert {point.pid for point in points} == {pod.process.pid for pod in pods}
    for point in points:
        assert point.workers >= 1
        assert 1 <= point.connections <= 8
        assert point.cpu["master_cpu"] > 0 and point.cpu["zygote_cpu"] > 0
        assert point.cpu["workers_cpu"] >= 0, "in hundredths of a second, which they may not have needed"
        assert min(point.memory.values()) > 1_000_000 and len(point.memory) == 6
        assert point.memory["workers_pss"] <= point.memory["workers_rss"]
        assert Histogram(point.timings["beats"]).count >= 1
    assert sum(Histogram(point.timings["finalizes"]).count for point in points) >= 1
    assert sum(Histogram(point.timings["claims"]).count for point in points) >= 1

    term = storage.leases.acquire(Holder("test", None, "north", 1), 600.0).term
    for table in ("metric_part", "metric"):
        age(pg_url, table, "minute", 600)
    for _ in range(2):
        RollUp(storage).run_once(term)
        assert counts(storage) == expected
        assert total(storage).latency == found.latency
    minutes = [storage.now() // 60 * 60 - 60 * back for back in range(5)]
    assert sum(storage.metrics.enqueued(minute, 10_000).get("default", 0) for minute in minutes) == 931


def test_crashes_cancellations_and_what_was_reaped_are_counted_too(project: Project) -> None:
    pods = [project.start() for _ in range(2)]
    project.enqueue("die", "kill")
    job: Any = project.enqueue("wait_for", "never")
    eventually(lambda: any(words[1] == "never" for words in project.events("START")))
    assert job.cancel()
    eventually(lambda: job.status == "cancelled")
    eventually(lambda: project.app.storage.counts() == {}, within=60)
    waits: Any = project.enqueue("wait_for", "go", max_attempts=5)
    eventually(lambda: any(words[1] == "go" for words in project.events("START")))
    worker = next(int(words[2]) for words in project.events("START") if words[1] == "go")
    (victim,) = (pod for pod in pods if worker in pod.children())
    (other,) = (pod for pod in pods if pod is not victim)
    victim.process.send_signal(signal.SIGKILL)
    eventually(lambda: other.says("1 job taken back"), within=60)
    (project.folder / "go").touch()
    assert waits.result(timeout=60) == "went"
    assert other.stop() == 0
    found = counts(project.app.storage)
    # What the killed pod had counted in its last ten seconds is lost: the crashes and the cancellation may be its own.
    assert found["reaped"] == 1
    assert found["completed"] == 1
    assert found.keys() <= {"reaped", "completed", "crashed", "dead", "cancelled"}


# -- SQLite --------------------------------------------------------------------------------------------------------


@pytest.fixture
def on_sqlite(tmp_path: Path, sqlite_url: str) -> Iterator[Project]:
    yield from making(tmp_path, sqlite_url)


def test_the_counts_of_a_pod_on_sqlite_are_exact_after_a_clean_stop(on_sqlite: Project) -> None:
    pod = on_sqlite.start()
    eventually(lambda: told_of(on_sqlite) == {pod.process.pid})  # before its workers are killed
    load(on_sqlite, 200, 5, 2)
    on_sqlite.enqueue("die", "kill")
    all_ended(on_sqlite)
    assert pod.stop() == 0, pod.lines
    storage = on_sqlite.app.storage
    assert counts(storage) == {"completed": 200, "failed": 12, "dead": 5 + 2 + 1, "crashed": 3}
    assert sum(total(storage).latency.values()) == 212
    (point,) = storage.metrics.read_pods(NEVER, EVER, step=ALL)
    assert point.pid == pod.process.pid
    assert point.cpu["zygote_cpu"] > 0 and point.workers >= 1
