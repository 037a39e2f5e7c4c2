"""The README and the documents do what they show: every example in them is run."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import forge
import forge.testing

from . import docs_runner
from .docs_runner import Block, Wrong, blocks, commands, matches

pytestmark = pytest.mark.impl_free

ROOT = Path(__file__).parent.parent
RUNNER = docs_runner.__file__
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Commands that a test cannot run: they serve until stopped, install, or are the gate itself.
NOT_RUN = (
    "forge-master",
    "forge top",
    "forge web",
    "git ",
    "make",
    "pip ",
    "createdb ",
    "psql ",
    "export DATABASE_URL",
)


def run(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The page's examples in an empty folder, where SQLite's file goes too, with the venv's commands first on PATH."""
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("FORGE_", "DATABASE_URL", "PYTEST"))
    }
    env |= {name: os.environ[name] for name in ("FORGE_IMPL",) if name in os.environ}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    env["PYTHONPATH"] = str(ROOT)
    return subprocess.run(
        [sys.executable, RUNNER, str(page)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_example_does_what_it_shows(page: Path, tmp_path: Path) -> None:
    done = run(page, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_only_servers_and_installers_are_shown_without_being_run(page: Path) -> None:
    for block in blocks(page.read_text("utf-8")):
        if block.language == "console" and block.no_run:
            first = next(commands(block))
            assert first.text.startswith(NOT_RUN), f"{page.name}:{first.line}: this can be run: {first.text}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_make_command_that_is_mentioned_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    mentioned = set(re.findall(r"(?:`|\$ )make ([a-z-]+)", page.read_text("utf-8")))
    assert mentioned <= targets


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def not_public(text: str) -> Iterator[str]:
    """What a page, or any text with pieces of programs in it, has of forge that forge does not promise to keep."""
    public = {module.__name__: set(module.__all__) for module in (forge, forge.testing)}
    for module, names in re.findall(r"\bfrom (forge(?:\.\w+)*) import (\([^)]*\)|[\w, ]+)", text):
        for name in re.findall(r"(\w+)(?:\s+as\s+\w+)?", names):
            if name not in public.get(module, ()):
                yield f"{module}.{name}"
    for module in re.findall(r"^\s*import (forge(?:\.\w+)*)", text, re.MULTILINE):
        if module not in public:
            yield module
    # In programs and between backquotes: forge.Name, and forge.name where it is called.
    for name in re.findall(r"(?<![\w./-])forge\.([A-Z]\w*|\w+(?=\())", text):
        if name not in public["forge"]:
            yield f"forge.{name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_imports_of_forge_is_public(page: Path) -> None:
    assert list(not_public(page.read_text("utf-8"))) == []


def test_what_forge_init_writes_imports_what_is_public() -> None:
    for file in (ROOT / "forge" / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert list(not_public(node.value)) == [], f"{file.name}:{node.lineno}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from forge import Forge, drain\nfrom forge.testing import advance", []),
        ("from forge import (\n    Forge,\n    config,\n)", ["forge.config"]),
        ("from forge.inline import drain", ["forge.inline.drain"]),
        ("$ python -c 'from forge.app import Forge'", ["forge.app.Forge"]),
        ("import forge\nimport forge.storage", ["forge.storage"]),
        ("`handler.addFilter(forge.JobFields())`, `forge.current_job()`, `forge.toml`", []),
        ("forge.NoSuchName and `forge.no_such_verb()`", ["forge.NoSuchName", "forge.no_such_verb"]),
    ],
)
def test_what_is_not_public_is_found(text: str, found: list[str]) -> None:
    assert list(not_public(text)) == found


# -- the runner itself


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("5", "5\n", True),
        ("5", "5  \n\n", True),
        ("5", "55\n", False),
        ("5\n6", "5\n", False),
        ("job 0198…", "job 0198-7abc\n", True),
        ("first\n…\nlast", "first\na\nb\nlast\n", True),
        ("first\n...", "first\n", False),
        ("created ... in … s", "created x in 0.2 s", True),
        ("a.c (1)", "abc (1)", False),
    ],
)
def test_dots_stand_for_anything(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) is same


def test_blocks_are_read_with_their_language_file_and_lines() -> None:
    text = "\n".join(
        ["intro", "```python", "# tasks.py", "x = 1", "```", "- item", "  ```console no-run", "  $ make", "  ```", ""]
    )
    first, second = blocks(text)
    assert first == Block("python", False, 2, "# tasks.py\nx = 1\n")
    assert first.file == "tasks.py"
    assert second == Block("console", True, 7, "$ make\n")
    with pytest.raises(Wrong, match="line 1: the block has no end"):
        list(blocks("```python\nx"))


FENCE = "```"


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("python\n1 / 0", "page.md"),
        ("python\nassert not True", "AssertionError"),
        ("python no-run\ndef", "SyntaxError"),
        ("python\n# broken.py\nimport nothing_of_this_name", "ModuleNotFoundError"),
        ("console\n$ echo 5\n6", "line 2: $ echo 5\nprinted:\n5\n\ninstead of:\n6"),
        ("console\n$ false", "line 2: $ false\nended with status 1"),
        ("console\n$ echo error: no\nerror: no", "ended with status 0"),
        ("console\nno prompt", "line 2: output before the first"),
    ],
)
def test_an_example_that_lies_is_found(tmp_path: Path, page: str, words: str) -> None:
    (tmp_path / "page.md").write_text(f"{FENCE}{page}\n{FENCE}\n")
    done = run(tmp_path / "page.md", tmp_path)
    assert done.returncode != 0
    assert words in done.stderr


def test_examples_share_a_namespace_files_and_the_shells_folder(tmp_path: Path) -> None:
    parts = [
        "python\n# sums.py\ndef add(a, b): return a + b",
        "toml\n# conf/some.toml\nx = 1",
        "python\nfrom sums import add\nfive = add(2, 3)",
        "python\nimport asyncio\nawait asyncio.sleep(0)\nassert five == 5",
        "python no-run\nraise SystemExit('not run')",
        "console\n$ cat conf/some.toml\n# conf/some.toml\nx = 1\n$ mkdir sub && cd sub\n$ export NAME=forge",
        "console\n$ basename $PWD; echo \\\n   $NAME\nsub\nforge\n$ sh -c 'echo error: no; exit 3'\nerror: …",
        "console no-run\n$ make everything",
        "python\nimport os\nassert os.getcwd().endswith('sub')",
    ]
    (tmp_path / "page.md").write_text("\n".join(f"{FENCE}{part}\n{FENCE}" for part in parts))
    done = run(tmp_path / "page.md", tmp_path)
    assert done.returncode == 0, done.stderr
