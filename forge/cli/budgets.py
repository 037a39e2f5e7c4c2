"""`forge budgets …`: rates that all pods share."""

from __future__ import annotations

import click

from forge.cli.command import NUMBER, WHOLE, Group
from forge.cli.common import Cli, counted
from forge.config import suggest
from forge.errors import UsageError
from forge.storage import Storage
from forge.storage.contract.budgets import Budget, Limit

__all__ = ["budgets"]

HEAD = ("budget", "capacity", "per second", "tokens", "leased")


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def budgets(ctx: click.Context) -> None:
    """Every budget: its limit, the tokens it has, and those that pods have leased."""
    if ctx.invoked_subcommand is None:
        _list(ctx.obj)


def _list(cli: Cli) -> None:
    found = cli.storage().budgets.all()
    none = "no budgets; they appear with the first use, [limits.NAME] in forge.toml or `forge budgets set`"
    cli.listing([budget._asdict() for budget in found], HEAD, map(_row, found), none)


def _row(budget: Budget) -> tuple[object, ...]:
    pods = {pod: tokens for pod, tokens in budget.leased.items() if tokens}
    leased = f"{sum(pods.values())} by {counted(len(pods), 'pod')}" if pods else "-"
    return budget.scope, budget.capacity, f"{budget.refill_per_sec:.4g}", int(budget.tokens), leased


@budgets.command("set")
@click.argument("scope", metavar="SCOPE")
@click.option("--capacity", type=WHOLE, metavar="N", help="tokens there are at most")
@click.option("--refill", type=NUMBER, metavar="N", help="tokens that come back each second")
def set_budget(cli: Cli, scope: str, capacity: int | None, refill: float | None) -> None:
    """Make a budget, or change one. Its pods go by it with their next request."""
    storage = cli.storage(create=True)
    if known := {budget.scope: budget for budget in storage.budgets.all()}.get(scope):
        capacity = known.capacity if capacity is None else capacity
        refill = known.refill_per_sec if refill is None else refill
    if capacity is None or refill is None:
        missing = "--capacity" if capacity is None else "--refill"
        raise UsageError(f"{scope} is a new budget; say its {missing} too")
    storage.budgets.set(scope, Limit(capacity, refill))
    _tell(cli, storage, scope)


@budgets.command()
@click.argument("scope", metavar="SCOPE")
def drain(cli: Cli, scope: str) -> None:
    """Empty a budget for all pods: it refills from nothing."""
    storage = cli.storage()
    if not storage.budgets.drain(scope):
        near = suggest(scope, [budget.scope for budget in storage.budgets.all()])
        raise UsageError(f"no budget {scope}{near}   (forge budgets lists them)")
    _tell(cli, storage, scope)


def _tell(cli: Cli, storage: Storage, scope: str) -> None:
    (budget,) = (budget for budget in storage.budgets.all() if budget.scope == scope)
    limit = f"capacity {budget.capacity}, {budget.refill_per_sec:.4g} per second"
    cli.answer(budget._asdict(), f"{budget.scope}: {limit}, {counted(int(budget.tokens), 'token')}")
