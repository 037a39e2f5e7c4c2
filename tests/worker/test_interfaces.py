"""What a worker may know of a context, and what the protocol holds: looked at in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from forge import Context, job_messages, protocol
from forge.master.message_checks import _ZYGOTE
from forge.worker.job_state import JobState

pytestmark = pytest.mark.impl_free

FORGE = Path(__file__).parents[2] / "forge"
RUNNING = [*sorted((FORGE / "worker").glob("*.py")), FORGE / "inline.py"]


def attributes(path: Path) -> Iterator[ast.Attribute]:
    """Every `x.name` in a file, but for those of `self` and `cls`."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            yield node


def private(names: object) -> set[str]:
    return {name for name in dir(names) if name.startswith("_") and not name.startswith("__")}


@pytest.mark.parametrize("path", RUNNING, ids=lambda path: path.stem)
def test_of_a_context_only_the_interface_is_used(path: Path) -> None:
    not_for_workers = private(Context) - set(JobState.__annotations__) - private(JobState)
    assert {"_link", "_app", "_said_at", "_commit_with_job"} <= not_for_workers
    used = {ast.unparse(node) for node in attributes(path) if node.attr in not_for_workers}
    assert not used - {"task._app"}, "but for a task, which is no context"


@pytest.mark.parametrize("module", [protocol, job_messages])
def test_what_the_protocol_offers_is_used_by_forge(module: object) -> None:
    file = Path(str(module.__file__))  # type: ignore[attr-defined]
    trees = [ast.parse(path.read_text("utf-8")) for path in FORGE.rglob("*.py") if path != file]
    imported = {
        name.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == f"forge.{file.stem}"
        for name in node.names
    }
    assert imported == set(module.__all__)  # type: ignore[attr-defined]


def test_a_master_checks_every_message_of_a_zygote() -> None:
    firsts = [next(iter(kind.__annotations__)) for kind in get_args(protocol.FromZygote)]
    assert sorted(firsts) == sorted(_ZYGOTE)
