"""`forge run`: one round of a service by hand."""

from __future__ import annotations

import click

from forge.cli.command import Command
from forge.cli.common import Cli, duration
from forge.cluster.lease import Lease
from forge.cluster.service import Service, ServiceRunner
from forge.cluster.services import TIMEOUT, by_hand
from forge.config import suggest
from forge.errors import LockedError, LostLease, UsageError
from forge.storage import Storage, open_storage
from forge.storage.contract.leases import Leader

__all__ = ["run"]


@click.command(cls=Command)
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--list", "listed", is_flag=True, help="list the services")
def run(cli: Cli, name: str | None, listed: bool) -> None:
    """One round of a service that pods run by themselves. What only the leader does needs the lease for that round: if
    a pod has it, this says which."""
    if listed or name is None:
        _list(cli)
        return
    cli.storage().close()
    storage = cli.closing(open_storage(cli.config.database, schema=cli.config.schema, timeout=TIMEOUT, patience=0.0))
    known = {service.name: service for service in by_hand(storage, cli.config)}
    if name not in known:
        raise UsageError(f"no service {name}{suggest(name, list(known))}   (forge run --list)")
    service = known[name]
    term, did = _led(cli, storage, service) if service.leader_only else (None, service.run_once(None))
    cli.answer({"service": service.name, "did": did, "term": term}, f"{service.name}: {did or 'nothing to do'}")


def _list(cli: Cli) -> None:
    found = by_hand(cli.raw_storage(), cli.config)
    names = ("name", "every", "leader_only")
    document = [{name: getattr(each, name) for name in names} | {"does": _does(each)} for each in found]
    rows = [(s.name, duration(s.every), "the leader" if s.leader_only else "every pod", _does(s)) for s in found]
    cli.listing(document, ("service", "every", "run by", "what it does"), rows)


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
