"""`forge init`, `forge config show` and `forge version`."""

from __future__ import annotations

import platform
from pathlib import Path

from forge import __version__
from forge.cli.common import Cli
from forge.errors import ExitCode, UsageError
from forge.fastpath import IMPL

__all__ = ["init", "line", "native", "version"]

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


def init(cli: Cli) -> int:
    """A project to start from: settings, two tasks and their tests."""
    folder = Path(cli.args.dir)
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
    return ExitCode.OK


def native() -> str:
    """Which fast path is in use, in a word."""
    return "native" if IMPL == "c" else "pure Python"


def version(cli: Cli) -> int:
    """What is installed."""
    if cli.json:
        cli.document({"forge": __version__, "python": platform.python_version(), "impl": IMPL})
    else:
        cli.print(line())
    return ExitCode.OK


def line() -> str:
    """`forge 0.1.0 (native), Python 3.13.1`"""
    return f"forge {__version__} ({native()}), Python {platform.python_version()}"
