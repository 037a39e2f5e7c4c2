"""`forge pods` and `forge run`: who is there, who leads, and one round of a service by hand."""

from __future__ import annotations

import argparse
from typing import Any

from forge.cli.common import Cli, duration, table
from forge.cli.metrics import cores, memory
from forge.cluster.lease import Lease
from forge.cluster.service import Service, ServiceRunner
from forge.cluster.services import TIMEOUT, by_hand
from forge.config import suggest
from forge.errors import ExitCode, LockedError, LostLease, UsageError
from forge.job import Pod
from forge.storage import Storage, open_storage
from forge.storage.contract.leases import Leader
from forge.storage.contract.metrics import MINUTE, PodPoint

__all__ = ["add_options", "leads", "pods", "run"]

HEAD = ("pod", "host", "pid", "up", "heard of", "cpu", "memory", "leads", "queues")
USED_WITHIN = 180.0  # seconds: what pods said of themselves since is shown


def pods(cli: Cli) -> int:
    """The pods that live, and which of them leads."""
    storage = cli.storage()
    found, leader, now = storage.pods(), storage.leases.leader(), storage.now()
    used: dict[int, list[PodPoint]] = {}
    for point in storage.metrics.read_pods(now - USED_WITHIN, now + MINUTE):
        used.setdefault(point.pod, []).append(point)
    if cli.json:
        cli.document({"leader": leader, "pods": [_as_json(pod, leader, used.get(pod.id, [])) for pod in found]})
    elif not found:
        cli.print("no pods; forge-master starts one")
    else:
        cli.print(table(HEAD, (_row(pod, leader, now, used.get(pod.id, [])) for pod in found)))
    return ExitCode.OK


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


def run(cli: Cli) -> int:
    """One round of a service that pods run by themselves. What only the leader does needs the lease for that round: if
    a pod has it, this says which."""
    if cli.args.list or cli.args.name is None:
        return _list(cli)
    cli.storage().close()
    storage = cli.closing(open_storage(cli.config.database, schema=cli.config.schema, timeout=TIMEOUT, patience=0.0))
    known = {service.name: service for service in by_hand(storage, cli.config)}
    if cli.args.name not in known:
        raise UsageError(f"no service {cli.args.name}{suggest(cli.args.name, list(known))}   (forge run --list)")
    service = known[cli.args.name]
    term, did = _led(cli, storage, service) if service.leader_only else (None, service.run_once(None))
    if cli.json:
        cli.document({"service": service.name, "did": did, "term": term})
    else:
        cli.print(f"{service.name}: {did or 'nothing to do'}")
    return ExitCode.OK


def _list(cli: Cli) -> int:
    found = by_hand(cli.raw_storage(), cli.config)
    if cli.json:
        document = [
            {"name": service.name, "every": service.every, "leader_only": service.leader_only, "does": _does(service)}
            for service in found
        ]
        cli.document(document)
    else:
        runs = [(s.name, duration(s.every), "the leader" if s.leader_only else "every pod", _does(s)) for s in found]
        cli.print(table(("service", "every", "run by", "what it does"), runs))
    return ExitCode.OK


def _does(service: Service) -> str:
    return (type(service).__doc__ or "").strip().splitlines()[0]


def _led(cli: Cli, storage: Storage, service: Service) -> tuple[int, str | None]:
    """A round with the lease, which is kept while it lasts and then given back."""
    lease = Lease(storage.leases, lambda: None, lambda: cli.config.leader_ttl, quiet=True)
    lease.tend()
    term = lease.term()
    if term is None:
        raise LockedError(f"{_who(storage.leases.leader())}, and {service.name} is for the leader; it will see to it")
    keeper = ServiceRunner([], lease)
    keeper.start()
    try:
        return term, service.run_once(term)
    except LostLease:
        raise LostLease(f"{_who(storage.leases.leader())} by now; it goes on with {service.name}") from None
    finally:
        keeper.stop()
        keeper.join(5.0)


def _who(leader: Leader | None) -> str:
    if leader is None:
        return "another one leads"
    what = f"pod {leader.pod}" if leader.pod is not None else "a command"
    until = leader.until.strftime("%H:%M:%S UTC")
    return f"{what} on {leader.host} (pid {leader.pid}) leads until {until} (term {leader.term})"


def add_options(sub: argparse.ArgumentParser) -> None:
    """Of `forge run`."""
    sub.add_argument("name", metavar="NAME", nargs="?", help="the service")
    sub.add_argument("--list", action="store_true", help="list the services")
