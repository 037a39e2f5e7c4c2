"""`forge init`: a project to start from."""

from __future__ import annotations

from pathlib import Path

import click

from forge.cli.command import Command
from forge.cli.common import Cli
from forge.errors import UsageError

__all__ = ["init"]

FILES = {
    "forge.toml": """\
# Settings of this project; docs/configuration.md explains each.
# FORGE_DATABASE_URL and DATABASE_URL win over this, so the same file serves development and production.
database = "sqlite:///forge.db"
modules = ["tasks"]

[queues.default]
max_workers = 4
""",
    "tasks.py": """\
from forge import Forge

app = Forge()


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task
def flaky() -> None:
    raise ValueError("no luck")
""",
    "tests/test_tasks.py": '''\
"""Tests of the tasks: no server, no worker process, and never the project's own database."""

from tasks import add, flaky


def test_a_task_is_still_a_function():
    assert add(2, 3) == 5


def test_flaky_is_tried_until_its_attempts_are_used_up(forge_app, forge_drain):
    job = flaky.enqueue()
    assert forge_drain(later=True).outcomes == {"failed": 5}
    assert job.status == "dead"
''',
}


@click.command(cls=Command)
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), default=".")
def init(cli: Cli, folder: Path) -> None:
    """A project to start from: settings, two tasks and their tests."""
    there = [name for name in FILES if (folder / name).exists()]
    if there:
        raise UsageError(f"{folder} has {', '.join(there)} already; choose another directory: nothing was written")
    try:
        for name, text in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    except OSError as e:
        raise UsageError(f"cannot write {e.filename}: {e.strerror}") from None
    cli.print(f"created {', '.join(FILES)}")
    cli.print("next:  forge-master -c forge.toml")
