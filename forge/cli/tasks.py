"""`forge tasks`: what the configured modules define."""

from __future__ import annotations

import os
from typing import Any

import click

from forge.app import Handler
from forge.cli.command import Command
from forge.cli.common import Cli
from forge.worker.modules import known_tasks

__all__ = ["tasks"]


@click.command(cls=Command)
def tasks(cli: Cli) -> None:
    """Every kind the configured modules define."""
    known = known_tasks(cli.config, flags=cli.flags)
    none = 'no modules are configured; name them in forge.toml: modules = ["tasks"]'
    if known.modules:
        none = f"no tasks in {', '.join(known.modules)}; decorate a function with @app.task"
    handlers = [found.handler for found in known.kinds.values()]
    head = ("task", "queue", "attempts", "timeout", "where")
    cli.listing([_as_json(handler) for handler in handlers], head, map(_row, handlers), none)


def _row(handler: Handler) -> tuple[object, ...]:
    file, _, line = handler.where.rpartition(":")
    where = f"{os.path.relpath(file)}:{line}" if os.path.isabs(file) else handler.where
    return handler.kind, handler.queue or "(routed)", handler.max_attempts, f"{handler.timeout} s", where


def _as_json(handler: Handler) -> dict[str, Any]:
    names = ("kind", "queue", "priority", "max_attempts", "timeout", "keep_result", "is_async", "where")
    return {name: getattr(handler, name) for name in names} | {"result_optional": handler.result_optional}
