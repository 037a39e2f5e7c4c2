"""The public face: what `import forge` gives, what it does not load, and that docs/api.md tells all of it."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import forge
import forge.app
import forge.testing

pytestmark = pytest.mark.impl_free

ROOT = Path(__file__).parent.parent.parent
API = (ROOT / "docs" / "api.md").read_text("utf-8")
# What docs/api.md tells attribute by attribute. The others are options, or records whose fields their pages explain.
TOLD = {
    "Context": ["Context"],
    "Forge": ["Forge"],
    "Handler": ["Handler"],
    "JobHandle": ["JobHandle"],
    "Middleware": ["Middleware"],
    "RateLimit and Permit": ["RateLimit", "Permit"],
    "Schedules": ["Schedules"],
    "Task": ["Task", "SyncTask", "AsyncTask"],
    "Transaction": ["Transaction"],
}


def section(title: str) -> set[str]:
    """What the first column of the table under this heading of docs/api.md has in backquotes."""
    body = re.split(r"^## ", API.split(f"\n## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    cells = [line.split("|")[1] for line in body.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def attributes(cls: type) -> Iterator[str]:
    """The names that a class of forge's and its bases of forge's give to users, also those set in `__init__`."""
    for base in cls.__mro__:
        if base.__module__.startswith("forge"):
            yield from vars(base)
            yield from inspect.get_annotations(base)
            if "__init__" in vars(base) and not hasattr(base, "__dataclass_fields__"):
                yield from re.findall(r"self\.(\w+)\b(?=[^=(\n]*=)", inspect.getsource(vars(base)["__init__"]))


@pytest.mark.parametrize("module", [forge, forge.app], ids=lambda module: module.__name__)
def test_all_is_sorted_and_true(module: object) -> None:
    names: list[str] = module.__all__  # type: ignore[attr-defined]
    assert names == sorted(set(names))
    for name in names:
        assert getattr(module, name) is not None


def test_the_face_has_no_name_it_does_not_declare() -> None:
    submodules = {name for name in vars(forge) if f"forge.{name}" in sys.modules}
    helpers = {"annotations", "TYPE_CHECKING"}
    # @: what pytest adds to the modules of a distribution that has a plugin.
    public = {name for name in vars(forge) if not name.startswith(("_", "@"))} - submodules - helpers
    assert public | forge._LAZY.keys() == set(forge.__all__) - {"__version__"}


def test_the_page_of_the_public_face_has_every_name() -> None:
    assert section("Names") == set(forge.__all__)
    assert section("forge.testing") == set(forge.testing.__all__)


@pytest.mark.parametrize("title", TOLD)
def test_the_page_of_the_public_face_has_every_attribute(title: str) -> None:
    found = {name for cls in TOLD[title] for name in attributes(getattr(forge, cls)) if not name.startswith("_")}
    assert section(title) == found


def test_no_two_classes_that_users_meet_have_the_same_name() -> None:
    files = [*ROOT.glob("forge/app/**/*.py"), *ROOT.glob("forge/testing/**/*.py"), ROOT / "forge" / "job.py"]
    files.append(ROOT / "forge" / "errors.py")
    trees = [ast.parse(file.read_text("utf-8")) for file in files]
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_a_name_that_is_not_there_is_said_to_be_missing() -> None:
    with pytest.raises(AttributeError, match="module 'forge' has no attribute 'darin'"):
        forge.darin  # type: ignore[attr-defined]  # noqa: B018 (which also proves that type checkers see it)


def test_every_error_is_public() -> None:
    import forge.errors

    assert set(forge.errors.__all__) - {"ExitCode"} <= set(forge.__all__)


def test_the_version_is_that_of_the_distribution() -> None:
    assert forge.__version__ == metadata.version("forge-jobs")


@pytest.mark.parametrize(
    "module",
    ["psycopg", "apsw", "sqlite3", "sqlalchemy", "django", "asyncpg", "importlib.metadata", "forge.worker", "rich"],
)
def test_importing_forge_does_not_load_what_few_programs_need(module: str) -> None:
    program = f"import sys, forge; forge.Forge(); print({module!r} in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "False"
