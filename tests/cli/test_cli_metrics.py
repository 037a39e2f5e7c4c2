"""`forge metrics` and what `forge pods` says of CPU and memory."""

from __future__ import annotations

import pytest

from forge.errors import ExitCode
from forge.storage import Storage
from forge.storage.contract.leases import Holder
from forge.storage.contract.metrics import DatabaseFigures, MetricReport, PodFigures, QueueReport, Standing
from tests.cli.conftest import Shell
from tests.storage.helpers import early, plain_jobs

pytestmark = pytest.mark.impl_free

PARTS = [
    QueueReport("mail", {"completed": 120, "failed": 3, "dead": 1}, {28: 120, 48: 3}, {20: 100, 60: 23}),
    QueueReport("web", {"completed": 60}, {28: 60}, {20: 60}),
]


@pytest.fixture
def told(storage: Storage) -> Storage:
    """A pod has reported, and a leader has looked."""
    early(storage)  # all of it is to be of one minute
    pod = storage.register("ada", ["mail"], "north", 4711)
    use = {"master_cpu": 6.0, "workers_cpu": 24.0}, {"master_pss": 30_000_000, "workers_pss": 60_000_000}
    vitals = PodFigures("north", 4711, 2, 6, *use, {"beats": {30: 9}})
    storage.metrics.write(MetricReport("w", 1, pod.pod.id, PARTS, vitals))
    term = storage.leases.acquire(Holder("k", None, "north", 1), 60.0).term
    assert term is not None
    minute = storage.now() // 60 * 60
    standing = {"mail": Standing(7, estimated=True)}
    storage.metrics.record(term, minute, standing, DatabaseFigures(1, 2, 3, 4, 5), {(minute, "mail"): 130})
    storage.leases.release(term)
    return storage


def test_all_queues_together_are_a_row_for_each_step(forge: Shell, url: str, told: Storage) -> None:
    lines = forge.ok("metrics", "--database", url, "--step", "1d", "--since", "2d").splitlines()
    head = "from enqueued done per s failed dead waiting latency p50 p95 p99 run p50 p95 p99"
    assert " ".join(lines[0].split()) == head
    assert lines[1].split()[2:9] == ["130", "180", "0.0", "3", "1", "~7", "1.3"]
    assert lines[1].endswith("0.32 ms  328 ms  328 ms")


def test_one_queue_alone(forge: Shell, url: str, told: Storage) -> None:
    row = forge.ok("metrics", "web", "--database", url).splitlines()[-1].split()
    assert row[1:4] == ["-", "60", "1.0"]
    assert forge.ok("metrics", "nope", "--database", url) == (
        "no figures of queue nope since 1h ago; pods write them while they run\n"
    )


def test_the_same_for_programs(forge: Shell, url: str, told: Storage) -> None:
    found = forge("metrics", "--database", url, "-o", "json", "--since", "5m").json
    assert [point["queue"] for point in found["points"]] == ["mail", "web"]
    mail = found["points"][0]
    assert (mail["completed"], mail["enqueued"], mail["standing"]["pending"]) == (120, 130, 7)
    low, high = mail["run_time"]["p50"]
    assert low < high < 1.2 * low
    assert mail["run_time"]["buckets"] == {"20": 100, "60": 23}
    assert found["pods"][0]["cpu"]["workers_cpu"] == 24.0
    assert found["database"][0]["size"] == 1
    assert found["step"] == 60


@pytest.mark.parametrize("words", [["--since", "soon"], ["--step", "0m"], ["--step", "90s"], ["--since", "1w"]])
def test_what_is_no_span_is_refused(forge: Shell, url: str, told: Storage, words: list[str]) -> None:
    said = forge.fails(ExitCode.USAGE, "metrics", "--database", url, *words)
    assert "15m" in said or "whole minutes" in said


def test_pods_say_what_they_use(forge: Shell, url: str, told: Storage) -> None:
    head, row = forge.ok("pods", "--database", url).splitlines()
    assert head.split() == ["pod", "host", "pid", "up", "heard", "of", "cpu", "memory", "leads", "queues"]
    assert "0.50" in row.split() and "90 MB" in row
    (pod,) = forge("pods", "--database", url, "-o", "json").json["pods"]
    assert pod["memory"] == {"master_pss": 30_000_000, "workers_pss": 60_000_000}


def test_the_leaders_part_can_be_run_by_hand(forge: Shell, url: str, storage: Storage) -> None:
    storage.enqueue(plain_jobs(3, "mail"))
    assert forge.ok("run", "metrics", "--database", url) == "metrics: nothing to do\n"
    (point,) = forge("metrics", "--database", url, "-o", "json").json["points"]
    assert (point["queue"], point["standing"]["pending"]) == ("mail", 3)
