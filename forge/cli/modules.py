"""`forge tasks`: what the configured modules define."""

from __future__ import annotations

import os
from typing import Any

from forge.app import Handler
from forge.cli.common import Cli, table
from forge.errors import ExitCode
from forge.worker.modules import known_tasks

__all__ = ["tasks"]


def tasks(cli: Cli) -> int:
    """Every kind the configured modules define."""
    known = known_tasks(cli.config, flags=cli.flags)
    if cli.json:
        cli.document([_as_json(found.handler) for found in known.kinds.values()])
        return ExitCode.OK
    if not known.modules:
        cli.print('no modules are configured; name them in forge.toml: modules = ["tasks"]')
    elif not known.kinds:
        cli.print(f"no tasks in {', '.join(known.modules)}; decorate a function with @app.task")
    else:
        head = ("task", "queue", "attempts", "timeout", "where")
        cli.print(table(head, [_row(found.handler) for found in known.kinds.values()]))
    return ExitCode.OK


def _row(handler: Handler) -> tuple[object, ...]:
    file, _, line = handler.where.rpartition(":")
    where = f"{os.path.relpath(file)}:{line}" if os.path.isabs(file) else handler.where
    return handler.kind, handler.queue or "(routed)", handler.max_attempts, f"{handler.timeout} s", where


def _as_json(handler: Handler) -> dict[str, Any]:
    names = ("kind", "queue", "priority", "max_attempts", "timeout", "keep_result", "is_async", "where")
    return {name: getattr(handler, name) for name in names} | {"result_optional": handler.result_optional}
