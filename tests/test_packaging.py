"""What is shipped: the files in it, what it needs, the commands it installs, and that it builds without a compiler."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from forge import __version__

pytestmark = pytest.mark.impl_free

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what is in the repository: nothing built."""
    copy = tmp_path / "tree"
    built = shutil.ignore_patterns("*.so", "_fastpath.c", "__pycache__")
    shutil.copytree(ROOT / "forge", copy / "forge", ignore=built)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, copy)
    return copy


def build(tree: Path, what: str, **env: str) -> subprocess.CompletedProcess[str]:
    """An sdist or wheel as pip would make it, without a C compiler."""
    code = f"import setuptools.build_meta as b; print(b.build_{what}('out'))"
    (tree / "out").mkdir(exist_ok=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FORGE_")}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=tree,
        env=clean | {"CC": "/bin/false"} | env,
        capture_output=True,
        text=True,
        check=False,
    )


def modules_and_sql(names: list[str]) -> set[str]:
    ours = ".py", ".sql", ".typed", ".pyx", ".pxi"
    return {name for name in names if name.startswith("forge/") and name.endswith(ours)}


def shipped() -> set[str]:
    return modules_and_sql([path.relative_to(ROOT).as_posix() for path in (ROOT / "forge").rglob("*")])


def test_without_a_compiler_the_wheel_is_built_all_the_same_with_every_file(tree: Path) -> None:
    done = build(tree, "wheel")
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tree / "out" / done.stdout.splitlines()[-1]) as wheel:
        names = wheel.namelist()
    assert modules_and_sql(names) == shipped()
    assert {name.split("/")[0] for name in names} == {"forge", f"forge_jobs-{__version__}.dist-info"}
    assert not [name for name in names if name.endswith((".so", ".c"))]
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_with_forge_require_ext_a_failed_build_is_fatal(tree: Path) -> None:
    done = build(tree, "wheel", FORGE_REQUIRE_EXT="1")
    assert done.returncode != 0
    assert "/bin/false" in done.stderr


def test_the_source_distribution_has_what_a_build_needs(tree: Path) -> None:
    done = build(tree, "sdist")
    assert done.returncode == 0, done.stderr
    with tarfile.open(tree / "out" / done.stdout.splitlines()[-1]) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
    assert modules_and_sql(names) == shipped()
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE"} <= set(names)


@pytest.mark.parametrize("target", PROJECT["scripts"].values(), ids=PROJECT["scripts"].keys())
def test_every_command_leads_to_a_function(target: str) -> None:
    module, _, function = target.partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def loaded_with(path: Path) -> set[str]:
    """Third-party modules that are imported when this one is loaded."""
    found = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    loader = {"pytest"} if path == ROOT / "forge/testing/plugin.py" else set()  # who loads it is there already
    return found - set(sys.stdlib_module_names) - {"forge"} - loader


def test_everything_that_is_imported_is_depended_on() -> None:
    needed = {re.split(r"[\[<>=~! ]", dependency)[0] for dependency in PROJECT["dependencies"]}
    imported = {name for path in (ROOT / "forge").rglob("*.py") for name in loaded_with(path)}
    assert imported <= needed


def test_the_supported_pythons_are_said_twice_alike() -> None:
    said = re.findall(r"Python :: 3\.(\d+)", " ".join(PROJECT["classifiers"]))
    low, high = re.findall(r"3\.(\d+)", PROJECT["requires-python"])
    assert list(map(int, said)) == list(range(int(low), int(high)))
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py3{low}"
    assert PYPROJECT["tool"]["mypy"]["python_version"] == f"3.{low}"


def test_the_changelog_has_this_version() -> None:
    assert re.search(rf"^## {re.escape(__version__)}\b", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)


def test_ci_runs_the_gate() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text("utf-8").rstrip().endswith("\nmake test")


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    shown = subprocess.run(["make", "-s", "-C", str(ROOT), "help"], capture_output=True, text=True, check=True).stdout
    assert {line.split()[0] for line in shown.splitlines()} == set(phony[1].split())
