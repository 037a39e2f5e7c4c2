"""`forge budgets …`: rates that all pods share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from forge.cli.common import Cli, Parser, counted, table
from forge.config import suggest
from forge.errors import ExitCode, UsageError
from forge.storage import Storage
from forge.storage.contract.budgets import Budget, Limit

__all__ = ["add_commands", "budgets"]

Add = Callable[["argparse._SubParsersAction[Parser]", str, Callable[[Cli], int]], Parser]


def budgets(cli: Cli) -> int:
    """Every budget: its limit, the tokens it has, and those that pods have leased."""
    found = cli.storage().budgets.all()
    if cli.json:
        cli.document([_as_json(budget) for budget in found])
    elif not found:
        cli.print("no budgets; they appear with the first use, [limits.NAME] in forge.toml or `forge budgets set`")
    else:
        cli.print(table(("budget", "capacity", "per second", "tokens", "leased"), [_row(budget) for budget in found]))
    return ExitCode.OK


def _row(budget: Budget) -> tuple[object, ...]:
    pods = {pod: tokens for pod, tokens in budget.leased.items() if tokens}
    leased = f"{sum(pods.values())} by {counted(len(pods), 'pod')}" if pods else "-"
    return budget.scope, budget.capacity, f"{budget.refill_per_sec:.4g}", int(budget.tokens), leased


def _as_json(budget: Budget) -> dict[str, Any]:
    return budget._asdict()


def set_budget(cli: Cli) -> int:
    """Make a budget, or change one. Its pods go by it with their next request."""
    args, storage = cli.args, cli.storage(create=True)
    known = {budget.scope: budget for budget in storage.budgets.all()}.get(args.scope)
    capacity = args.capacity if args.capacity is not None or known is None else known.capacity
    refill = args.refill if args.refill is not None or known is None else known.refill_per_sec
    if capacity is None or refill is None:
        missing = "--capacity" if capacity is None else "--refill"
        raise UsageError(f"{args.scope} is a new budget; say its {missing} too")
    storage.budgets.set(args.scope, Limit(capacity, refill))
    return _told(cli, storage)


def drain(cli: Cli) -> int:
    """Empty a budget for all pods: it refills from nothing."""
    storage = cli.storage()
    if not storage.budgets.drain(cli.args.scope):
        near = suggest(cli.args.scope, [budget.scope for budget in storage.budgets.all()])
        raise UsageError(f"no budget {cli.args.scope}{near}   (forge budgets lists them)")
    return _told(cli, storage)


def _told(cli: Cli, storage: Storage) -> int:
    (budget,) = (budget for budget in storage.budgets.all() if budget.scope == cli.args.scope)
    if cli.json:
        cli.document(_as_json(budget))
    else:
        limit = f"capacity {budget.capacity}, {budget.refill_per_sec:.4g} per second"
        cli.print(f"{budget.scope}: {limit}, {counted(int(budget.tokens), 'token')}")
    return ExitCode.OK


def add_commands(add_command: Add, top: argparse._SubParsersAction[Parser]) -> None:
    """`forge budgets` and what can stand behind it."""
    below = add_command(top, "budgets", budgets).add_subparsers(metavar="COMMAND", required=False, parser_class=Parser)
    changed = add_command(below, "set", set_budget)
    changed.add_argument("scope", metavar="SCOPE")
    changed.add_argument("--capacity", type=int, metavar="N", help="tokens there are at most")
    changed.add_argument("--refill", type=float, metavar="N", help="tokens that come back each second")
    add_command(below, "drain", drain).add_argument("scope", metavar="SCOPE")
