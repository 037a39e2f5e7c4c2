"""`forge pods`: who is there, and who leads."""

from __future__ import annotations

from typing import Any

import click

from forge.cli.command import Command
from forge.cli.common import Cli, duration
from forge.cli.metrics import cores, memory
from forge.job import Pod
from forge.storage.contract.leases import Leader
from forge.storage.contract.metrics import MINUTE, PodPoint

__all__ = ["leads", "pods"]

HEAD = ("pod", "host", "pid", "up", "heard of", "cpu", "memory", "leads", "queues")
USED_WITHIN = 180.0  # seconds: what pods said of themselves since is shown


@click.command(cls=Command)
def pods(cli: Cli) -> None:
    """The pods that live, and which of them leads."""
    storage = cli.storage()
    found, leader, now = storage.pods(), storage.leases.leader(), storage.now()
    used: dict[int, list[PodPoint]] = {}
    for point in storage.metrics.read_pods(now - USED_WITHIN, now + MINUTE):
        used.setdefault(point.pod, []).append(point)
    document = {"leader": leader, "pods": [_as_json(pod, leader, used.get(pod.id, [])) for pod in found]}
    rows = (_row(pod, leader, now, used.get(pod.id, [])) for pod in found)
    cli.listing(document, HEAD, rows, "no pods; forge-master starts one")


def leads(pod: Pod, leader: Leader | None) -> str:
    """`term 7`, or `-` for a pod that does not lead."""
    return f"term {leader.term}" if leader is not None and leader.pod == pod.id else "-"


def _row(pod: Pod, leader: Leader | None, now: float, used: list[PodPoint]) -> tuple[object, ...]:
    up, silent = duration(now - pod.started_at.timestamp()), duration(now - pod.beat_at.timestamp())
    use = cores(used), memory(used)
    return pod.id, pod.label or pod.host, pod.pid, up, f"{silent} ago", *use, leads(pod, leader), ", ".join(pod.queues)


def _as_json(pod: Pod, leader: Leader | None, used: list[PodPoint]) -> dict[str, Any]:
    term = leader.term if leader is not None and leader.pod == pod.id else None
    return {
        "id": pod.id, "label": pod.label, "host": pod.host, "pid": pod.pid, "queues": pod.queues,
        "started_at": pod.started_at, "beat_at": pod.beat_at, "term": term, "cpu": used[-1].cpu if used else {},
        "memory": used[-1].memory if used else {},
    }  # fmt: skip
