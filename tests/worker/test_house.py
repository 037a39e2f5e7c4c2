"""How the code that runs jobs is put together: looked at in its source."""

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
RUNNING = [*sorted((FORGE / "worker").glob("*.py")), FORGE / "inline.py", FORGE / "protocol.py"]
# What is assigned to: the standard library, where a worker replaces a part of it; a thread's own variables; and
# what is known of an outcome only after it was made, by the user or of what the user raised.
ASSIGNED = {
    "sys.stdout",
    "sys.stderr",
    "sys.__stdout__",
    "sys.__stderr__",
    "threading.Thread.start",
    "self._logging.now",
    "outcome.error_type",
    "outcome.__cause__",
    "outcome.spare_result",
}


def attributes(path: Path) -> Iterator[ast.Attribute]:
    """Every `x.name` in a file, but for those of `self` and `cls`."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            yield node


def private(names: object) -> set[str]:
    return {name for name in dir(names) if name.startswith("_") and not name.startswith("__")}


@pytest.mark.parametrize("path", RUNNING, ids=lambda path: path.stem)
def test_nothing_is_assigned_into_another_object(path: Path) -> None:
    stored = [ast.unparse(node) for node in attributes(path) if isinstance(node.ctx, ast.Store)]
    assert set(stored) <= ASSIGNED


@pytest.mark.parametrize("path", RUNNING, ids=lambda path: path.stem)
def test_of_a_context_only_the_interface_is_used(path: Path) -> None:
    not_for_workers = private(Context) - set(JobState.__annotations__) - private(JobState)
    assert {"_link", "_app", "_said_at", "_commit_with_job"} <= not_for_workers
    used = {ast.unparse(node) for node in attributes(path) if node.attr in not_for_workers}
    assert not used - {"task._app"}, "but for a task, which is no context"


def test_each_class_has_a_name_of_its_own() -> None:
    def classes(path: Path) -> Iterator[str]:
        found = ast.parse(path.read_text("utf-8")).body
        return (f"{path.relative_to(FORGE)}:{node.name}" for node in found if isinstance(node, ast.ClassDef))

    others = [found for path in FORGE.rglob("*.py") for found in classes(path)]
    for path in RUNNING:
        for own in classes(path):
            assert [found for found in others if found.endswith(f":{own.partition(':')[2]}")] == [own]


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
