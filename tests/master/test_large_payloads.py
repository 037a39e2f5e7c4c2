"""Large payloads: how much of them a master holds, and how large one may be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from forge import fastpath
from forge.job import LARGEST_PAYLOAD, NewJob, Status

from .conftest import TASKS, Pod, Project, eventually

pytestmark = pytest.mark.impl_free

MIB = 1024 * 1024
MOST_KB = 250_000

SIZES = """

@app.handler("size")
def size(ctx, payload):
    return len(payload)


@app.handler("size.async")
async def size_async(ctx, payload):
    return len(payload)


@app.handler("parent")
def parent(ctx, payload):
    ctx.enqueue("size", "x" * payload)
    ctx.enqueue_now("size", "y" * payload)
"""
CHILD = """
import json, sys
for line in sys.stdin:
    job = json.loads(line)
    print(json.dumps({"id": job["id"], "status": "ok", "result": len(job["payload"])}), flush=True)
"""


POOL = f'[pools.sizes]\nkind = "pool"\nargv = ["{sys.executable}", "child.py"]\nsize = 2\n'


def start(project: Project, settings: str) -> Pod:
    (project.folder / "tasks.py").write_text(TASKS + SIZES)
    (project.folder / "child.py").write_text(CHILD)
    project.settings(settings)
    return project.start()


def peak(pod: Pod) -> int:
    """Kilobytes that the master has had at most."""
    for line in Path(f"/proc/{pod.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError("the kernel does not say")


def job(kind: str, size: int) -> NewJob:
    """With a payload of so many bytes."""
    return NewJob(fastpath.uuid7(), kind, b'"' + b"x" * (size - 2) + b'"', keep_result=3600)


@pytest.mark.parametrize("worker", ["process", "async"])
def test_a_master_stays_small_with_large_payloads_behind_small_ones(project: Project, worker: str) -> None:
    kind = "size" if worker == "process" else "size.async"
    storage = project.app.storage
    storage.enqueue([job(kind, 100) for _ in range(1500)])
    for _ in range(10):
        storage.enqueue([job(kind, MIB) for _ in range(15)])
    more = 'worker = "async"\nconcurrency = 300\n' if worker == "async" else ""
    pod = start(project, f"[queues.default]\nmax_workers = 2\n{more}")
    eventually(lambda: storage.ended_counts().get("default", {}).get(Status.DONE) == 1650, within=100)
    assert peak(pod) < MOST_KB


def test_the_largest_payload_that_can_be_configured_runs_in_workers_and_pools_and_as_a_follow_up(
    project: Project,
) -> None:
    storage = project.app.storage
    jobs = [job(kind, LARGEST_PAYLOAD) for kind in ("size", "pool")]
    storage.enqueue(jobs)
    project.app.enqueue("parent", LARGEST_PAYLOAD - 2)
    pod = start(project, f'max_payload = "15MiB"\n[queues.default]\nmax_workers = 1\n{POOL}')
    eventually(lambda: sum(storage.ended_counts().get("default", {}).values()) == 5, within=60)
    assert storage.ended_counts() == {"default": {Status.DONE: 5}}
    assert [storage.get([each.id])[each.id].result for each in jobs] == [LARGEST_PAYLOAD - 2] * 2
    assert not pod.says("released")


def test_a_payload_that_no_worker_can_be_sent_ends_its_own_job_and_no_other(project: Project) -> None:
    """However it came to be stored."""
    storage = project.app.storage
    jobs = [job("size", 100), job("size", LARGEST_PAYLOAD + 2 * MIB), job("size", 200)]
    storage.enqueue(jobs)
    pod = start(project, "[queues.default]\nmax_workers = 1\n")
    eventually(lambda: storage.ended_counts().get("default") == {Status.DONE: 2, Status.DEAD: 1})
    dead = storage.get([jobs[1].id])[jobs[1].id]
    assert dead.errors[0]["message"] == "the payload has 17,825,792 bytes, and no worker is sent more than 15,728,640"
    assert not pod.says("released")
