"""Imports point one way. This walks every import statement of every module, also those inside functions and in Cython.

The order is that of `LAYERS`, and CONTRIBUTING.md tells the same.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.impl_free

ROOT = Path(__file__).parent.parent

LAYERS = [
    {"errors", "job", "retry", "config", "early", "failpoints"},
    {"codec", "delays", "descendants", "fence", "host_limits", "job_messages", "logs", "printing", "protocol"}
    | {"redaction"}
    | {"fastpath", "_fastpath", "_fastpath_py", "_native", "_reference"},  # what fastpath is made of
    {"storage"},
    {"cluster"},
    {"app", ""},  # "" is forge/__init__.py, the public face
    {"master", "worker", "web", "faktory"},
    {"inline"},  # runs jobs without a master
    {"cli", "testing"},
]
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
SHOWN_LAZILY = {"inline"}  # what the public face gives of it, it loads when that is first asked for
# These run as processes of their own and do not know each other.
ALONE = LAYERS[5]

DRIVERS = {"psycopg", "apsw"}  # loaded with forge.storage and by nobody else
# A user's own: never loaded by forge itself.
GUESTS = {"sqlalchemy", "django", "asyncpg", "aiosqlite", "psycopg2"}
BASE = {"errors", "job", "retry", "config", "early", "failpoints"}  # need nothing but Python
# But for these, inside a function: schedules are checked with it, a command hides its arguments.
ON_DEMAND = {"config": {"croniter"}, "early": {"setproctitle"}}
THIRD_PARTY = DRIVERS | GUESTS | {"orjson", "croniter", "setproctitle", "rich"}


class Import(NamedTuple):
    target: str  # dotted
    line: int
    at_load: bool  # runs when the module is loaded, and is not for type checkers only


def module_name(path: Path, root: Path) -> str:
    parts = list(path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imported_by_call(node: ast.Call) -> str | None:
    """The module of `importlib.import_module("forge.x")`."""
    if ast.unparse(node.func) not in ("importlib.import_module", "import_module", "__import__") or not node.args:
        return None
    first = node.args[0]
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def imports(node: ast.AST, package: str, at_load: bool = True) -> Iterator[Import]:
    """Every import under `node`; `package` is what a relative one starts from."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(name.name, child.lineno, at_load) for name in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                up = package.split(".")[: len(package.split(".")) - child.level + 1]
                base = ".".join([*up, base] if base else up)
            # `from forge import codec` imports forge.codec; in `from forge.codec import decode` the name says no more.
            names = [f"forge.{name.name}" for name in child.names] if base == "forge" else [base]
            yield from (Import(name, child.lineno, at_load) for name in names)
        elif isinstance(child, ast.Call) and (name := imported_by_call(child)):
            yield Import(name, child.lineno, at_load)
        deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or is_type_checking(child)
        yield from imports(child, package, at_load and not deferred)


def part_of(module: str) -> str:
    """`forge.storage.postgres` is part of `storage`."""
    return module.split(".")[1] if "." in module else ""


def fault(part: str, found: Import) -> str | None:
    """What is wrong with this import in a module of this part, in words."""
    top, _, rest = found.target.partition(".")
    if top == "forge":
        target = rest.split(".")[0]
        target = target if target in RANK else ""  # `from forge import Forge`: a name that forge/__init__.py gives
        if part == "" and target in SHOWN_LAZILY and not found.at_load:
            return None
        if RANK[target] > RANK[part]:
            return f"{target or 'forge itself'} is to the right of {part or 'forge itself'}"
        if target != part and {target, part} <= ALONE:
            return f"{part} and {target} do not know each other"
    elif part in BASE and top in THIRD_PARTY and (top not in ON_DEMAND.get(part, ()) or found.at_load):
        return f"{part} needs nothing but Python, not {top}"
    elif found.at_load and top in DRIVERS and part != "storage":
        return f"{top} is loaded by storage only; import it inside the function that needs it"
    elif found.at_load and top in GUESTS:
        return f"{top} is the user's; import it inside the function that needs it"
    return None


CYTHON = {".pyx", ".pxi"}
_DOCSTRING = re.compile(r'"""(?:[^\\]|\\.)*?"""', re.DOTALL)
_IMPORT = re.compile(r"^[ ]*((?:from\s+\S+\s+)?c?import\s+(?:\([^)]*\)|.*)$)", re.MULTILINE)


def cython_imports(source: str, package: str) -> Iterator[Import]:
    """The same of a Cython file, which Python's parser cannot read: only its import statements are parsed, cimport
    counts as one, and all are taken to run when the module is loaded."""
    source = _DOCSTRING.sub(lambda found: "\n" * found[0].count("\n"), source)
    for statement in _IMPORT.finditer(source):
        line = source.count("\n", 0, statement.start())
        for found in imports(ast.parse(re.sub(r"\bcimport\b", "import", statement[1])), package):
            yield found._replace(line=found.line + line)


def imports_of(path: Path, package: str) -> Iterator[Import]:
    source = path.read_text("utf-8")
    return cython_imports(source, package) if path.suffix in CYTHON else imports(ast.parse(source), package)


def faults(root: Path) -> list[str]:
    """All wrong imports under root/forge, as `file:line: words`."""
    said = []
    for path in sorted(path for path in (root / "forge").rglob("*") if path.suffix in {".py", *CYTHON}):
        module = module_name(path, root)
        if part_of(module) not in RANK:
            said.append(f"{module} has no place in LAYERS: give it one")
            continue
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        said += [
            f"{path.relative_to(root)}:{found.line}: {words}"
            for found in imports_of(path, package)
            if (words := fault(part_of(module), found))
        ]
    return said


def circle(root: Path, package: str) -> list[str]:
    """Modules of the package that need each other in a circle, counting imports inside functions and those for type
    checkers; an `__init__` may gather its own modules. Empty: there is none."""
    needs: dict[str, set[str]] = {}
    for path in (root / package.replace(".", "/")).rglob("*.py"):
        if path.name != "__init__.py":
            module = module_name(path, root)
            found = imports(ast.parse(path.read_text("utf-8")), module.rpartition(".")[0])
            needs[module] = {each.target for each in found} - {module}
    while free := {module for module, targets in needs.items() if not targets & needs.keys()}:
        needs = {module: targets for module, targets in needs.items() if module not in free}
    return sorted(needs)


def test_no_modules_of_the_app_need_each_other_in_a_circle() -> None:
    assert circle(ROOT, "forge.app") == []


def test_a_circle_is_found_also_behind_a_function(tmp_path: Path) -> None:
    folder = tmp_path / "forge" / "app"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("from forge.app.b import x")
    (folder / "b.py").write_text("def f():\n    import forge.app.a")
    (folder / "c.py").write_text("from forge.app.a import x")
    assert circle(tmp_path, "forge.app") == ["forge.app.a", "forge.app.b", "forge.app.c"]
    (folder / "b.py").write_text("import os")
    assert circle(tmp_path, "forge.app") == []


def test_no_import_points_the_wrong_way() -> None:
    assert not faults(ROOT), "\n".join(faults(ROOT))


def test_the_order_is_as_contributors_are_told() -> None:
    _, _, text = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("Imports point one way")
    block = " ".join(line for line in text.split("\n\n")[1].splitlines() if line.startswith("    "))
    told = [set(layer.replace("|", " ").split()) for layer in block.split("<-")]
    assert told == [{part for part in layer if part and part[0] != "_"} for layer in LAYERS]
    assert [set(layer.split()) - {"|"} for layer in block.split("<-") if "|" in layer] == [ALONE]


@pytest.mark.parametrize(
    ("path", "source", "words"),
    [
        ("job.py", "from forge.codec import decode", "job.py:1: codec is to the right of job"),
        ("job.py", "import forge.storage", "storage is to the right of job"),
        ("job.py", "import orjson", "job needs nothing but Python, not orjson"),
        ("config/checks.py", "import croniter", "config needs nothing but Python, not croniter"),
        ("storage/x.py", "from forge import Forge", "forge itself is to the right of storage"),
        ("storage/x.py", "import forge", "forge itself is to the right of storage"),
        ("codec.py", "from forge import storage", "storage is to the right of codec"),
        ("codec.py", "def f():\n    from forge.app import Forge", "codec.py:2: app is to the right of codec"),
        ("storage/__init__.py", "from ..app import Forge", "app is to the right of storage"),
        ("storage/sqlite/wake.py", "from ...app.tasks import Task", "app is to the right of storage"),
        ("storage/sqlite/wake.py", "from ... import cli", "cli is to the right of storage"),
        ("storage/sqlite/wake.py", "importlib.import_module('forge.master')", "master is to the right of storage"),
        ("app/client.py", "import forge.worker.child", "worker is to the right of app"),
        ("worker/child.py", "from forge.inline import drain", "inline is to the right of worker"),
        ("app/client.py", "if TYPE_CHECKING:\n    from forge.cli import main", "cli is to the right of app"),
        ("app/client.py", "import psycopg", "psycopg is loaded by storage only"),
        ("app/client.py", "try:\n    from django.db import x\nexcept ImportError: pass", "django is the user's"),
        ("storage/x.py", "import sqlalchemy.orm", "sqlalchemy is the user's"),
        ("__init__.py", "from forge.cli import main", "cli is to the right of forge itself"),
        ("__init__.py", "from forge.inline import drain", "inline is to the right of forge itself"),
        ("storage/x.py", "from forge.cluster.service import Service", "cluster is to the right of storage"),
        ("cluster/x.py", "from forge.app import Forge", "app is to the right of cluster"),
        ("cluster/x.py", "from forge.master.pod.log import log", "master is to the right of cluster"),
        ("web/app.py", "from forge.master import x", "web and master do not know each other"),
        ("gadget.py", "import os", "forge.gadget has no place in LAYERS"),
        (
            "_fastpath.pyx",
            "cdef int n = 0\n\nfrom forge import app",
            "_fastpath.pyx:3: app is to the right of _fastpath",
        ),
        ("_native/ids.pxi", "from forge.storage cimport rows", "ids.pxi:1: storage is to the right of _native"),
        ("_native/ids.pxi", "cdef f():\n    import forge.app", "ids.pxi:2: app is to the right of _native"),
        (
            "_native/ids.pxi",
            '"""\nfrom here on\n"""\nfrom forge import (\n  job,\n  cli,\n)',
            "ids.pxi:4: cli is to the right",
        ),
        ("_native/ids.pxi", "from psycopg import pq", "psycopg is loaded by storage only"),
        ("_gadget.pyx", "cdef int n", "forge._gadget has no place in LAYERS"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, path: str, source: str, words: str) -> None:
    file = tmp_path / "forge" / path
    file.parent.mkdir(parents=True)
    file.write_text(source)
    (said,) = faults(tmp_path)
    assert words in said


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("__init__.py", "if TYPE_CHECKING:\n    from forge.inline import drain"),
        ("cli/x.py", "from forge import Forge, __version__\nimport forge\nimport forge.master"),
        ("app/x.py", "from forge.storage import Storage\ndef f():\n    import psycopg, django"),
        ("app/x.py", "if TYPE_CHECKING:\n    import asyncpg"),
        ("storage/x.py", "import psycopg, apsw\nfrom . import contract\nfrom forge import codec, fastpath"),
        ("codec.py", "import orjson\nfrom forge import fastpath"),
        ("cluster/x.py", "from forge.storage import Storage\nfrom forge import logs"),
        ("master/x.py", "from forge.cluster.service import Service"),
        ("config/checks.py", "def f():\n    import croniter"),
        ("retry.py", "from forge.errors import InvalidJob\nfrom forge import job"),
        ("_native/ids.pxi", "from libc.string cimport memcpy\nfrom orjson import loads\nfrom forge.job import Claim"),
    ],
)
def test_a_right_import_is_let_through(tmp_path: Path, path: str, source: str) -> None:
    file = tmp_path / "forge" / path
    file.parent.mkdir(parents=True)
    file.write_text(source)
    assert faults(tmp_path) == []
